"""Random changes to training pictures: geometry one by one, colours over the whole batch at once.

Every field of :class:`~contrastive.data.picture_config.AugmentConfig` is a strength; 0 switches it
off. With all of them off, a training picture has exactly the pixels of evaluation. Random numbers
come from the examples' keys (:mod:`contrastive.data.draws`), one stream a transform.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32, Float64, UInt8, UInt64
from PIL import Image

from contrastive.data import stacks
from contrastive.data.draws import uniform
from contrastive.data.picture_config import AugmentConfig, CropConfig, RandAugmentConfig
from contrastive.data.rand_augment import rand_augment

Picture: TypeAlias = Image.Image | UInt8[np.ndarray, "height width 3"]
"""RGB, before augmentation: as it comes from whatever has decoded it."""
_TRIES = 10  # at a random part
_LUMA = np.array([0.299, 0.587, 0.114])


def augment(
    images: Sequence[Picture],
    keys: UInt64[np.ndarray, " batch"],
    config: AugmentConfig,
    image_size: int,
    rand: RandAugmentConfig | None = None,
) -> UInt8[np.ndarray, "batch height width 3"]:
    """Square RGB pictures to a batch of training pixels; ``rand`` works between geometry and
    colours."""
    if config.geometric:
        coefficients = affine_coefficients(keys, config)
        images = [
            move(im, c, image_size) for im, c in zip(as_images(images), coefficients, strict=True)
        ]
    if rand is not None and rand.operations:
        images = rand_augment(as_images(images), keys, rand)
    pixels = _pixels(images)
    if config.blur:
        blur(pixels, keys, config.blur)
    if any((config.brightness, config.contrast, config.saturation, config.hue, config.grayscale)):
        pixels = jitter_colours(pixels, keys, config)
    if config.cutout:
        cut_out(pixels, keys, config.cutout)
    return pixels


def augment_as(
    stack: stacks.Stack,
    images: Sequence[Picture],
    keys: UInt64[np.ndarray, " batch"],
    rand: RandAugmentConfig | None = None,
    view: int = 0,
) -> UInt8[np.ndarray, "batch height width 3"]:
    """:func:`augment` as a published method does it, on random parts of pictures."""
    images = stacks.mirror(as_images(images), keys, stack)
    if rand is not None and rand.operations:
        images = rand_augment(images, keys, rand)
    return _pixels(stacks.change_colours(images, keys, stack, view))


def augment_in_proportion(
    images: Sequence[Image.Image],
    keys: UInt64[np.ndarray, " batch"],
    config: AugmentConfig,
    rand: RandAugmentConfig | None = None,
) -> list[UInt8[np.ndarray, "height width 3"]]:
    """:func:`augment` of pictures of any sizes, which they keep."""
    if config.geometric:
        coefficients = affine_coefficients(keys, config)
        images = [move_in_proportion(im, c) for im, c in zip(images, coefficients, strict=True)]
    still = dataclasses.replace(config, zoom=0.0, stretch=0.0, shift=0.0, rotate=0.0, flip=0.0)
    return [
        augment([image], keys[i : i + 1], still, image.width, rand)[0]
        for i, image in enumerate(images)
    ]


def as_images(pictures: Sequence[Picture]) -> list[Image.Image]:
    """For what works on Pillow's images."""
    return [x if isinstance(x, Image.Image) else Image.fromarray(x) for x in pictures]


def _pixels(pictures: Sequence[Picture]) -> UInt8[np.ndarray, "batch height width 3"]:
    return np.stack([np.asarray(picture) for picture in pictures])


def affine_coefficients(
    keys: UInt64[np.ndarray, " batch"], config: AugmentConfig
) -> Float64[np.ndarray, "batch 2 3"]:
    """Random maps from output to input, both in the square from -1/2 to 1/2."""
    u = 2.0 * uniform(keys, "geometry", 6) - 1.0
    zoom = (1.0 + config.zoom) ** u[:, 0]
    stretch = (1.0 + config.stretch) ** (u[:, 1] / 2.0)
    angle = np.radians(config.rotate) * u[:, 2]
    mirror = np.where((u[:, 5] + 1.0) / 2.0 < config.flip, -1.0, 1.0)
    along, across = mirror / (zoom * stretch), stretch / zoom
    cos, sin = np.cos(angle), np.sin(angle)
    linear = np.stack([cos * along, sin * across, -sin * along, cos * across], 1).reshape(-1, 2, 2)
    shift = config.shift * u[:, 3:5, None]
    return np.concatenate([linear, -linear @ shift], axis=2)


