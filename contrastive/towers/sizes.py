"""Published two-tower models as data: what the papers and the released weights say of their sizes.

The towers of :data:`CLIP` are those of Radford et al. 2021 (ViT-B/32, B/16, L/14; QuickGELU) and of
its open reproduction by Cherti et al. 2022 (ViT-S/32, S/16, H/14, g/14, G/14; GELU). The towers of
:data:`SIGLIP` are those of Zhai et al. 2023 and, for So400m, of Alabdulmohsin et al. 2023; ``g/14``
pairs the image tower of Zhai et al. 2022 with the So400m text tower, as SigLIP 2 does for its
largest model. Those of :data:`SIGLIP2` are of Tschannen et al. 2025: the same towers behind a
vocabulary of 256,000 pieces, and a giant image tower of its own. :data:`LIT` (Zhai et al. 2022)
sets a text tower beside vision transformers as Steiner et al. 2021 published them. :data:`FLIP` (Li
et al. 2023) has no norm before the first block, fixed positions and the mean of the patches, and
texts of BERT's word pieces without a causal mask. :data:`IMAGE` are image towers alone: the vision
transformers of Touvron et al. 2021 (Ti), Dosovitskiy et al. 2021 and Zhai et al. 2022, and the
ConvNeXts of Liu et al. 2022.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from contrastive.errors import ConfigError
from contrastive.towers.convnext import ConvNeXtConfig
from contrastive.towers.text import TextTransformerConfig
from contrastive.towers.two_tower import TwoTowerConfig
from contrastive.towers.vit import VisionTransformerConfig

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A model and the sizes of the data that it was published with."""

    model: TwoTowerConfig
    image_size: int  # pixels a side
    text_length: int  # tokens
    vocabulary_size: int
    parameters: float | None  # millions, as published for these sizes; None: not published
    # Billions of operations of one image and of one text, a multiplication and an addition being
    # two, as published (open_clip's model profile; of image towers that it does not list, twice the
    # multiplications of timm's); None: not published
    flops: tuple[float | None, float | None] = (None, None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedImage:
    """An image tower alone, as it was published with a classifier of 1,000 classes behind it."""

    image: VisionTransformerConfig | ConvNeXtConfig
    width: int  # of its rows
    image_size: int = 224  # pixels a side
    parameters: float  # millions, with the classifier
    multiplications: float  # billions, of one image

    @property
    def model(self) -> TwoTowerConfig:
        """The tower for pairs of views."""
        return TwoTowerConfig(image=self.image, text=None, embedding_dim=self.width)


# width, depth, heads, hidden units of the MLP
_SHAPES = {
    "text-384": (384, 12, 6, 1536),
    "text-512": (512, 12, 8, 2048),
    "text-768": (768, 12, 12, 3072),
    "text-1024": (1024, 24, 16, 4096),
    "text-1280": (1280, 32, 20, 5120),
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
    "So400m": (1152, 27, 16, 4304),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
    "g-opt": (1536, 40, 16, 6144),
}


def _shape(name: str) -> dict:
    width, depth, heads, hidden = _SHAPES[name]
    return {"width": width, "depth": depth, "heads": heads, "mlp_ratio": hidden / width}


def _clip(
    image: str,
    patch: int,
    text: str,
    dim: int,
    parameters: float,
    flops: tuple[float, float],
    *,
    openai: bool = False,
) -> Published:
    common = {"activation": "quick_gelu" if openai else "gelu", "init": "clip", "epsilon": 1e-5}
    vision = VisionTransformerConfig(
        **_shape(image), **common, patch_size=patch, pooling="cls", pre_norm=True, patch_bias=False
    )
    return Published(
        model=TwoTowerConfig(
            image=vision,
            text=TextTransformerConfig(**_shape(text), **common, causal=True, pooling="last"),
            embedding_dim=dim,
            pixel_mean=(0.48145466, 0.4578275, 0.40821073),
            pixel_std=(0.26862954, 0.26130258, 0.27577711),
        ),
        image_size=224,
        text_length=77,
        vocabulary_size=49_408,
        parameters=parameters,
        flops=flops,
    )


def _siglip(
    image: str,
    patch: int,
    text: str,
    parameters: float | None,
    flops: tuple[float | None, float | None] = (None, None),
    *,
    image_size: int = 224,
    text_length: int = 64,
    vocabulary_size: int = 32_000,
) -> Published:
    common = {"activation": "gelu_tanh", "init": "siglip", "epsilon": 1e-6}
    vision = VisionTransformerConfig(
        **_shape(image), **common, patch_size=patch, pooling="map", projection="none"
    )
    return Published(
        model=TwoTowerConfig(
            image=vision,
            text=TextTransformerConfig(
                **_shape(text), **common, padding="read", pooling="last", projection="bias"
            ),
            embedding_dim=vision.width,
        ),
        image_size=image_size,
        text_length=text_length,
        vocabulary_size=vocabulary_size,
        parameters=parameters,
        flops=flops,
    )


def _vit(name: str, patch: int, parameters: float, multiplications: float) -> PublishedImage:
    image = VisionTransformerConfig(
        **_shape(name), patch_size=patch, pooling="cls", init="siglip", epsilon=1e-6,
        projection="none",
    )  # fmt: skip
    return PublishedImage(
        image=image, width=image.width, parameters=parameters, multiplications=multiplications
    )


def _convnext(
    width: int, depths: tuple[int, ...], parameters: float, multiplications: float
) -> PublishedImage:
    widths = tuple(width * 2**i for i in range(4))
    return PublishedImage(
        image=ConvNeXtConfig(widths=widths, depths=depths, projection="none"),
        width=widths[-1],
        parameters=parameters,
        multiplications=multiplications,
    )


def _siglip2(image: str, text: str, parameters: float, flops: tuple[float, float]) -> Published:
    return _siglip(image, 16, text, parameters, flops, image_size=256, vocabulary_size=256_000)


def _lit(size: str, flops: float) -> Published:
    vision = VisionTransformerConfig(
        **_shape(size), activation="gelu", init="siglip", epsilon=1e-12, patch_size=16,
        pooling="cls",
    )  # fmt: skip
    text = TextTransformerConfig(
        **_shape(size), activation="gelu", init="siglip", epsilon=1e-6, padding="read",
        pooling="last",
    )  # fmt: skip
    return Published(
        model=TwoTowerConfig(image=vision, text=text, embedding_dim=vision.width),
        image_size=224,
        text_length=16,
        vocabulary_size=32_000,
        parameters=None,
        flops=(flops, None),
    )


def _flip(image: str, patch: int, text: str, dim: int, flops: float | None = None) -> Published:
    common = {"activation": "gelu", "init": "clip", "epsilon": 1e-6}
    return Published(
        model=TwoTowerConfig(
            image=VisionTransformerConfig(
                **_shape(image), **common, patch_size=patch, pooling="mean", positions="sine"
            ),
            text=TextTransformerConfig(**_shape(text), **common, pooling="cls"),
            embedding_dim=dim,
            pixel_mean=(0.48145466, 0.4578275, 0.40821073),
            pixel_std=(0.26862954, 0.26130258, 0.27577711),
        ),
        image_size=224,
        text_length=32,
        vocabulary_size=30_522,
        parameters=None,
        flops=(None, flops),
    )


CLIP = {
    "S/32": _clip("S", 32, "text-384", 384, 63.09, (2.29, 3.38)),
    "S/16": _clip("S", 16, "text-384", 384, 62.26, (9.2, 3.38)),
    "B/32": _clip("B", 32, "text-512", 512, 151.28, (8.82, 5.96), openai=True),
    "B/16": _clip("B", 16, "text-512", 512, 149.62, (35.13, 5.96), openai=True),
    "L/14": _clip("L", 14, "text-768", 768, 427.62, (162.03, 13.3), openai=True),
    "H/14": _clip("H", 14, "text-1024", 1024, 986.11, (334.59, 47.09)),
    "g/14": _clip("g", 14, "text-1024", 1024, 1366.68, (534.06, 47.09)),
    "G/14": _clip("G", 14, "text-1280", 1280, 2539.57, (967.5, 97.86)),
}
"""Softmax models, by image tower."""

SIGLIP = {
    "B/16": _siglip("B", 16, "B", 203.16, (35.42, 11.02)),
    "L/16": _siglip("L", 16, "L", 652.15, (162.56, 39.06), image_size=256),
    "So400m/14": _siglip("So400m", 14, "So400m", 877.36, (220.35, 13.19), text_length=16),
    "g/14": _siglip("g", 14, "So400m", None, (None, 53.13), text_length=64),
}
"""Sigmoid models, by image tower."""

IMAGE = {
    "ViT-Ti/16": _vit("Ti", 16, 5.72, 1.26),
    "ViT-S/16": _vit("S", 16, 22.05, 4.61),
    "ViT-B/16": _vit("B", 16, 86.57, 17.58),
    "ViT-L/16": _vit("L", 16, 304.33, 61.6),
    "ViT-H/14": _vit("H", 14, 632.05, 167.4),
    "ViT-g/14": _vit("g", 14, 1012.61, 267.18),
    "ViT-G/14": _vit("G", 14, 1844.44, 483.95),
    "ConvNeXt-T": _convnext(96, (3, 3, 9, 3), 28.6, 4.5),
    "ConvNeXt-S": _convnext(96, (3, 3, 27, 3), 50.2, 8.7),
    "ConvNeXt-B": _convnext(128, (3, 3, 27, 3), 88.6, 15.4),
    "ConvNeXt-L": _convnext(192, (3, 3, 27, 3), 197.8, 34.4),
    "ConvNeXt-XL": _convnext(256, (3, 3, 27, 3), 350.2, 60.9),
}
"""Image towers alone. The numbers of the ConvNeXts are those of their paper, to one decimal."""

SIGLIP2 = {
    "B/16": _siglip2("B", "B", 375.23, (46.82, 11.02)),
    "L/16": _siglip2("L", "L", 881.53, (162.56, 39.06)),
    "So400m/16": _siglip2("So400m", "So400m", 1135.67, (220.62, 53.13)),
    "g-opt/16": _siglip2("g-opt", "So400m", 1871.39, (599.32, 53.13)),
}
"""The second generation of them."""

LIT = {"B/16": _lit("B", 35.13), "L/16": _lit("L", 123.11)}
"""Text towers for image towers that are there already; these have a projection that is new. The
operations are those of the image tower, as open_clip lists it with a projection."""

FLIP = {
    "B/16": _flip("B", 16, "text-512", 512),
    "L/16": _flip("L", 16, "text-768", 768, 5.47),
    "L/14": _flip("L", 14, "text-768", 768, 5.47),
    "H/14": _flip("H", 14, "text-1024", 1024, 19.43),
}
"""Softmax models whose image tower sees a share of the patches in training. The operations of their
texts are those that open_clip lists for CLIPA's, which have the same towers and length."""


def frugal(model: TwoTowerConfig) -> TwoTowerConfig:
    """The same model, computed in bfloat16 and keeping only what enters each block."""
    assert isinstance(model.image, VisionTransformerConfig)
    assert isinstance(model.text, TextTransformerConfig)
    return dataclasses.replace(
        model,
        dtype="bfloat16",
        image=dataclasses.replace(model.image, remat="full"),
        text=dataclasses.replace(model.text, remat="full"),
    )


def published(family: Mapping[str, T], name: str) -> T:
    """The entry called ``name``.

    Raises:
      ConfigError: There is none; the message lists those that there are.
    """
    if name not in family:
        raise ConfigError(f"there is no published model {name!r}; known are {', '.join(family)}.")
    return family[name]
