"""RandAugment: a few operations, drawn evenly and anew for each picture, all of one magnitude.

Cubuk, Zoph, Shlens, Le: RandAugment, 2020. The fourteen operations are the paper's; at magnitude 10
each is as strong as the largest of AutoAugment (Cubuk et al. 2019): sheared by 0.3, moved by
150/331 of the side, turned by 30 degrees, all values above 0 inverted, 4 bits left, factors 0.1 or
1.9. Directions and signs are drawn. Here a larger magnitude is always a stronger change. (Others
count differently: 9 in torchvision is 9 of 30.)
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import UInt64
from PIL import Image, ImageEnhance, ImageOps

from contrastive.data.draws import uniform
from contrastive.data.picture_config import RandAugmentConfig

_GREY = 128, 128, 128  # comes in from outside
Operation = Callable[[Image.Image, float], Image.Image]


def rand_augment(
    images: Sequence[Image.Image], keys: UInt64[np.ndarray, " batch"], config: RandAugmentConfig
) -> list[Image.Image]:
    """``config.operations`` of :data:`OPERATIONS` on each RGB picture, one after another."""
    count, names = config.operations, list(OPERATIONS)
    chosen = (uniform(keys, "rand augment", count) * len(names)).astype(np.int64).tolist()
    signs = np.where(uniform(keys, "rand augment signs", count) < 0.5, -1.0, 1.0)
    amounts = (signs * config.magnitude / 10.0).tolist()
    out: list[Image.Image] = []
    for image, numbers, strengths in zip(images, chosen, amounts, strict=True):
        for number, strength in zip(numbers, strengths, strict=True):
            image = OPERATIONS[names[number]](image, strength)
        out.append(image)
    return out


def _affine(image: Image.Image, coefficients: tuple[float, ...]) -> Image.Image:
    return image.transform(
        image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST, fillcolor=_GREY
    )


def _rotate(image: Image.Image, x: float) -> Image.Image:
    return image.rotate(30.0 * x, Image.Resampling.NEAREST, fillcolor=_GREY)


def _solarize(image: Image.Image, x: float) -> Image.Image:
    return ImageOps.solarize(image, max(256 - round(256 * abs(x)), 0))


def _posterize(image: Image.Image, x: float) -> Image.Image:
    return ImageOps.posterize(image, max(8 - round(4 * abs(x)), 1))


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, x: kind(image).enhance(max(1.0 + 0.9 * x, 0.0))


OPERATIONS: dict[str, Operation] = {
    "identity": lambda image, x: image,
    "auto_contrast": lambda image, x: ImageOps.autocontrast(image),
    "equalize": lambda image, x: ImageOps.equalize(image),
    "rotate": _rotate,
    "solarize": _solarize,
    "color": _enhance(ImageEnhance.Color),
    "posterize": _posterize,
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "shear_x": lambda image, x: _affine(image, (1.0, 0.3 * x, 0.0, 0.0, 1.0, 0.0)),
    "shear_y": lambda image, x: _affine(image, (1.0, 0.0, 0.0, 0.3 * x, 1.0, 0.0)),
    "translate_x": lambda image, x: _affine(
        image, (1.0, 0.0, x * image.width * 150 / 331, 0.0, 1.0, 0.0)
    ),
    "translate_y": lambda image, x: _affine(
        image, (1.0, 0.0, 0.0, 0.0, 1.0, x * image.height * 150 / 331)
    ),
}
"""From a picture and a strength (1 is AutoAugment's largest, with a sign) to a picture."""
