"""Encoded pictures to small square arrays: the same code in training, evaluation and inference.

Rules, applied everywhere: the orientation of the EXIF block is applied; transparent pictures are
composed on white; of an animation the first frame counts; every colour mode becomes 8-bit RGB; a
picture becomes square by the rule of the model (:func:`shaped`). A damaged picture is an error:
nothing is filled in.
"""

import io
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from contrastive.data.picture_config import ResizeConfig
from contrastive.data.records import Record, SampleError

Rule = Literal["square", "clip", "siglip", "shortest", "stretch", "naflex"]
TAKES_MIDDLE = ("clip", "shortest")  # of the resized picture
STRETCHES = ("siglip", "stretch")
PIXEL_STATISTICS = {  # mean and standard deviation of the values between 0 and 1, R, G, B
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "siglip": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
_LONGEST = 20
_FINEST = 1e-5  # where the search for a scale ends
MAX_PIXELS = 89_000_000  # larger pictures are refused before they are decoded
_EXIF_ORIENTATION = 0x0112


def decode_image(data: bytes) -> Image.Image:
    """Decodes a picture to upright 8-bit RGB.

    Raises:
      SampleError: ``decode error`` if the data is damaged, cut short or no picture at all;
        ``image too large`` above :data:`MAX_PIXELS`.
    """
    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > MAX_PIXELS:
            raise SampleError("image too large", f"{image.width} x {image.height} pixels")
        image.load()
        return to_rgb(image)
    except SampleError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SampleError("image too large", str(error)) from error
    except UnidentifiedImageError as error:
        raise SampleError("decode error", "no known format") from error
    except Exception as error:  # the decoders of hostile data raise whatever they like
        raise SampleError("decode error", f"{type(error).__name__}: {error}") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow image as upright 8-bit RGB on white."""
    if image.getexif().get(_EXIF_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        values = np.asarray(image).astype(np.float64)
        values = values / 257.0 if values.max(initial=0.0) > 255 else values
        image = Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def square(image: Image.Image) -> Image.Image:
    """The middle square."""
    side = min(image.size)
    if image.size == (side, side):
        return image
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def resize(image: Image.Image, side: int, how: ResizeConfig = ResizeConfig()) -> Image.Image:  # noqa: B008
    """A picture as a square of another size: with antialias, width first, then height.

    Two explicit calls, since the order of Pillow's two passes differs between its versions.
    """
    return _resize(image, side, side, how)


def _resize(image: Image.Image, width: int, height: int, how: ResizeConfig) -> Image.Image:
    method = Image.Resampling[how.interpolation.upper()]
    if image.width != width:
        image = image.resize((width, image.height), method)
    if image.height != height:
        image = image.resize((width, height), method)
    return image


def shaped(
    image: Image.Image,
    size: int,
    rule: Rule,
    how: ResizeConfig = ResizeConfig(),  # noqa: B008  frozen
) -> Image.Image:
    """A picture as a square, by the rule of a model.

    ``square``: the middle square, resized. ``clip`` and ``shortest``: resized so that the shorter
    side has ``size / how.share``, then the middle. ``siglip`` and ``stretch``: stretched. (``clip``
    and ``siglip`` are those of the published models, with their statistics.) Before the middle is
    taken, pictures longer than 20 : 1 lose their ends, since they would become enormous on the way.
    """
    if rule == "square":
        return resize(square(image), size, how)
    if rule in STRETCHES:
        return resize(image, size, how)
    if rule == "naflex":
        raise ValueError("rule 'naflex' makes no square; see naflex_patches.")
    short = min(image.size)
    if max(image.size) > _LONGEST * short:
        image = _middle(
            image, min(image.width, _LONGEST * short), min(image.height, _LONGEST * short), how
        )
    target = int(size / how.share + 1e-6)
    width, height = (int(target * side / short) for side in image.size)
    return _middle(_resize(image, width, height, how), size, size, how)


def _middle(image: Image.Image, width: int, height: int, how: ResizeConfig) -> Image.Image:
    """The middle, at the place that torchvision's centre crop takes, or transformers'."""
    rounded = round if how.centre == "round" else math.floor
    left, top = (
        rounded((have - want) / 2.0) for have, want in zip(image.size, (width, height), strict=True)
    )
    return image.crop((left, top, left + width, top + height))


def evaluation_image(
    image: Image.Image,
    size: int,
    rule: Rule = "square",
    how: ResizeConfig = ResizeConfig(),  # noqa: B008
) -> UInt8[np.ndarray, "size size 3"] | UInt8[np.ndarray, "patches bytes"]:
    """The pixels that a tower sees outside of training; by the rule ``naflex`` in patches."""
    if rule == "naflex":
        return naflex_patches(to_rgb(image), (size // how.patch) ** 2, how)
    return np.asarray(shaped(to_rgb(image), size, rule, how))


def naflex_patches(
    image: Image.Image, most: int, how: ResizeConfig
) -> UInt8[np.ndarray, "patches bytes"]:
    """A picture in its own proportions as at most ``most`` patches."""
    return naflex_cut(np.asarray(naflex_resized(image, most, how)), most, how.patch)


def naflex_resized(image: Image.Image, most: int, how: ResizeConfig) -> Image.Image:
    """A picture in its own proportions, resized to whole patches, at most ``most``."""
    columns, rows = naflex_grid(image.width, image.height, how.patch, most)
    return _resize(image, columns * how.patch, rows * how.patch, how)


def naflex_cut(
    pixels: UInt8[np.ndarray, "height width 3"], most: int, patch: int
) -> UInt8[np.ndarray, "patches bytes"]:
    """Whole patches, each with its place, as :mod:`contrastive.towers.naflex` takes them: rows that
    are over are zeros."""
    rows, columns = (side // patch for side in pixels.shape[:2])
    cut = pixels.reshape(rows, patch, columns, patch, 3)
    out = np.zeros((most, 3 * patch**2 + 4), np.uint8)
    count = rows * columns
    out[:count, :-4] = cut.transpose(0, 2, 1, 3, 4).reshape(count, -1)
    places = np.indices((rows, columns)).reshape(2, -1).T
    out[:count, -4:-2], out[:count, -2:] = places, (rows, columns)
    return out


def naflex_pixels(
    patches: UInt8[np.ndarray, "patches bytes"], patch: int
) -> UInt8[np.ndarray, "height width 3"]:
    """:func:`naflex_cut` backwards."""
    rows, columns = patches[0, -2:].tolist()
    cut = patches[: rows * columns, :-4].reshape(rows, columns, patch, patch, 3)
    return cut.transpose(0, 2, 1, 3, 4).reshape(rows * patch, columns * patch, 3)


def naflex_grid(width: int, height: int, patch: int, most: int) -> tuple[int, int]:
    """Columns and rows of patches of a picture: the largest scale, found by halving as its authors
    do, at which both sides, rounded up to whole patches, give no more than ``most``."""

    def grid(scale: float) -> tuple[int, int]:
        columns, rows = (math.ceil(side * scale / patch) for side in (width, height))
        return max(columns, 1), max(rows, 1)

    low, high = _FINEST / 10, 100.0
    while high - low >= _FINEST:
        middle = (low + high) / 2
        low, high = (middle, high) if math.prod(grid(middle)) <= most else (low, middle)
    columns, rows = grid(low)
    return min(columns, 255, most), min(rows, 255, most)  # a place is a byte


def evaluation_images(
    records: Sequence[Record],
    image_size: int,
    rule: Rule = "square",
    how: ResizeConfig = ResizeConfig(),  # noqa: B008
) -> UInt8[np.ndarray, "n size size 3"]:
    """:func:`evaluation_image` of each record.

    Raises:
      SampleError: A record's picture cannot be decoded; its key is named.
    """
    out = np.empty((len(records), image_size, image_size, 3), np.uint8)
    for row, record in zip(out, records, strict=True):
        try:
            row[:] = evaluation_image(decode_image(record["image"]), image_size, rule, how)
        except SampleError as error:
            raise SampleError(error.reason, error.detail, key=record["key"]) from error
    return out
