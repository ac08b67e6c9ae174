"""SigLIP and LiT as big_vision saves them: an ``.npz`` of a Flax tree, ``params/img/…`` and
``params/txt/…``.

No configuration comes with it, and none is needed: the shapes say every size, the number of heads
too. What they cannot say is the same in all of these models: GELU in its tanh form, epsilon 1e-6,
pictures stretched by bilinear interpolation, statistics of a half. The vocabulary (``spiece.model``
or ``tokenizer.json``) has to lie beside the file. Blocks are either numbered or stacked.
"""

import math
import re
from typing import Any

from contrastive.data.config import DataConfig
from contrastive.data.picture_config import ResizeConfig
from contrastive.errors import WeightsError
from contrastive.objectives import LossConfig
from contrastive.pretrained import huggingface
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Source
from contrastive.pretrained.tensors import Tensors
from contrastive.towers import TextTransformerConfig, TwoTowerConfig, VisionTransformerConfig

_IMAGE, _TEXT = "params/img/", "params/txt/"
_IMAGE_BLOCK = f"{_IMAGE}Transformer/encoderblock_{{}}/"
_TEXT_BLOCK = f"{_TEXT}Encoder_0/encoderblock_{{}}/"


def tensors(source: Source) -> Tensors:
    """The arrays, blocks numbered."""
    out: Tensors = {}
    for name, array in source.tensors.items():
        if "/encoderblock/" not in name or not array.ndim:
            out[name] = array
            continue
        for i, part in enumerate(array):
            out[name.replace("/encoderblock/", f"/encoderblock_{i}/")] = part
    return out


def _recognises(source: Source) -> bool:
    return source.weights.suffix == ".npz" and f"{_IMAGE}embedding/kernel" in source.tensors


def _shape(arrays: Tensors, name: str, ndim: int) -> tuple[int, ...]:
    """The shape of a tensor.

    Raises:
      WeightsError: It is not there, is empty, or has another number of dimensions.
    """
    found = arrays.get(name)
    if found is None or found.ndim != ndim or not found.size:
        shape = "missing" if found is None else f"of shape {list(found.shape)}"
        raise WeightsError(f"the tensors are not those of big_vision: {name} is {shape}.")
    return found.shape


def _sizes(arrays: Tensors, block: str) -> dict[str, Any]:
    """Width, depth, heads and hidden units of a tower, from its blocks."""
    width, hidden = _shape(arrays, f"{block.format(0)}MlpBlock_0/Dense_0/kernel", 2)
    attention = f"{block.format(0)}MultiHeadDotProductAttention_0/query/kernel"
    pattern = re.compile(re.escape(block).replace(r"\{\}", r"(\d+)") + ".*")
    numbers = {int(match[1]) for name in arrays if (match := pattern.fullmatch(name))}
    return {
        "width": width,
        "depth": max(numbers) + 1,
        "heads": _shape(arrays, attention, 3)[1],
        "mlp_ratio": hidden / width,
    }


def _describe(source: Source) -> Description:
    arrays = tensors(source)
    patch, other, colours, _ = _shape(arrays, f"{_IMAGE}embedding/kernel", 4)
    places = _shape(arrays, f"{_IMAGE}pos_embedding", 3)[1]
    side = math.isqrt(places)
    if patch != other or colours != 3 or side * side != places:
        raise WeightsError(
            f"{source.weights}: patches of {patch} x {other} pixels with {colours} colours on "
            f"{places} places; squares of three colours on a square are expected."
        )
    pooled = f"{_IMAGE}MAPHead_0/probe" in arrays
    headed = f"{_IMAGE}head/kernel" in arrays
    common = {"activation": "gelu_tanh", "epsilon": 1e-6, "init": "siglip"}
    text = TextTransformerConfig(
        **_sizes(arrays, _TEXT_BLOCK),
        **common,
        vocabulary_size=_shape(arrays, f"{_TEXT}Embed_0/embedding", 2)[0],
        length=_shape(arrays, f"{_TEXT}pos_embedding", 3)[1],
        padding="read",
        pooling="last",
        projection="bias",
    )
    read = huggingface.texts(source)
    return Description(
        data=DataConfig(
            image_size=side * patch,
            text_length=text.length,
            preprocessing="siglip",
            resize=ResizeConfig(interpolation="bilinear"),
            tokenizer=read.config,
        ),
        model=TwoTowerConfig(
            image=VisionTransformerConfig(
                **_sizes(arrays, _IMAGE_BLOCK),
                **common,
                patch_size=patch,
                pooling="map" if pooled else "mean",
                projection="bias" if headed else "none",
            ),
            text=text,
            embedding_dim=_shape(arrays, f"{_TEXT}head/kernel", 2)[1],
            pixel_mean=huggingface.HALF,
            pixel_std=huggingface.HALF,
        ),
        loss=LossConfig(name="siglip" if "params/b" in arrays else "clip"),
        vocabulary=read.vocabulary,
        pad_id=1,
    )


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}/kernel", f"{theirs}/kernel"), Rule(f"{ours}/bias", f"{theirs}/bias")]


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}/scale", f"{theirs}/scale"), Rule(f"{ours}/bias", f"{theirs}/bias")]


