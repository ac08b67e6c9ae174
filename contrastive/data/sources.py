"""The settings of the data, and the reader that they name."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator, Sequence

from contrastive.data.augment import AugmentConfig
from contrastive.data.captions import CaptionConfig, canonical
from contrastive.data.csv_source import CsvConfig, CsvSource, Row, read_csv
from contrastive.data.records import SampleError, Source
from contrastive.data.tokenizer import (
    Tokenizer,
    TokenizerConfig,
    read_tokenizer,
    train_tokenizer,
)
from contrastive.errors import ConfigError, DataError

_TABLES = (".csv", ".tsv")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Pairs, and how they become batches."""

    source: str = "emoji"  # "emoji", the built-in set, or the path of your .csv or .tsv file
    cache: str = "~/.cache/contrastive"  # where data sets are prepared
    image_size: int = 32  # side of the pictures that the model sees, in pixels
    text_length: int = 16  # token ids a caption, begin and end included
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    captions: CaptionConfig = dataclasses.field(default_factory=CaptionConfig)
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)
    csv: CsvConfig = dataclasses.field(default_factory=CsvConfig)
    max_bad_share: float = 0.1  # a run does not start if more of its samples are unusable
    memory_mib: int = 1024  # decoded pictures stay in memory if they fit in so much
    threads: int = 2  # that prepare batches; 0 = in the caller's thread
    prefetch: int = 4  # batches prepared ahead

    def __post_init__(self) -> None:
        if self.source != "emoji" and pathlib.Path(self.source).suffix.lower() not in _TABLES:
            raise ConfigError(
                f"config.data.source = {self.source!r} has to be 'emoji' or the path of a .csv or "
                ".tsv file."
            )
        least_of = {"image_size": 1, "text_length": 1, "memory_mib": 0, "threads": 0, "prefetch": 0}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise ConfigError(
                    f"config.data.{name} = {getattr(self, name)} has to be at least {least}."
                )
        if not 0 <= self.max_bad_share <= 1:
            raise ConfigError(
                f"config.data.max_bad_share = {self.max_bad_share} has to lie between 0 and 1."
            )


def open_source(config: DataConfig, split: str) -> Source:
    """Opens the records of a split: ``train`` or one of the source's evaluation splits.

    Raises:
      DataError: The data is missing or empty, or has no such split.
    """
    if config.source == "emoji":
        from contrastive.data import emoji

        return emoji.open_split(split, pathlib.Path(config.cache).expanduser())
    path = pathlib.Path(config.source).expanduser()
    rows = read_csv(path, config.csv)
    return CsvSource(path.parent, _rows_of_split(path, rows, split, config.csv), config.csv)


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


def texts(source: Source) -> Iterator[str]:
    """Every caption and keyword of the usable records."""
    for index in range(len(source)):
        try:
            if isinstance(source, CsvSource):
                caption, keywords = source.text(index)
            else:
                record = source[index]
                caption, keywords = record["caption"], record["keywords"]
        except SampleError:
            continue
        yield caption
        yield from keywords


def load_tokenizer(
    config: DataConfig, source: Source | None = None, workdir: pathlib.Path | None = None
) -> Tokenizer:
    """The tokenizer of a run.

    The ``tokenizer.json`` of the workdir if there is one, else the file that the config names, else
    one learned from the captions of ``source``. What was not yet there is saved in the workdir.

    Raises:
      DataError: There is none and no source to learn from, or a file is damaged.
    """
    settings = config.tokenizer
    saved = None if workdir is None else workdir / "tokenizer.json"
    if saved is not None and saved.exists():
        return read_tokenizer(saved, length=config.text_length, config=settings)
    if settings.path is not None:
        path = pathlib.Path(settings.path).expanduser()
        tokenizer = read_tokenizer(path, length=config.text_length, config=settings)
    elif source is not None:
        tokenizer = train_tokenizer(texts(source), length=config.text_length, config=settings)
    else:
        raise DataError(f"There is no tokenizer in {workdir}, and no captions to learn one from.")
    if saved is not None:
        tokenizer.save(saved)
    return tokenizer
