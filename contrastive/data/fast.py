"""JPEGs by libjpeg-turbo and a vectorised resizer, where ``contrastive[fast]`` is installed.

Decoding gives Pillow's pixels. Resizing is the same bicubic filter in two one-axis calls, width
first, with other rounding: about one value in a million differs by 2 of 255, none by more. With
``scaled``, a large JPEG is decoded at a half, a quarter or an eighth, if at least 85 % of the
pixels wanted a side are left: another filter, and some pixels at hard edges differ a lot.

What this cannot do (other formats, CMYK, a turned picture) is left to Pillow, and so is everything
where the packages are missing.
"""

import functools
import io
import math
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from contrastive.data import transforms
from contrastive.data.records import SampleError

Cut = Callable[[int, int], tuple[tuple[int, int, int, int], int | None]]
_JPEG = b"\xff\xd8\xff"
_EXIF_WITHIN = 1 << 16
_SCRATCH = 1 << 22  # bytes at least of the memory for decoded pictures
_SHARE = 0.85  # of the wanted pixels a side that a scaled decoding has to have


class _Tools(NamedTuple):
    jpeg: types.ModuleType
    resizer: types.ModuleType
    options: Any


@functools.cache
def _tools() -> _Tools | None:
    try:
        import cykooz_resizer
        import simplejpeg
    except ImportError:
        return None
    bicubic = cykooz_resizer.ResizeAlg.convolution(cykooz_resizer.FilterType.catmull_rom)
    options = cykooz_resizer.ResizeOptions(resize_alg=bicubic, use_alpha=False)
    return _Tools(simplejpeg, cykooz_resizer, options)


def available() -> bool:
    """Whether the packages are installed."""
    return _tools() is not None


