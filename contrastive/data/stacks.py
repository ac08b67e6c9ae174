"""The augmentation stacks of SimCLR and MoCo, picture by picture, on Pillow.

A stack is a random part of the picture (taken when it is read), a mirror image, colour jitter in
random order, loss of colour, blur and solarization, each for a share of the pictures. Brightness,
contrast and saturation are Pillow's enhancements and the hue is shifted in its 8-bit HSV, as in
MoCo's code; every random number comes from the example's key (:mod:`contrastive.data.draws`).

References:
  Chen, Kornblith, Norouzi, Hinton: A simple framework for contrastive learning of visual
  representations, 2020, appendix A. He et al.: Momentum contrast, 2020. Chen, Fan, Girshick, He:
  Improved baselines with momentum contrastive learning, 2020. Chen, Xie, He: An empirical study of
  training self-supervised vision transformers, 2021.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt64
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from contrastive.data.draws import uniform

_SIGMA = 0.1, 2.0  # of the blur, in pixels
_LARGEST_HUE = 0.5  # half of the circle


class Stack(NamedTuple):
    """What a method does to its views.

    Attributes:
      area: Share of the picture's area that a view shows.
      jitter: Share of views whose colours are changed.
      brightness, contrast, saturation: Factors are drawn from 1 - x to 1 + x, and not below 0.
      hue: Turned by up to this share of the circle, each way.
      grayscale: Share of views that lose their colour.
      blur, solarize: Shares of views that are blurred, or inverted where they are bright: of the
        first view and of the second.
      flip: Share of views that are mirrored.
    """

    area: tuple[float, float]
    jitter: float
    brightness: float
    contrast: float
    saturation: float
    hue: float
    grayscale: float = 0.2
    blur: tuple[float, float] = (0.0, 0.0)
    solarize: tuple[float, float] = (0.0, 0.0)
    flip: float = 0.5

    def scaled(self, strength: float, *, blur: bool) -> "Stack":
        """The same with ``strength`` times the colour jitter, and with blur or without."""
        return self._replace(
            brightness=strength * self.brightness,
            contrast=strength * self.contrast,
            saturation=strength * self.saturation,
            hue=min(strength * self.hue, _LARGEST_HUE),
            blur=self.blur if blur else (0.0, 0.0),
        )


STACKS = {
    "simclr": Stack((0.08, 1.0), 0.8, 0.8, 0.8, 0.8, 0.2, blur=(0.5, 0.5)),
    "moco_v1": Stack((0.2, 1.0), 1.0, 0.4, 0.4, 0.4, 0.4),
    "moco_v2": Stack((0.2, 1.0), 0.8, 0.4, 0.4, 0.4, 0.1, blur=(0.5, 0.5)),
    "moco_v3": Stack((0.08, 1.0), 0.8, 0.4, 0.4, 0.2, 0.1, blur=(1.0, 0.1), solarize=(0.0, 0.2)),
}
"""By name. In "moco_v3" the two views differ; its area is the one for vision transformers."""


def mirror(
    images: Sequence[Image.Image], keys: UInt64[np.ndarray, " batch"], stack: Stack
) -> list[Image.Image]:
    """Mirrors a share of the pictures."""
    mirrored = (uniform(keys, "stack flip", 1)[:, 0] < stack.flip).tolist()
    return [ImageOps.mirror(im) if yes else im for im, yes in zip(images, mirrored, strict=True)]


def change_colours(
    images: Sequence[Image.Image],
    keys: UInt64[np.ndarray, " batch"],
    stack: Stack,
    view: int,
) -> list[Image.Image]:
    """Jitter, loss of colour, blur, solarization.

    Args:
      images: RGB pictures.
      keys: One each.
      stack: How much.
      view: 0 or 1: which of the two shares of ``blur`` and ``solarize`` counts.
    """
    shares = stack.jitter, stack.grayscale, stack.blur[view], stack.solarize[view]
    chosen = (uniform(keys, "stack", 4) < np.array(shares)).tolist()
    ranks = uniform(keys, "stack order", 4).argsort(axis=1).tolist()
    factors = uniform(keys, "stack factors", 4)
    sigmas = _SIGMA[0] + (_SIGMA[1] - _SIGMA[0]) * uniform(keys, "stack blur", 1)[:, 0]
    out: list[Image.Image] = []
    for i, image in enumerate(images):
        jittered, grey, blurred, solarized = chosen[i]
        if jittered:
            image = jitter(image, ranks[i], jitter_factors(factors[i], stack))
        if grey:
            image = image.convert("L").convert("RGB")
        if blurred:
            image = image.filter(ImageFilter.GaussianBlur(float(sigmas[i])))
        if solarized:
            image = ImageOps.solarize(image, 128)
        out.append(image)
    return out


def jitter_factors(u: np.ndarray, stack: Stack) -> list[float]:
    """Factors of brightness, contrast and saturation, and the turn of the hue, from numbers in
    [0, 1)."""
    strengths = stack.brightness, stack.contrast, stack.saturation
    found = [
        max(1.0 - s, 0.0) + float(x) * (1.0 + s - max(1.0 - s, 0.0))
        for x, s in zip(u[:3], strengths, strict=True)
    ]
    return [*found, stack.hue * (2.0 * float(u[3]) - 1.0)]


def jitter(image: Image.Image, order: Sequence[int], factors: Sequence[float]) -> Image.Image:
    """Brightness (0), contrast (1), saturation (2) and hue (3), in the order given."""
    for change in order:
        factor = factors[change]
        if change == 0:
            image = ImageEnhance.Brightness(image).enhance(factor)
        elif change == 1:
            image = ImageEnhance.Contrast(image).enhance(factor)
        elif change == 2:
            image = ImageEnhance.Color(image).enhance(factor)
        elif factor:
            image = turn_hue(image, factor)
    return image


def turn_hue(image: Image.Image, turn: float) -> Image.Image:
    """Colours moved around the circle of hues by this share of it; saturation and value stay."""
    hue, saturation, value = image.convert("HSV").split()
    step = round(255 * turn) % 256
    hue = hue.point([(h + step) % 256 for h in range(256)])
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")
