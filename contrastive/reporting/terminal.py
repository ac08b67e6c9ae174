"""Pictures in the terminal: two pixels a character, as coloured half blocks."""

import numpy as np
from PIL import Image
from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.style import Style
from rich.text import Text

UPPER_HALF = "▀"


def shows_pictures(console: Console) -> bool:
    """Whether the console is a terminal with enough colours."""
    return console.is_terminal and console.color_system in ("truecolor", "256")


def half_blocks(image: Image.Image, columns: int) -> Text:
    """A picture as ``columns`` characters a line; each shows two pixels, one above the other."""
    rows = max(round(columns * image.height / image.width / 2), 1) * 2
    small = image.convert("RGB").resize((columns, rows), Image.Resampling.LANCZOS)
    pixels = np.asarray(small)
    text = Text(no_wrap=True)
    for y in range(0, rows, 2):
        for x in range(columns):
            style = Style(color=_colour(pixels[y, x]), bgcolor=_colour(pixels[y + 1, x]))
            text.append(UPPER_HALF, style)
        if y + 2 < rows:
            text.append("\n")
    return text


def _colour(pixel: np.ndarray) -> Color:
    red, green, blue = (int(value) for value in pixel)
    triplet = ColorTriplet(red, green, blue)
    return Color(triplet.hex, ColorType.TRUECOLOR, triplet=triplet)
