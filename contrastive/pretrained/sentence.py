"""What a sentence-transformers folder says beside the encoder: pooling, and the Dense and LayerNorm
modules behind it, each in a folder of its own."""

import pathlib
from collections.abc import Mapping
from typing import Any, Literal, cast

from contrastive.errors import WeightsError
from contrastive.pretrained import layouts
from contrastive.pretrained.families import Description
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.pretrained.tensors import Tensors, read_tensors
from contrastive.towers import DenseConfig, EncoderConfig, LayerNormConfig
from contrastive.towers.text import Pooling

_POOLINGS: dict[str, Pooling] = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
    "weightedmean": "weighted_mean",
}
_OLD_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.linear.Identity": "none",
}
_KNOWN = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize")
_NORM_EPSILON = 1e-5  # of PyTorch's LayerNorm; the folder does not say it


class Module:
    """An entry of ``modules.json``: its kind, its folder and what its ``config.json`` says."""

    def __init__(self, source: Source, entry: Any, index: int) -> None:
        where = str(source.folder / "modules.json")
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise WeightsError(f"{where}: entry {index} is not a module.")
        self.kind = entry["type"].rpartition(".")[2]
        self.folder = str(entry.get("path", "")).strip("/")
        if self.kind not in _KNOWN:
            raise WeightsError(
                f"{where}: the module {entry['type']} is not known here; known are "
                f"{', '.join(_KNOWN)}."
            )
        parts = pathlib.PurePosixPath(self.folder)
        if parts.is_absolute() or ".." in parts.parts:
            raise WeightsError(f"{where} names a folder outside of its own: {self.folder}.")
        name = f"{self.folder}/config.json"
        self.config = Settings(source.json(name) or {}, str(source.folder / name))


def modules(source: Source) -> list[Module]:
    """The modules in order; none where the folder is a plain one.

    Raises:
      WeightsError: They are not an encoder, a pooling, and Dense, LayerNorm and Normalize after it.
    """
    entries = source.json_list("modules.json") or []
    found = [Module(source, entry, i) for i, entry in enumerate(entries)]
    kinds = [module.kind for module in found]
    order = kinds[:2] == ["Transformer", "Pooling"] and "Normalize" not in kinds[2:-1]
    if kinds and (not order or {"Transformer", "Pooling"} & set(kinds[2:])):
        raise WeightsError(
            f"{source.folder / 'modules.json'} lists {', '.join(kinds)}; a Transformer, a Pooling, "
            "Dense and LayerNorm modules and at most one Normalize at the end are known here."
        )
    if found and found[0].folder:
        raise WeightsError(
            f"{source.folder} keeps its encoder in {found[0].folder}; copy the files of that "
            "folder into the one of modules.json (and set its path to '' there)."
        )
    return found


def pooling(source: Source) -> Pooling:
    """The pooling of a folder; of a plain one the mean, which sentence-transformers takes, too.

    Raises:
      WeightsError: It is one that is not known here, or several.
    """
    found = [module for module in modules(source) if module.kind == "Pooling"]
    if not found:
        return "mean"
    config = found[0].config
    modes = config.values.get("pooling_mode")
    if modes is None:
        modes = [name for flag, name in _OLD_FLAGS.items() if config.values.get(flag)]
    modes = modes if isinstance(modes, list) else [modes]
    if config.values.get("include_prompt", True) is not True:
        raise WeightsError(f"{config.where}: include_prompt = false is not known here.")
    if len(modes) != 1 or str(modes[0]) not in _POOLINGS:
        raise WeightsError(
            f"{config.where}: pooling by {' and '.join(map(str, modes)) or 'nothing'}; one of "
            f"{', '.join(_POOLINGS)} is known here."
        )
    return _POOLINGS[modes[0]]


def after_pooling(source: Source, width: int) -> tuple[DenseConfig | LayerNormConfig, ...]:
    """The modules behind the pooling.

    Args:
      source: The folder.
      width: Of the encoder.

    Raises:
      WeightsError: A size does not fit the one before it, or a module is of an unknown form.
    """
    steps: list[DenseConfig | LayerNormConfig] = []
    size = width
    for module in modules(source):
        config = module.config
        if module.kind == "Pooling":
            given = config.values.get("embedding_dimension")
            _fits(config, "word_embedding_dimension", given, size)
        elif module.kind == "LayerNorm":
            _fits(config, "dimension", None, size)
            steps.append(LayerNormConfig(epsilon=_NORM_EPSILON))
        elif module.kind == "Dense":
            _fits(config, "in_features", None, size)
            step = _dense(config)
            steps.append(step)
            size = step.size
    return tuple(steps)


def _fits(config: Settings, name: str, given: Any, size: int) -> None:
    given = config.values.get(name, size) if given is None else given
    if given != size:
        raise WeightsError(
            f"{config.where}: {name} = {given}, but rows of {size} enter the module."
        )


def _dense(config: Settings) -> DenseConfig:
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if name not in _ACTIVATIONS or config.get("use_residual", False):
        raise WeightsError(
            f"{config.where}: a Dense with {name}"
            f"{' and a residual' if config.get('use_residual', False) else ''} is not known here; "
            f"known are {', '.join(_ACTIVATIONS)}."
        )
    for key in ("module_input_name", "module_output_name"):
        if config.values.get(key) not in (None, "sentence_embedding"):
            raise WeightsError(f"{config.where}: {key} = {config.values[key]!r} is not known here.")
    activation = cast(Literal["tanh", "gelu", "relu", "none"], _ACTIVATIONS[name])
    size = config.count("out_features")
    return DenseConfig(size=size, bias=config.get("bias", True), activation=activation)


