"""A model as the folder of another library: the tables of names, read from ours to theirs."""

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from contrastive.data.config import DataConfig
from contrastive.data.tokenizer import Tokenizer
from contrastive.errors import WeightsError
from contrastive.pretrained import (
    clip,
    convnext,
    encoders,
    huggingface,
    mapping,
    open_clip,
    resnet,
    siglip,
    siglip2,
    vit,
)
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.source import Source
from contrastive.pretrained.tensors import write_safetensors
from contrastive.towers import BagConfig, TwoTower
from contrastive.whole import new_folder

FORMATS: dict[str, tuple[Family, ...]] = {
    "huggingface": (
        clip.FAMILY,
        siglip.FAMILY,
        siglip2.FAMILY,
        vit.FAMILY,
        resnet.FAMILY,
        convnext.FAMILY,
        encoders.BERT,
        encoders.ROBERTA,
        encoders.MODERNBERT,
    ),
    "open_clip": (open_clip.FAMILY, open_clip.CUSTOM, resnet.CLIP),
}
"""The families of each format; the first that can hold the model takes it."""

# Settings that say how a tower is trained or run, not what it computes; what stands behind the
# towers is there in training only.
_FREE = (
    *("dropout", "drop_path", "init", "remat", "scan", "attention", "keep_patches", "dtype"),
    *("statistics", "momentum"),
)
_TRAINING = ("head", "predictor")


def export_weights(
    settings: Description,
    towers: TwoTower,
    tokenizer: Tokenizer | None,
    format_name: str,
    folder: pathlib.Path,
) -> Family:
    """Writes a folder that the other library loads, and returns the family that it is of.

    Args:
      settings: Of the model.
      towers: The model.
      tokenizer: Of its texts; None: none is written.
      format_name: One of :data:`FORMATS`.
      folder: Is made; it must not hold anything.

    Raises:
      WeightsError: No family of the format can hold the model; says what each cannot.
      UserError: The folder holds something.
    """
    if tokenizer is not None and tokenizer.broader:
        raise WeightsError(
            f"{format_name} has no tokenizer that puts broader terms behind the words "
            "(config.data.tokenizer.broader), and the model was trained with them."
        )
    settings = resolved(settings, tokenizer)
    family, files = choose(settings, format_name)
    new_folder(folder)
    _write_files(folder, files)
    if (
        settings.model.text is not None
        and tokenizer is not None
        and family.tokenizer_class is not None
    ):
        huggingface.write_texts(folder, tokenizer, family.tokenizer_class)
    tensors = mapping.write(family.rules(settings), parameters(towers))
    for inner in sorted({name.rpartition("/")[0] for name in tensors}):
        own = {n.rpartition("/")[2]: t for n, t in tensors.items() if n.rpartition("/")[0] == inner}
        write_safetensors(folder / inner / family.weights_name, own)
    return family


def _write_files(folder: pathlib.Path, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def parameters(towers: TwoTower) -> dict[str, np.ndarray]:
    """The parameters by path, on the host."""
    state = nnx.to_flat_state(nnx.state(towers))
    return {"/".join(map(str, path)): np.asarray(jax.device_get(leaf[...])) for path, leaf in state}


def resolved(settings: Description, tokenizer: Tokenizer | None) -> Description:
    """The settings with the sizes and markers that come from the tokenizer spelled out."""
    text = settings.model.text
    if text is None or tokenizer is None or isinstance(text, BagConfig):
        return settings  # no format of others has a bag of tokens; each refuses it
    text = dataclasses.replace(
        text,
        vocabulary_size=text.vocabulary_size or tokenizer.vocabulary_size,
        length=text.length or settings.data.text_length,
    )
    return dataclasses.replace(
        settings,
        model=dataclasses.replace(settings.model, text=text),
        vocabulary=tokenizer.backend,
        pad_id=tokenizer.pad_id,
        begin_id=tokenizer.begin_id,
        end_id=tokenizer.end_id,
    )


def choose(settings: Description, format_name: str) -> tuple[Family, dict[str, Any]]:
    """The first family of a format that holds the model without loss, and its files.

    Whether it does is found by reading the files again: what comes back has to be what went in.

    Raises:
      WeightsError: None does.
    """
    if format_name not in FORMATS:
        raise WeightsError(f"--format={format_name} is not known; known are {', '.join(FORMATS)}.")
    reasons = []
    for family in FORMATS[format_name]:
        assert family.files is not None
        try:
            files = family.files(settings)
            lost = _lost(settings, _read_again(family, files))
        except WeightsError as error:
            reasons.append(f"{family.name}: {str(error).rstrip('.')}")
            continue
        if not lost:
            return family, files
        reasons.append(f"{family.name}: it cannot say {'; '.join(lost)}")
    raise WeightsError(f"this model cannot be exported as {format_name}. {'. '.join(reasons)}.")


def _read_again(family: Family, files: Mapping[str, Any]) -> Description:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _write_files(folder, files)
        return family.describe(Source(folder, folder / family.weights_name))


def _lost(ours: Description, theirs: Description) -> list[str]:
    """The settings that differ between a model and what a format says of it."""
    before, after = _flat(ours), _flat(theirs)
    return [
        f"{key} = {before.get(key)!r} (it would be {after.get(key)!r})"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def _rule(data: DataConfig) -> str:
    """What is done to pictures; two names of a rule differ in the statistics that go with it."""
    names = {"clip": "shortest", "siglip": "stretch"}
    return names.get(data.preprocessing, data.preprocessing)


def _flat(settings: Description) -> dict[str, Any]:
    flat: dict[str, Any] = {"loss with a bias": settings.loss.name == "siglip"}
    data, model = settings.data, settings.model
    if model.text is not None:
        flat["data.text_length"] = data.text_length
    if model.image is not None:
        flat |= {"data.image_size": data.image_size, "data.preprocessing": _rule(data)}
        flat |= {f"data.resize.{k}": v for k, v in dataclasses.asdict(data.resize).items()}
        flat.pop("data.resize.centre")  # one pixel; each library has its own
    for key, value in dataclasses.asdict(model).items():
        if key in _TRAINING:
            continue
        if not isinstance(value, dict):
            flat[f"model.{key}"] = value
            continue
        tower = getattr(model, key)
        inner = {k: v for k, v in value.items() if k not in (*_FREE, "mlp_ratio")}
        flat |= {f"model.{key}.{k}": v for k, v in inner.items()}
        if hasattr(tower, "hidden"):
            flat[f"model.{key}.hidden"] = tower.hidden
    return {k: v for k, v in flat.items() if k.rpartition(".")[2] not in _FREE}