def random_part(
    width: int, height: int, key: UInt64[np.ndarray, " 1"], config: CropConfig
) -> tuple[int, int, int, int]:
    """A random rectangle: its share of the area is uniform, its width over height log-uniform.

    The first of ten tries that fits is taken, else the largest middle part whose ratio is allowed
    (Szegedy et al.: Going deeper with convolutions, 2014; the tries are torchvision's).

    Returns:
      Left, top, right, bottom.
    """
    assert config.area is not None
    u = uniform(key, "crop", 4 * _TRIES)[0].tolist()
    (small, large), (least, most) = config.area, config.ratio
    for share, turn, across, down in zip(*[iter(u)] * 4, strict=True):
        area = width * height * (small + share * (large - small))
        ratio = math.exp(math.log(least) + turn * (math.log(most) - math.log(least)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 1 <= w <= width and 1 <= h <= height:
            left, top = int(across * (width - w + 1)), int(down * (height - h + 1))
            return left, top, left + w, top + h
    w = min(width, max(round(height * most), 1))
    h = min(height, max(round(width / least), 1))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def move(image: Image.Image, coefficients: Float64[np.ndarray, "2 3"], size: int) -> Image.Image:
    """Resamples (bilinear) a square picture under an affine map; white comes in from outside."""
    side = image.width
    (a, b, c), (d, e, f) = coefficients.tolist()
    step, half = side / size, side / 2.0
    data = (
        a * step, b * step, c * side + half - (a + b) * half,
        d * step, e * step, f * side + half - (d + e) * half,
    )  # fmt: skip
    return image.transform(
        (size, size),
        Image.Transform.AFFINE,
        data,
        resample=Image.Resampling.BILINEAR,
        fillcolor=(255, 255, 255),
    )


def move_in_proportion(image: Image.Image, coefficients: Float64[np.ndarray, "2 3"]) -> Image.Image:
    """:func:`move` of a picture of any proportions, to the same size: turned without shear, moved
    by shares of its own sides."""
    sides = np.array(image.size, np.float64)
    linear = coefficients[:, :2]
    shift = linear @ (sides * np.linalg.solve(linear, coefficients[:, 2]))
    offset = shift + sides / 2.0 - linear @ sides / 2.0
    (a, b), (d, e) = linear.tolist()
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        (a, b, float(offset[0]), d, e, float(offset[1])),
        resample=Image.Resampling.BILINEAR,
        fillcolor=(255, 255, 255),
    )


def colour_matrices(
    keys: UInt64[np.ndarray, " batch"], config: AugmentConfig
) -> Float64[np.ndarray, "batch 3 3"]:
    """Random saturation, hue, loss of colour and brightness as one matrix an example.

    ``rgb @ matrix`` is the new colour. Saturation and hue leave greys as they are.
    """
    u = uniform(keys, "colour", 4)
    grey = np.broadcast_to(_LUMA[:, None], (3, 3))
    saturation = 1.0 + config.saturation * (2.0 * u[:, 0] - 1.0)
    saturation = np.where(u[:, 3] < config.grayscale, 0.0, saturation)[:, None, None]
    angle = np.radians(config.hue) * (2.0 * u[:, 1] - 1.0)
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    third = np.full((3, 3), 1.0 / 3.0)  # rotation around (1, 1, 1) / sqrt(3), by Rodrigues
    cross = np.array([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]]) / math.sqrt(3.0)
    turn = cos * np.eye(3) + (1.0 - cos) * third + sin * cross
    brightness = 1.0 + config.brightness * (2.0 * u[:, 2] - 1.0)
    return brightness[:, None, None] * (turn @ (saturation * np.eye(3) + (1.0 - saturation) * grey))


def jitter_colours(
    pixels: UInt8[np.ndarray, "batch height width 3"],
    keys: UInt64[np.ndarray, " batch"],
    config: AugmentConfig,
) -> UInt8[np.ndarray, "batch height width 3"]:
    """Brightness, contrast, saturation, hue, grayscale: one affine map of the colours each."""
    matrices = colour_matrices(keys, config)
    contrast = 1.0 + config.contrast * (2.0 * uniform(keys, "contrast", 1) - 1.0)
    flat = pixels.reshape(len(pixels), -1, 3).astype(np.float32)
    mean_grey = (_mean(flat) @ matrices @ _LUMA[:, None])[:, :, 0]
    offset = ((1.0 - contrast) * mean_grey + 0.5).astype(np.float32)  # + 1/2: truncation rounds
    out = flat @ (contrast[:, :, None] * matrices).astype(np.float32)
    out += offset[:, :, None]
    np.clip(out, 0.0, 255.0, out=out)
    return out.astype(np.uint8).reshape(pixels.shape)


def _mean(flat: Float32[np.ndarray, "batch pixels 3"]) -> Float64[np.ndarray, "batch 1 3"]:
    ones = np.ones((1, flat.shape[1]), np.float32)  # a product is much faster than .mean(axis=1)
    return (ones @ flat).astype(np.float64) / flat.shape[1]


def blur(
    pixels: UInt8[np.ndarray, "batch height width 3"],
    keys: UInt64[np.ndarray, " batch"],
    share: float,
) -> None:
    """Blurs a share of the pictures in place with (a, 1 - 2a, a), a up to 1/3, both ways."""
    u = uniform(keys, "blur", 2)
    chosen = np.flatnonzero(u[:, 0] < share)
    if not len(chosen):
        return
    weight = (u[chosen, 1] / 3.0).astype(np.float32)[:, None, None, None]
    values = pixels[chosen].astype(np.float32)
    for axis in (1, 2):
        padded = np.concatenate(
            [np.take(values, [0], axis), values, np.take(values, [-1], axis)], axis
        )
        n = values.shape[axis]
        before, after = (np.take(padded, range(k, k + n), axis) for k in (0, 2))
        values += weight * (before + after - 2.0 * values)
    pixels[chosen] = (values + 0.5).astype(np.uint8)


def cut_out(
    pixels: UInt8[np.ndarray, "batch height width 3"],
    keys: UInt64[np.ndarray, " batch"],
    largest: float,
) -> None:
    """Fills a random rectangle of each picture, in place, with the picture's mean colour.

    DeVries, Taylor: Improved regularization of convolutional neural networks with cutout, 2017.
    """
    sides = np.array(pixels.shape[1:3])
    u = uniform(keys, "cutout", 4)
    extent = (largest * u[:, :2] * sides).astype(np.int64)
    start = (u[:, 2:] * (sides - extent + 1)).astype(np.int64)
    boxes = np.concatenate([start, start + extent], axis=1).tolist()
    colours = _mean(pixels.reshape(len(pixels), -1, 3).astype(np.float32)).astype(np.uint8)
    for image, colour, (top, left, bottom, right) in zip(pixels, colours, boxes, strict=True):
        image[top:bottom, left:right] = colour
