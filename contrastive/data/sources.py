"""The reader that the settings name, its splits, and which of its examples show the same."""

import hashlib
import pathlib
from collections.abc import Sequence

from contrastive.data.captions import canonical
from contrastive.data.config import CsvConfig, DataConfig
from contrastive.data.csv_source import CsvSource, Row, read_csv
from contrastive.data.records import Source, Subset
from contrastive.errors import DataError


def open_source(config: DataConfig, split: str) -> Source:
    """Opens the records of a split: ``train`` or one of the source's evaluation splits.

    Raises:
      DataError: The data is missing or empty, or has no such split.
    """
    if config.source == "emoji":
        return _open_emoji(config, split)
    if config.source == "synthetic":
        from contrastive.data.synthetic import SyntheticSource

        if split != "train":
            raise DataError(f"synthetic pairs have only the split 'train', not {split!r}.")
        return SyntheticSource(config)
    path = pathlib.Path(config.source).expanduser()
    rows = read_csv(path, config.csv)
    return CsvSource(path.parent, _rows_of_split(path, rows, split, config.csv), config.csv)


def _open_emoji(config: DataConfig, split: str) -> Source:
    from contrastive.data import emoji

    cache = pathlib.Path(config.cache).expanduser()
    if not config.emoji.validation or split not in ("train", emoji.VALIDATION_SPLIT):
        return emoji.open_split(split, cache)
    wanted = split == emoji.VALIDATION_SPLIT
    members = emoji.split_members("train")
    rows = [i for i, (_, concept) in enumerate(members) if concept.validation == wanted]
    return Subset(emoji.open_split("train", cache), rows)


def _rows_of_split(
    path: pathlib.Path, rows: Sequence[Row], split: str, config: CsvConfig
) -> list[Row]:
    if rows[0].split is not None:
        chosen = [row for row in rows if row.split == split]
        if not chosen:
            found = ", ".join(sorted({repr(row.split) for row in rows})[:10])
            raise DataError(
                f"{path} has no row of the split {split!r}; its column {config.split!r} holds "
                f"{found}."
            )
        return chosen
    if split not in ("train", "validation"):
        raise DataError(
            f"{path} has the splits 'train' and 'validation', not {split!r}; a column "
            f"{config.split!r} would name others."
        )
    content = content_ids([(row.image, canonical(row.caption)) for row in rows])
    first: dict[int, Row] = {}
    for row, identity in zip(rows, content, strict=True):
        first.setdefault(identity, row)
    held_out = {
        i: _fraction(canonical(row.caption)) < config.held_out_share for i, row in first.items()
    }
    chosen = [
        row
        for row, identity in zip(rows, content, strict=True)
        if held_out[identity] == (split == "validation")
    ]
    if not chosen:
        raise DataError(
            f"{path} leaves no row for the split {split!r} at config.data.csv.held_out_share = "
            f"{config.held_out_share}."
        )
    return chosen


def _fraction(text: str) -> float:
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