def _attention(ours: str, theirs: str) -> list[Rule]:
    each = [f"{theirs}/{name}" for name in ("query", "key", "value")]
    kernels, biases = (tuple(f"{n}/{what}" for n in each) for what in ("kernel", "bias"))
    return [
        Rule(f"{ours}/qkv", kernels, "w t h k -> t w h k"),
        Rule(f"{ours}/qkv_bias", biases),
        Rule(f"{ours}/out", f"{theirs}/out/kernel"),
        Rule(f"{ours}/out_bias", f"{theirs}/out/bias"),
    ]


def _mlp(ours: str, theirs: str) -> list[Rule]:
    return [
        *_dense(f"{ours}/up", f"{theirs}/Dense_0"),
        *_dense(f"{ours}/down", f"{theirs}/Dense_1"),
    ]


def _blocks(ours: str, theirs: str) -> list[Rule]:
    return [
        *_norm(f"{ours}/norm1", f"{theirs}LayerNorm_0"),
        *_attention(f"{ours}/attention", f"{theirs}MultiHeadDotProductAttention_0"),
        *_norm(f"{ours}/norm2", f"{theirs}LayerNorm_1"),
        *_mlp(f"{ours}/mlp", f"{theirs}MlpBlock_0"),
    ]


def _rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, VisionTransformerConfig)
    sizes = {"p": image.patch_size, "q": image.patch_size, "c": 3}
    head, pool = f"{_IMAGE}MAPHead_0", "image/head"
    rules = [
        Rule("image/patches/kernel", f"{_IMAGE}embedding/kernel", "(p q c) w -> p q c w", sizes),
        Rule("image/patches/bias", f"{_IMAGE}embedding/bias"),
        Rule("image/positions", f"{_IMAGE}pos_embedding", "n w -> 1 n w"),
        *_blocks("image/transformer/blocks", _IMAGE_BLOCK),
        *_norm("image/norm", f"{_IMAGE}Transformer/encoder_norm"),
    ]
    if image.pooling == "map":
        rules += [
            Rule(f"{pool}/query", f"{head}/probe", "n w -> 1 n w"),
            *_attention(f"{pool}/attention", f"{head}/MultiHeadDotProductAttention_0"),
            *_norm(f"{pool}/norm", f"{head}/LayerNorm_0"),
            *_mlp(f"{pool}/mlp", f"{head}/MlpBlock_0"),
        ]
    if image.projection == "bias":
        rules += _dense("image/projection", f"{_IMAGE}head")
    rules += [
        Rule("text/tokens", f"{_TEXT}Embed_0/embedding"),
        Rule("text/positions", f"{_TEXT}pos_embedding", "n w -> 1 n w"),
        *_blocks("text/transformer/blocks", _TEXT_BLOCK),
        *_norm("text/norm", f"{_TEXT}Encoder_0/encoder_norm"),
        *_dense("text/projection", f"{_TEXT}head"),
        Rule("log_scale", "params/t", "-> 1"),
    ]
    return [*rules, Rule("bias", "params/b", "-> 1")] if settings.loss.name == "siglip" else rules


FAMILY = Family(
    name="big_vision",
    recognises=_recognises,
    describe=_describe,
    rules=_rules,
    tensors=tensors,
    resampling="bilinear_corners",
)
