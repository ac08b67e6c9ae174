"""Which samples of a source belong to a split, and which show the same."""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, Integer

from contrastive.data.captions import canonical
from contrastive.errors import NoSuchSplit

HELD_OUT = "validation"


def rows_of_split(
    where: str,
    split: str,
    *,
    named: Sequence[str | None] | None,
    pairs: Sequence[tuple[object, str]],
    share: float,
    field: str,
    setting: str,
) -> Int64[np.ndarray, " n"]:
    """The samples of a split: by name where the source names splits, else by content.

    Without names, ``share`` of the contents are kept for ``validation``; contents are joined by
    equal captions and equal pictures, and fall by the hash of their first caption (or picture, or
    number, where there is none), so that rows added at the end leave the others where they are.

    Args:
      where: How messages call the source.
      split: The split that is wanted.
      named: The split of each sample, or None.
      pairs: What tells each sample's picture from others (None = nothing does), and its caption.
      share: How much is held out.
      field, setting: How messages call the field that names splits, and ``share``.

    Raises:
      DataError: There is no such split, or nothing in it.
    """
    if named is not None:
        chosen = [row for row, name in enumerate(named) if name == split]
        if not chosen:
            found = ", ".join(sorted({repr(name) for name in named})[:10])
            raise NoSuchSplit(
                f"{where} has no row of the split {split!r}; its {field} holds {found}."
            )
        return np.array(chosen, np.int64)
    check_split(where, split, field)
    content = content_ids([_features(i, pair) for i, pair in enumerate(pairs)])
    first: dict[int, str] = {}
    for row, ((picture, caption), identity) in enumerate(zip(pairs, content, strict=True)):
        if identity not in first:
            first[identity] = canonical(caption) or str(row if picture is None else picture)
    out = {i: fraction(name) < share for i, name in first.items()}
    wanted = split == HELD_OUT
    return nonempty(
        where,
        split,
        np.array([row for row, i in enumerate(content) if out[i] == wanted], np.int64),
        f"{setting} = {share}",
    )


def _features(row: int, pair: tuple[object, str]) -> tuple[object, object]:
    picture, caption = pair
    own = "row", row
    return (own if picture is None else picture, canonical(caption) or own)


def check_split(where: str, split: str, field: str) -> None:
    """Raises :class:`NoSuchSplit` unless the split is one that a source without names has."""
    if split not in ("train", HELD_OUT):
        raise NoSuchSplit(
            f"{where} has the splits 'train' and {HELD_OUT!r}, not {split!r}; a {field} would name "
            "others."
        )


def nonempty(
    where: str, split: str, rows: Integer[np.ndarray, " n"], setting: str
) -> Integer[np.ndarray, " n"]:
    """The rows; :class:`NoSuchSplit` if there are none."""
    if not len(rows):
        raise NoSuchSplit(f"{where} leaves no row for the split {split!r} at {setting}.")
    return rows


def fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text only."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64


def content_ids(features: Sequence[Sequence[object]]) -> list[int]:
    """Numbers contents: examples that share any feature get the same number.

    A feature is anything hashable (a caption, a digest of a picture); equality is transitive, since
    ids have to be. Contents are numbered in the order of their first examples.
    """
    parent = list(range(len(features)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    seen: dict[tuple[int, object], int] = {}
    for i, row in enumerate(features):
        for column, feature in enumerate(row):
            a, b = root(seen.setdefault((column, feature), i)), root(i)
            parent[max(a, b)] = min(a, b)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(i), len(numbers)) for i in range(len(features))]
