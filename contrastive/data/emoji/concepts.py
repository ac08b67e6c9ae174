"""Names, keywords, groups and the train / held-out split of the emoji."""

import collections
import functools
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

TRAIN_STYLES = ("noto", "fluent_3d", "fluent_flat")
TEST_STYLES = ("twemoji",)  # never trained on
# Drawn from a package that is share-alike; trained on only where a recipe says so.
OPTIONAL_STYLES = ("openmoji",)
OPENMOJI_SPLIT = "unseen_artist_openmoji"  # its drawings of the training concepts
STYLES = TRAIN_STYLES + TEST_STYLES  # those with a committed sheet
VALIDATION_SPLIT = "validation_concepts"
LARGEST_HELD_OUT_BASE = 6  # concepts; larger bases (flags, hearts ...) are always trained on
VALIDATION_SHARE = 0.15  # of the small bases that are trained on


@dataclass(frozen=True, kw_only=True)
class Concept:
    """One emoji, whoever draws it.

    Attributes:
        index: its place in Unicode's order, from 0; the content id of every drawing of it.
        codepoints: upper-case, joined by hyphens, without FE0F: ``1F468-200D-1F373``.
        character: the emoji as text, fully qualified (with FE0F where Unicode asks for it).
        name: the English CLDR name, unique: ``man cook``.
        keywords: English CLDR keywords, without the name itself.
        group, subgroup: Unicode's own, as ``food-drink`` and ``food-fruit``.
        base: what it is a variant of; concepts of one base are never on both sides of the split.
        held_out: no drawing of it is trained on.
        names: CLDR names by language code.
        styles: the committed styles that have a picture of it.
        validation: one of the training concepts that a run may set aside, to choose settings by.
    """

    index: int
    codepoints: str
    character: str
    name: str
    keywords: tuple[str, ...]
    group: str
    subgroup: str
    base: str
    held_out: bool
    names: dict[str, str]
    styles: tuple[str, ...]
    validation: bool


@functools.cache
def read_table() -> dict[str, Any]:
    """``emoji.json``: ``tile`` (pixels), ``columns``, ``missing`` by style, ``concepts``."""
    path = resources.files("contrastive.data.emoji").joinpath("emoji.json")
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def load_concepts() -> tuple[Concept, ...]:
    """All concepts in the order of their index."""
    table = read_table()
    missing = {style: frozenset(table["missing"][style]) for style in STYLES}
    members = collections.Counter(row["base"] for row in table["concepts"])

    def validates(row: dict[str, Any]) -> bool:
        # Like the held-out ones: small bases, which are never cut.
        small = members[row["base"]] <= LARGEST_HELD_OUT_BASE
        return small and not row["held_out"] and _fraction(row["base"]) < VALIDATION_SHARE

    return tuple(
        Concept(
            index=index,
            styles=tuple(style for style in STYLES if index not in missing[style]),
            keywords=tuple(row.pop("keywords")),
            validation=validates(row),
            **row,
        )
        for index, row in enumerate(map(dict, table["concepts"]))
    )


def _fraction(base: str) -> float:
    digest = hashlib.blake2b(base.encode(), digest_size=8, person=b"validation").digest()
    return int.from_bytes(digest, "big") / 2.0**64
