"""The kinds of pair, and the towers that each has."""

from typing import Literal

Pairs = Literal["captions", "views", "texts"]
"""What a pair is: a picture and its caption, two views of a picture, or two texts."""

TOWERS: dict[Pairs, tuple[Literal["image", "text"], ...]] = {
    "captions": ("image", "text"),
    "views": ("image",),
    "texts": ("text",),
}
"""The towers that read the halves of a pair."""