def prompts(source: Source) -> dict[str, Any]:
    """The prefixes of queries and passages, as settings of the data: those that the library's
    ``encode_query`` and ``encode_document`` take from ``prompts``, or else the one that
    ``default_prompt_name`` puts before every text. None of them: no setting.

    Raises:
      WeightsError: They are no texts by name, or the default is not among them.
    """
    file = "config_sentence_transformers.json"
    config = Settings(source.json(file) or {}, str(source.folder / file))
    given = config.group("prompts").values
    if any(not isinstance(text, str) for text in given.values()):
        raise WeightsError(f"{config.where}: prompts = {given!r} has to be texts by name.")
    default = config.values.get("default_prompt_name")
    if default is not None and default not in list(given):
        raise WeightsError(
            f"{config.where}: default_prompt_name = {default!r} is none of the prompts "
            f"({', '.join(given) or 'there are none'})."
        )

    def first(names: tuple[str, ...]) -> str:
        named = (given[name] for name in names if name in given)
        return next(named, "" if default is None else given[default])

    query, passage = first(("query",)), first(("document", "passage", "corpus"))
    if not query and not passage:
        return {}
    # Of pairs of texts, which have such prefixes; what they come from is not here.
    pairs = {"pairs": "texts", "source": "none", "format": "jsonl"}
    return pairs | {"query_prefix": query, "passage_prefix": passage}


def tensors(source: Source) -> Tensors:
    """The encoder's tensors under their own names, and those of the other modules with the folder
    that :func:`files` gives the module before them: ``2_Dense/linear.weight``."""
    found = dict(source.tensors)
    number = 2
    for module in modules(source):
        if module.kind not in ("Dense", "LayerNorm"):
            continue
        folder = source.folder / module.folder
        files = [folder / name for name in ("model.safetensors", "pytorch_model.bin")]
        file = next((f for f in files if f.is_file()), files[0])
        prefix = f"{number}_{module.kind}"
        found |= {f"{prefix}/{name}": array for name, array in read_tensors(file).items()}
        number += 1
    return found


def _steps(text: EncoderConfig) -> list[tuple[str, str, DenseConfig | LayerNormConfig]]:
    """Folder, our path and settings of what is behind the pooling."""
    kinds = {"dense": "Dense", "layer_norm": "LayerNorm"}
    return [
        (f"{i + 2}_{kinds[step.kind]}", f"text/after_pooling/layers/{i}", step)
        for i, step in enumerate(text.after_pooling)
    ]


def rules(text: EncoderConfig) -> list[Rule]:
    """The table of names of what is behind the pooling."""
    table: list[Rule] = []
    for folder, path, step in _steps(text):
        if isinstance(step, LayerNormConfig):
            table += layouts.norm(path, f"{folder}/norm")
        else:
            table += layouts.linear(path, f"{folder}/linear", bias=step.bias)
    return table


def files(settings: Description) -> dict[str, Any]:
    """The files that make the folder of an encoder to that of a sentence-transformers model.

    Raises:
      WeightsError: The tower has something that sentence-transformers has no module for.
    """
    text = settings.model.text
    assert isinstance(text, EncoderConfig)
    written: dict[str, Any] = {
        "sentence_bert_config.json": {
            "max_seq_length": settings.data.text_length,
            "do_lower_case": False,  # the tokenizer does it, if it is done
        },
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"} | _prompts(settings),
        "1_Pooling/config.json": _pooling_file(text),
    }
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    size = text.width
    for folder, _, step in _steps(text):
        if isinstance(step, LayerNormConfig):
            if step.epsilon != _NORM_EPSILON:
                raise WeightsError(
                    f"a LayerNorm with epsilon {step.epsilon} cannot be written: "
                    f"sentence-transformers has {_NORM_EPSILON} only."
                )
            written[f"{folder}/config.json"] = {"dimension": size}
            continue
        written[f"{folder}/config.json"] = {
            "in_features": size,
            "out_features": step.size,
            "bias": step.bias,
            "activation_function": names[step.activation],
        }
        size = step.size
    written["modules.json"] = _modules_file(text)
    return written


def _prompts(settings: Description) -> dict[str, Any]:
    """The prefixes, which the library puts before a text where it is told which one."""
    prefixes = {"query": settings.data.query_prefix, "document": settings.data.passage_prefix}
    given = {name: prefix for name, prefix in prefixes.items() if prefix}
    return {"prompts": given} if given else {}


def _pooling_file(text: EncoderConfig) -> Mapping[str, Any]:
    mode = next(name for name, ours in _POOLINGS.items() if ours == text.pooling)
    flags = {flag: name == mode for flag, name in _OLD_FLAGS.items()}
    return {"word_embedding_dimension": text.width, **flags, "include_prompt": True}


def _modules_file(text: EncoderConfig) -> list[dict[str, Any]]:
    names = ["", "1_Pooling", *(folder for folder, _, _ in _steps(text))]
    names.append(f"{len(names)}_Normalize")
    return [
        {
            "idx": i,
            "name": str(i),
            "path": name,
            "type": f"sentence_transformers.models.{name.partition('_')[2] or 'Transformer'}",
        }
        for i, name in enumerate(names)
    ]
