"""What the folders of Hugging Face's transformers library have in common: how pictures are prepared
and texts are cut, and the names of activations and blocks. Read and written."""

import dataclasses
import json
import pathlib
import re
import string
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from contrastive.data.config import DataConfig
from contrastive.data.picture_config import ResizeConfig
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.tokenizer import Tokenizer
from contrastive.data.transforms import PIXEL_STATISTICS, STRETCHES, TAKES_MIDDLE
from contrastive.data.vocabulary import read_vocabulary
from contrastive.errors import WeightsError
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import TwoTowerConfig
from contrastive.towers.layers import Activation

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}
BLOCK = {
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.out_proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
HALF = (0.5, 0.5, 0.5)
"""The statistics of pixels that are brought to -1 … 1."""


# --- Architecture -----------------------------------------------------------------------------


def activation(settings: Settings, default: str, key: str = "hidden_act") -> Activation:
    """Our name of the activation.

    Raises:
      WeightsError: It is another one than this project has.
    """
    name = settings.get(key, default)
    if name not in ACTIVATIONS:
        raise WeightsError(
            f"{settings.where}: {key} = {name!r} is not known here; known are "
            f"{', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def shape(settings: Settings, *, width: int, hidden: int, depth: int, heads: int) -> dict[str, Any]:
    """Width, depth, heads and MLP of a transformer; the arguments are the library's defaults."""
    w = settings.count("hidden_size", width)
    return {
        "width": w,
        "depth": settings.count("num_hidden_layers", depth),
        "heads": settings.count("num_attention_heads", heads),
        "mlp_ratio": settings.count("intermediate_size", hidden) / w,
    }


def shape_of(config: Any) -> dict[str, Any]:
    """:func:`shape` backwards, with activation and epsilon."""
    return {
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "layer_norm_eps": config.epsilon,
        "attention_dropout": 0.0,
    }


def square(settings: Settings, key: str, default: int) -> int:
    """A size that may be written as one number or as two equal ones."""
    value = settings.values.get(key, default)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    if type(value) is not int or value < 1:
        raise WeightsError(f"{settings.where}: {key} = {value!r}; a square is expected.")
    return value


# --- Pictures ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pictures:
    """How pictures are prepared: settings of the data and statistics of the model."""

    data: dict[str, Any]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def pictures(source: Source, size: int, defaults: Mapping[str, Any]) -> Pictures:
    """What ``preprocessor_config.json`` says; the library's defaults for what it does not say.

    Raises:
      WeightsError: It contradicts the size of the model, or asks for a rule that is not known here.
    """
    file = "preprocessor_config.json"
    given = source.json(file)
    if given is None:
        file = "processor_config.json"
        given = (source.json(file) or {}).get("image_processor")
    where = str(source.folder / file)
    values = {**defaults, **(given or {})}
    known = Settings({k: v for k, v in values.items() if v is not None}, where)
    factor = known.get("rescale_factor", 1 / 255)
    if not known.get("do_rescale", True) or abs(factor * 255 - 1) > 1e-6:
        raise WeightsError(f"{where}: pixels are not divided by 255, which is all that is known.")
    if not known.get("do_resize", True):
        raise WeightsError(f"{where}: do_resize is false; pictures of any size are expected.")
    method = known.get("resample", 3)
    if method not in _RESAMPLING:
        raise WeightsError(f"{where}: resample = {method} is not known here.")
    stretched, share = _geometry(known, size)
    mean, std = _statistics(known)
    return Pictures(
        {
            "preprocessing": rule(stretched=stretched, mean=mean, std=std),
            "resize": ResizeConfig(
                interpolation=_RESAMPLING[method],  # pyright: ignore[reportArgumentType]
                share=share,
                centre="round" if stretched else "floor",
            ),
        },
        mean,
        std,
    )


def rule(*, stretched: bool, mean: tuple[float, ...], std: tuple[float, ...]) -> str:
    """Our name of a rule: that of a published model, where the statistics are its own."""
    name = "siglip" if stretched else "clip"
    if (mean, std) == PIXEL_STATISTICS[name]:
        return name
    return "stretch" if stretched else "shortest"


def _geometry(known: Settings, size: int) -> tuple[bool, float]:
    """Whether pictures are stretched, and else the share of the middle."""
    resized, cropped = known.values.get("size"), known.values.get("crop_size")
    crops = known.get("do_center_crop", False)
    if isinstance(resized, int):
        resized = {"shortest_edge": resized} if crops else {"height": resized, "width": resized}
    if isinstance(cropped, int):
        cropped = {"height": cropped, "width": cropped}
    short = resized.get("shortest_edge") if isinstance(resized, dict) else None
    crop_share = known.values.get("crop_pct")  # ConvNeXt's processor, which ResNets use
    if short is not None and crop_share is not None:
        if short >= 384:  # as that processor does, larger pictures are stretched
            crops, resized, short = False, {"height": short, "width": short}, None
        else:
            crops, cropped = True, {"height": short, "width": short}
            short = short / crop_share
    wanted = {"height": size, "width": size}
    if short is not None and crops and cropped == wanted and short >= size:
        return False, size / short
    if resized == wanted and (not crops or cropped == wanted):
        return True, 1.0
    raise WeightsError(
        f"{known.where}: pictures are resized to {resized}"
        + (f" and cropped to {cropped}" if crops else "")
        + f"; the model takes {size} x {size}. Known here are: the shorter side resized and the "
        "middle cropped to that size, or stretched to it."
    )


def _statistics(known: Settings) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    if not known.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return known.three("image_mean", ()), known.three("image_std", ())


def pixels_of(data: DataConfig, model: TwoTowerConfig, processor: str) -> dict[str, Any]:
    """What every processor says: how pixels are resampled and normalised."""
    numbers = {name: number for number, name in _RESAMPLING.items()}
    return {
        "image_processor_type": processor,
        "do_resize": True,
        "resample": numbers[data.resize.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(model.pixel_mean),
        "image_std": list(model.pixel_std),
    }


def pictures_of(data: DataConfig, model: TwoTowerConfig, processor: str) -> dict[str, Any]:
    """:func:`pictures` backwards.

    Raises:
      WeightsError: The rule is one that the library does not have.
    """
    size, how = data.image_size, data.resize
    square = {"height": size, "width": size}
    common = pixels_of(data, model, processor) | {"do_convert_rgb": True}
    if data.preprocessing in TAKES_MIDDLE:
        short = int(size / how.share + 1e-6)
        crop = {"do_center_crop": True, "crop_size": square, "size": {"shortest_edge": short}}
        return common | crop
    if data.preprocessing in STRETCHES:
        return common | {"do_center_crop": False, "size": square}
    raise WeightsError(
        f"config.data.preprocessing = {data.preprocessing!r} is no rule of this format; the model "
        "was trained with the middle square, resized. Its pictures cannot be prepared there."
    )


# --- Texts ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Texts:
    """The tokenizer of a folder and its markers; without one, both are empty."""

    vocabulary: tokenizers.Tokenizer | None = None
    config: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)


def texts(source: Source) -> Texts:
    """What ``tokenizer.json`` (or ``vocab.json`` with ``merges.txt``, or ``spiece.model``) and
    ``tokenizer_config.json`` say.

    Raises:
      DataError: A file is damaged.
    """
    config = source.json("tokenizer_config.json") or {}
    more = source.json("special_tokens_map.json") or {}
    kind = str(config.get("tokenizer_class", ""))
    folder = source.folder
    if kind.startswith(("Siglip2", "Gemma")):
        preset = "siglip2"
    else:
        preset = "siglip_transformers" if kind.startswith("SiglipT") else None
    markers = TokenizerConfig(preset=preset, path="tokenizer.json")
    if preset == "siglip_transformers" and (folder / "spiece.model").is_file():
        return Texts(read_vocabulary(folder / "spiece.model", None), markers)
    file = folder / "tokenizer.json"
    if file.is_file():
        backend = read_vocabulary(file, None)
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        backend = _clip_pieces(source)
    else:
        return Texts()
    if preset is not None:
        return Texts(backend, markers)
    begin, end, pad = (
        token_name(config.get(f"{name}_token", more.get(f"{name}_token")))
        for name in ("bos", "eos", "pad")
    )
    markers = TokenizerConfig(
        path="tokenizer.json", begin_token=begin, end_token=end, pad_token=pad
    )
    return Texts(backend, markers)


def token_name(value: Any) -> str | None:
    """A token, written as its name or as an object with its ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _clip_pieces(source: Source) -> tokenizers.Tokenizer:
    """CLIP's two files, as the library reads them: without the repairs of OpenAI's own code."""
    vocabulary = source.json("vocab.json") or {}
    lines = (source.folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#v")]
    if any(len(pair) != 2 for pair in pairs):
        raise WeightsError(f"{source.folder / 'merges.txt'} is damaged: a line is not a pair.")
    end = "<|endoftext|>"
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=pairs,  # pyright: ignore[reportArgumentType]
            end_of_word_suffix="</w>",
            unk_token=end,
        )
    )
    parts: list[Any] = [normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " ")]
    backend.normalizer = normalizers.Sequence([*parts, normalizers.Lowercase()])  # pyright: ignore[reportAttributeAccessIssue]
    words = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d"
    words += r"|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    backend.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(tokenizers.Regex(words), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.add_special_tokens(["<|startoftext|>", end])
    return backend


def write_texts(folder: pathlib.Path, tokenizer: Tokenizer, tokenizer_class: str) -> None:
    """Writes ``tokenizer.json`` with the markers and the form of the texts in it, and
    ``tokenizer_config.json``, so that the library gives the same ids."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    ids = {"begin": tokenizer.begin_id, "end": tokenizer.end_id, "pad": tokenizer.pad_id}
    names = {k: backend.id_to_token(i) for k, i in ids.items() if i is not None}
    single = [names.get("begin"), "$A", names.get("end")]
    backend.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=" ".join(part for part in single if part is not None),
        special_tokens=[(names[k], ids[k]) for k in ("begin", "end") if k in names],
    )
    steps = _form_steps(tokenizer)
    if steps:
        before = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([*steps, *before])  # pyright: ignore[reportAttributeAccessIssue]
    backend.save(str(folder / "tokenizer.json"), pretty=False)
    suffix = getattr(backend.model, "end_of_word_suffix", None)
    if tokenizer_class == "CLIPTokenizer" and suffix != "</w>":
        tokenizer_class = "PreTrainedTokenizerFast"  # words of another vocabulary in CLIP's towers
    config = {
        "tokenizer_class": tokenizer_class,
        "model_max_length": tokenizer.length,
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        "pad_token": names["pad"],
    }
    config |= {"truncation_side": "left"} if tokenizer.cuts_left else {}
    config |= {"bos_token": names["begin"]} if "begin" in names else {}
    config |= {"eos_token": names["end"]} if "end" in names else {}
    if tokenizer.unknown_id is not None:
        config["unk_token"] = backend.id_to_token(tokenizer.unknown_id)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _form_steps(tokenizer: Tokenizer) -> list[Any]:
    """The form of a preset as steps of a normalizer, as far as they can say it."""
    spaces = [normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Strip()]
    if tokenizer.preset not in (None, "clip", "bert", "siglip2"):
        marks = f"[{re.escape(string.punctuation)}]"
        blank = "" if tokenizer.preset == "siglip_transformers" else " "
        under = [normalizers.Replace("_", blank)]
        marks_out = normalizers.Replace(tokenizers.Regex(marks), "")
        return [*under, marks_out, normalizers.Lowercase(), *spaces]
    if tokenizer.preset == "siglip2":
        return [normalizers.Lowercase()]
    if tokenizer.preset == "clip":
        return [normalizers.NFC(), *spaces, normalizers.Lowercase()]
    return []
