"""The reader that the settings name, and its splits."""

import dataclasses
import pathlib
from collections.abc import Sequence

from contrastive.data import files
from contrastive.data.config import DataConfig
from contrastive.data.csv_source import (
    CsvSource,
    CsvTextSource,
    TextRow,
    read_csv,
    read_text_csv,
)
from contrastive.data.mixture import Mixture, Part
from contrastive.data.records import Joined, SampleError, Source, Subset
from contrastive.data.splits import content_ids, rows_of_split
from contrastive.data.text_fields import TextFields
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
    parts: list[Part] = []
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
            parts.append(Part(part.name, part.weight, open_source(own, split), part.epochs))
        except NoSuchSplit:
            if split == "train":
                raise
    if not parts:
        raise NoSuchSplit(f"no part of the mixture has the split {split!r}.")
    return Mixture(parts)


def _open_csv(config: DataConfig, split: str, kind: str) -> Source:
    name, named = files.of_split(config.source, split)
    files.check_local(name, "CSV and TSV files", "JSON Lines or Parquet")
    path = pathlib.Path(name).expanduser()
    if named and split != "train" and not path.exists():
        raise NoSuchSplit(f"There is no file {path}.")
    tabs = kind == "tsv"
    if config.pairs == "texts":
        texts, fields = read_text_csv(path, config.csv, config.fields, tabs=tabs)
        if not named:
            about = [(fields.first(row.cells, ""), _positive(fields, row)) for row in texts]
            chosen = _csv_split(config, path, split, [row.split for row in texts], about)
            texts = [texts[i] for i in chosen]
        return CsvTextSource(path.name, texts, fields)
    rows = read_csv(path, config.csv, tabs=tabs, captions=config.pairs == "captions")
    if not named:
        about = [(row.image, row.caption) for row in rows]
        chosen = _csv_split(config, path, split, [row.split for row in rows], about)
        rows = [rows[i] for i in chosen]
    return CsvSource(path.parent, rows, config.csv)


def _positive(fields: TextFields, row: TextRow) -> str:
    try:
        return fields.text(row.cells)[0]
    except SampleError:
        return ""


def _csv_split(
    config: DataConfig,
    path: pathlib.Path,
    split: str,
    splits: Sequence[str | None],
    about: Sequence[tuple[object, str]],
) -> Sequence[int]:
    return rows_of_split(
        str(path),
        split,
        named=None if splits[0] is None else splits,
        pairs=about,
        share=config.csv.held_out_share,
        field=f"column {config.csv.split!r}",
        setting="config.data.csv.held_out_share",
    ).tolist()


def _open_emoji(config: DataConfig, split: str) -> Source:
    from contrastive.data import emoji

    cache = pathlib.Path(config.cache).expanduser()
    if split != "train" and not (config.emoji.validation and split == emoji.VALIDATION_SPLIT):
        return emoji.open_split(split, cache)
    splits = ("train", emoji.OPENMOJI_SPLIT) if config.emoji.openmoji else ("train",)
    parts = [emoji.open_split(name, cache) for name in splits]
    source = Joined(parts) if len(parts) > 1 else parts[0]
    if not config.emoji.validation:
        return source
    wanted = split == emoji.VALIDATION_SPLIT
    members = (concept for name in splits for _, concept in emoji.split_members(name))
    return Subset(source, [i for i, x in enumerate(members) if x.validation == wanted])