def read(data: bytes, cuts: Sequence[Cut], *, scaled: bool = False) -> list[Image.Image] | None:
    """Parts of a JPEG, each resized to a square; None where Pillow has to do it.

    Args:
      data: An encoded picture.
      cuts: Each gives for width and height a part that is wanted, and its new side (None = as it
        is).
      scaled: Whether the picture may be decoded at a smaller scale.

    Raises:
      SampleError: ``decode error`` if the data is damaged or cut short, ``image too large``.
    """
    tools = _tools()
    if tools is None or not data.startswith(_JPEG) or _is_turned(data):
        return None
    try:
        height, width, colours, _ = tools.jpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise SampleError("decode error", str(error)) from error
    if width * height > transforms.MAX_PIXELS:  # before any memory is taken
        raise SampleError("image too large", f"{width} x {height} pixels")
    if colours not in ("YCbCr", "RGB", "Gray"):
        return None
    wanted = [cut(width, height) for cut in cuts]
    eighths = _eighths(wanted) if scaled else 8
    least = {"min_width": -(-width * eighths // 8), "min_height": -(-height * eighths // 8)}
    try:
        pixels = tools.jpeg.decode_jpeg(
            data, colorspace="RGBX", buffer=_scratch(width * (height + 1) * 4), **least
        )
    except ValueError as error:
        raise SampleError("decode error", str(error)) from error
    return [_part(tools, pixels, (height, width), box, side) for box, side in wanted]


def _part(
    tools: _Tools,
    pixels: np.ndarray,
    full: tuple[int, int],
    box: tuple[int, int, int, int],
    side: int | None,
) -> Image.Image:
    """The part ``box`` of a picture of height and width ``full``, from its decoded pixels."""
    if side is None:
        left, top, right, bottom = box
        part = np.ascontiguousarray(pixels[top:bottom, left:right])
        return _without_fourth((right - left, bottom - top), part.tobytes())
    if pixels.shape[:2] != full:
        scale = _scale(full, pixels.shape[:2])
        left, top, right, bottom = (edge * scale for edge in box)
        return _resize(tools, pixels, (left, top, right, bottom), side)
    left, top, right, bottom = box
    whole = (0.0, 0.0, float(right - left), float(bottom - top))
    return _resize(tools, pixels[top:bottom, left:right], whole, side)


_memory = threading.local()


def _scratch(size: int) -> np.ndarray:
    """Memory of this thread for one decoded picture: fresh memory costs half as much as decoding.
    What is in it is used up before the next picture comes."""
    found = getattr(_memory, "pixels", None)
    if found is None or len(found) < size:
        found = _memory.pixels = np.empty(max(size, _SCRATCH), np.uint8)
    return found


def _eighths(wanted: Sequence[tuple[tuple[int, int, int, int], int | None]]) -> int:
    """The scale at which a JPEG is decoded: a half, a quarter or an eighth (others take as long as
    the whole), which the parts may need enlarged by a sixth."""
    least = min(
        1.0 if side is None else min(box[2] - box[0], box[3] - box[1]) / side
        for box, side in wanted
    )
    return next((n for n in (1, 2, 4) if least * n / 8 >= _SHARE), 8)


def _scale(full: tuple[int, int], decoded: tuple[int, ...]) -> float:
    """The eighths at which a JPEG was decoded; sizes are rounded up, so they do not say exactly."""
    for eighths in range(1, 9):
        if tuple(-(-side * eighths // 8) for side in full) == tuple(decoded):
            return eighths / 8
    raise SampleError("decode error", f"decoded to {decoded} instead of {full}")


def _is_turned(data: bytes) -> bool:
    if b"Exif\0\0" not in data[:_EXIF_WITHIN]:
        return False
    try:
        return Image.open(io.BytesIO(data)).getexif().get(0x0112, 1) != 1
    except Exception:  # a damaged block: Pillow will say
        return True


def _resize(
    tools: _Tools, pixels: np.ndarray, box: tuple[float, float, float, float], side: int
) -> Image.Image:
    """Part of RGBX pixels (its borders may lie between pixels) as a square: width, then height."""
    left, top, right, bottom = box
    first, last = math.floor(top), min(math.ceil(bottom), pixels.shape[0])
    image = _as_image(pixels[first:last])
    if (left, right) != (0, side) or image.width != side:
        across = (left, 0.0, right - left, float(image.height))
        image = _one_call(tools, image, across, side, image.height)
    if (top - first, bottom - first) != (0, side) or image.height != side:
        down = (0.0, top - first, float(side), bottom - top)
        image = _one_call(tools, image, down, side, side)
    return _without_fourth(image.size, image.tobytes())


def _without_fourth(size: tuple[int, int], pixels: bytes) -> Image.Image:
    """Pixels of four bytes as RGB. NumPy needs ten times as long to leave out every fourth byte."""
    return Image.frombytes("RGB", size, pixels, "raw", "RGBX", 0, 1)


def _as_image(pixels: np.ndarray) -> Image.Image:
    """Pixels of four bytes as a Pillow image on the same memory, rows apart as they are. CMYK is
    the name of its mode for four bytes that mean nothing to each other. Pillow wants the last row
    as long as the others: below the picture there is one more row of memory."""
    height, width = pixels.shape[:2]
    row = pixels.strides[0]
    size = height * row
    flat = np.lib.stride_tricks.as_strided(pixels, (size,), (1,), writeable=False)
    return Image.frombuffer("CMYK", (width, height), flat, "raw", "CMYK", row, 1)


def _one_call(
    tools: _Tools,
    image: Image.Image,
    box: tuple[float, float, float, float],
    width: int,
    height: int,
) -> Image.Image:
    left, top, across, down = box  # the last two may reach out by a rounding error
    inside = min(across, image.width - left), min(down, image.height - top)
    options = tools.options.copy()
    options.crop_box = tools.resizer.CropBox(left, top, *inside)
    target = Image.new("CMYK", (width, height), None)  # its pixels are all written
    tools.resizer.Resizer().resize_pil(image, target, options)
    return target
