"""The reader that the settings name, and its splits."""

import dataclasses
import pathlib

from contrastive.data import files
from contrastive.data.config import DataConfig
from contrastive.data.csv_source import CsvSource, read_csv
from contrastive.data.mixture import Mixture
from contrastive.data.records import Source, Subset
from contrastive.data.splits import content_ids, rows_of_split
from contrastive.errors import NoSuchSplit

__all__ = ["content_ids", "open_source"]


def open_source(config: DataConfig, split: str) -> Source:
    """Opens the records of a split: ``train`` or one of the source's evaluation splits.

    Raises:
      DataError: The data is missing, empty or damaged.
      NoSuchSplit: There is no such split.
    """
    kind = config.kind
    if kind == "emoji":
        return _open_emoji(config, split)
    if kind == "synthetic":
        from contrastive.data.synthetic import SyntheticSource

        if split != "train":
            raise NoSuchSplit(f"synthetic pairs have only the split 'train', not {split!r}.")
        return SyntheticSource(config)
    if kind == "mixture":
        return _open_mixture(config, split)
    if kind in ("csv", "tsv"):
        return _open_csv(config, split, kind)
    from contrastive.data import readers  # brings libraries that the formats above do without

    try:
        return readers.open_reader(config, kind, split)
    except files.NothingThere as error:
        if split != "train" and "{split}" in config.source:
            raise NoSuchSplit(str(error)) from error
        raise


def _open_mixture(config: DataConfig, split: str) -> Mixture:
    """All parts in training; for evaluation those that have the split."""
    parts: list[tuple[str, float, Source]] = []
    for part in config.mixture:
        own = dataclasses.replace(
            config,
            source=part.source,
            format=part.format,
            fields=part.fields,
            csv=part.csv,
            mixture=(),
        )
        try:
            parts.append((part.name, part.weight, open_source(own, split)))
        except NoSuchSplit:
            if split == "train":
                raise
    if not parts:
        raise NoSuchSplit(f"no part of the mixture has the split {split!r}.")
    return Mixture(parts)


def _open_csv(config: DataConfig, split: str, kind: str) -> Source:
    name, named = files.of_split(config.source, split)
    path = pathlib.Path(name).expanduser()
    if named and split != "train" and not path.exists():
        raise NoSuchSplit(f"There is no file {path}.")
    rows = read_csv(path, config.csv, tabs=kind == "tsv")
    if not named:
        chosen = rows_of_split(
            str(path),
            split,
            named=None if rows[0].split is None else [row.split for row in rows],
            pairs=[(row.image, row.caption) for row in rows],
            share=config.csv.held_out_share,
            field=f"column {config.csv.split!r}",
            setting="config.data.csv.held_out_share",
        )
        rows = [rows[i] for i in chosen]
    return CsvSource(path.parent, rows, config.csv)


def _open_emoji(config: DataConfig, split: str) -> Source:
    from contrastive.data import emoji

    cache = pathlib.Path(config.cache).expanduser()
    if not config.emoji.validation or split not in ("train", emoji.VALIDATION_SPLIT):
        return emoji.open_split(split, cache)
    wanted = split == emoji.VALIDATION_SPLIT
    members = emoji.split_members("train")
    rows = [i for i, (_, concept) in enumerate(members) if concept.validation == wanted]
    return Subset(emoji.open_split("train", cache), rows)
