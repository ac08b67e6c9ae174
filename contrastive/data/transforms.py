"""Encoded pictures to small square arrays: the same code in training, evaluation and inference.

Rules, applied everywhere: the orientation of the EXIF block is applied; transparent pictures are
composed on white; of an animation the first frame counts; every colour mode becomes 8-bit RGB; a
picture that is not square loses the ends of its longer side (centre crop). A damaged picture is an
error: nothing is filled in.
"""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from contrastive.data.records import Record, SampleError

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


def resize(image: Image.Image, side: int) -> Image.Image:
    """A square picture at another size: bicubic with antialias, width first, then height.

    Two explicit calls, since the order of Pillow's two passes differs between its versions.
    """
    if image.size == (side, side):
        return image
    image = image.resize((side, image.height), Image.Resampling.BICUBIC)
    return image.resize((side, side), Image.Resampling.BICUBIC)


def evaluation_image(image: Image.Image, size: int) -> UInt8[np.ndarray, "size size 3"]:
    """The pixels that a tower sees outside of training: middle square, resized."""
    return np.asarray(resize(square(to_rgb(image)), size))


def evaluation_images(
    records: Sequence[Record], image_size: int
) -> UInt8[np.ndarray, "n size size 3"]:
    """:func:`evaluation_image` of each record.

    Raises:
      SampleError: A record's picture cannot be decoded; its key is named.
    """
    out = np.empty((len(records), image_size, image_size, 3), np.uint8)
    for row, record in zip(out, records, strict=True):
        try:
            row[:] = evaluation_image(decode_image(record["image"]), image_size)
        except SampleError as error:
            raise SampleError(error.reason, error.detail, key=record["key"]) from error
    return out
