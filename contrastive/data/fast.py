"""JPEGs by libjpeg-turbo and a vectorised resizer, where ``contrastive[fast]`` is installed.

Decoding gives Pillow's pixels. Resizing is the same bicubic filter in two one-axis calls, width
first, with other rounding: about one value in a million differs by 2 of 255, none by more. With
``scaled``, a large JPEG is decoded at a half, a quarter or an eighth, if at least 85 % of the
pixels wanted a side are left: another filter, and some pixels at hard edges differ a lot.

Both ends of a resize lie in memory that a thread keeps: fresh memory and copies cost as much as
a quarter of the resizing. Whether the resizer writes into such memory is tried once; where it does
not, Pillow does all the work.

What this cannot do (other formats, CMYK, a turned picture) is left to Pillow, and so is everything
where the packages are missing.
"""

import functools
import io
import math
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from contrastive.data import transforms
from contrastive.data.records import SampleError

Cut = Callable[[int, int], tuple[tuple[int, int, int, int], int | None]]
Pixels: TypeAlias = UInt8[np.ndarray, "height width 3"]
_JPEG = b"\xff\xd8\xff"
_EXIF = b"Exif\0\0"
_SCRATCH = 1 << 22  # bytes at least of a piece of a thread's memory
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
    tools = _Tools(simplejpeg, cykooz_resizer, options)
    return tools if _writes_into_given_memory(tools) else None


def _writes_into_given_memory(tools: _Tools) -> bool:
    grey, target = np.full((2, 2, 4), 7, np.uint8), np.zeros((1, 1, 4), np.uint8)
    _one_call(tools, _as_image(grey), (0.0, 0.0, 2.0, 2.0), _as_image(target))
    return bool((target == 7).all())


def available() -> bool:
    """Whether the packages are installed."""
    return _tools() is not None


def read(data: bytes, cuts: Sequence[Cut], *, scaled: bool = False) -> list[Pixels] | None:
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
            data, colorspace="RGBX", buffer=_scratch("decoded", width * (height + 1) * 4), **least
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
) -> Pixels:
    """The part ``box`` of a picture of height and width ``full``, from its decoded pixels."""
    if side is None:
        left, top, right, bottom = box
        return _without_fourth(pixels[top:bottom, left:right])
    if pixels.shape[:2] != full:
        scale = _scale(full, pixels.shape[:2])
        left, top, right, bottom = (edge * scale for edge in box)
        return _resize(tools, pixels, (left, top, right, bottom), side)
    left, top, right, bottom = box
    whole = (0.0, 0.0, float(right - left), float(bottom - top))
    return _resize(tools, pixels[top:bottom, left:right], whole, side)


_memory = threading.local()


def _scratch(name: str, size: int) -> np.ndarray:
    """A piece of this thread's memory, of at least ``size`` bytes; what is in it is used up before
    the next picture comes."""
    found = getattr(_memory, name, None)
    if found is None or len(found) < size:
        found = np.empty(max(size, _SCRATCH), np.uint8)
        setattr(_memory, name, found)
    return found


class _Target(NamedTuple):
    """Pixels of four bytes in this thread's memory, and the same as a Pillow image."""

    pixels: np.ndarray
    image: Image.Image


def _target(name: str, height: int, width: int) -> _Target:
    """Where a resize writes to: the last one of this name, if it had the same size."""
    found = getattr(_memory, f"{name} target", None)
    if found is None or found.image.size != (width, height):
        size = height * width * 4
        pixels = _scratch(name, size)[:size].reshape(height, width, 4)
        found = _Target(pixels, _as_image(pixels))
        setattr(_memory, f"{name} target", found)
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
    """Whether the picture's Exif block says so."""
    if not _has_exif(data):
        return False
    try:
        return Image.open(io.BytesIO(data)).getexif().get(0x0112, 1) != 1
    except Exception:  # a damaged block: Pillow will say
        return True


def _has_exif(data: bytes) -> bool:
    """Walks over the segments before the picture itself: each says how long it is."""
    at = len(_JPEG) - 1
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # padding
            at += 1
            continue
        if kind == 0xDA:  # the picture
            return False
        if kind == 0xE1 and data.startswith(_EXIF, at + 4):
            return True
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return _EXIF in data  # not a JPEG by the book


def _resize(
    tools: _Tools, pixels: np.ndarray, box: tuple[float, float, float, float], side: int
) -> Pixels:
    """Part of RGBX pixels (its borders may lie between pixels) as a square: width, then height."""
    left, top, right, bottom = box
    first, last = math.floor(top), min(math.ceil(bottom), pixels.shape[0])
    part = pixels[first:last]
    height, width = part.shape[:2]
    image = None
    if (left, right) != (0, side) or width != side:
        across = (left, 0.0, min(right, width) - left, float(height))
        target = _target("across", height, side)
        _one_call(tools, _as_image(part), across, target.image)
        part, image = target
    if (top - first, bottom - first) != (0, side) or height != side:
        down = (0.0, top - first, float(side), min(bottom - first, height) - (top - first))
        target = _target("down", side, side)
        _one_call(tools, image or _as_image(part), down, target.image)
        part = target.pixels
    return _without_fourth(part)


def _without_fourth(pixels: np.ndarray) -> Pixels:
    """RGBX as RGB, copied: all four bytes of a pixel at once, each over the fourth of the one
    before. Channel by channel takes twice as long, ``pixels[..., :3]`` six times."""
    height, width = pixels.shape[:2]
    memory = np.empty(height * width * 3 + 1, np.uint8)
    words = np.ndarray((height, width), np.uint32, memory, strides=(3 * width, 3))
    words[...] = pixels.view(np.uint32)[..., 0]
    return memory[:-1].reshape(height, width, 3)


def _as_image(pixels: np.ndarray) -> Image.Image:
    """Pixels of four bytes as a Pillow image on the same memory, rows apart as they are. CMYK is
    the name of its mode for four bytes that mean nothing to each other. Pillow wants the last row
    as long as the others: below a decoded picture there is one more row of memory."""
    height, width = pixels.shape[:2]
    if pixels.flags.c_contiguous:
        row, flat = 4 * width, pixels.reshape(-1)
    else:
        row = pixels.strides[0]
        size = (height * row,)
        flat = np.lib.stride_tricks.as_strided(pixels, size, (1,), writeable=False)
    return Image.frombuffer("CMYK", (width, height), flat, "raw", "CMYK", row, 1)


def _one_call(
    tools: _Tools,
    image: Image.Image,
    box: tuple[float, float, float, float],
    target: Image.Image,
) -> None:
    """The part ``box`` (left, top, width, height) of an image, resized to fill ``target``."""
    options = tools.options.copy()
    options.crop_box = tools.resizer.CropBox(*box)
    _resizer(tools).resize_pil(image, target, options)


def _resizer(tools: _Tools) -> Any:
    """This thread's: it keeps memory between calls."""
    found = getattr(_memory, "resizer", None)
    if found is None:
        found = _memory.resizer = tools.resizer.Resizer()
    return found
