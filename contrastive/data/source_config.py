"""Where samples come from: formats, and the settings of each."""

import collections
import dataclasses
import math
import pathlib
import re
from typing import Literal

from contrastive.errors import ConfigError

Format = Literal[
    "emoji",
    "synthetic",
    "mixture",
    "csv",
    "tsv",
    "jsonl",
    "parquet",
    "arrow",
    "array_record",
    "tfrecord",
    "tfds",
    "webdataset",
    "image_folder",
]
FORMAT_OF_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".array_record": "array_record",
    ".arrayrecord": "array_record",
    ".tfrecord": "tfrecord",
    ".tar": "webdataset",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CsvConfig:
    """How a CSV or TSV file is read."""

    image: str = "image"  # column with the path of the picture, relative to the file's folder
    caption: str = "caption"  # column with the caption
    keywords: str = "keywords"  # column with more words, used if the file has it
    keywords_separator: str = "|"  # between the keywords in a cell
    split: str = "split"  # column that names each row's split ("train", "validation", ...), if any
    held_out_share: float = 0.1  # without that column: share of contents kept for "validation"
    delimiter: str | None = None  # between cells; None = tab for .tsv, comma otherwise
    quoted: bool = True  # cells may stand in double quotes; False = a quote is a character
    encoding: str = "utf-8"  # of the file; for example "latin-1" or "utf-16"
    undecodable: Literal["skip", "replace"] = "skip"  # a row with text that is not valid in it

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share < 1:
            raise ConfigError(
                f"config.data.csv.held_out_share = {self.held_out_share} has to be at least 0 and "
                "below 1."
            )
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ConfigError(
                f"config.data.csv.delimiter = {self.delimiter!r} has to be one character."
            )
        if not self.keywords_separator:
            raise ConfigError("config.data.csv.keywords_separator cannot be empty.")
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise ConfigError(
                f"config.data.csv.encoding = {self.encoding!r} is not a known encoding."
            ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldsConfig:
    """Where JSON Lines, Parquet, Arrow, ArrayRecord, tfds, webdataset and image folders hold the
    parts of a sample. None takes the usual names; ``docs/data.md`` lists them."""

    image: str | None = None  # encoded bytes, or the path of a picture relative to the file
    caption: str | None = None  # a text, a list of texts (the first one counts) or a class number
    keywords: str | None = None  # a list of texts, or one text with separators
    keywords_separator: str = "|"  # between keywords in one text
    id: str | None = None  # a whole number that is the same for equal contents
    key: str | None = None  # what the sample is called in messages
    # Of pairs of texts, instead of image, caption and keywords.
    query: str | None = None  # the first text
    positive: str | None = None  # the one that belongs to it; of a list, the first one
    negatives: str | None = None  # those that do not: a list of texts, or one text
    negatives_separator: str | None = None  # between negatives in one text; None = it is only one
    # JSON Lines with more negatives, found by a sample's key: {"key": ..., "negatives": [...]}
    negatives_file: str | None = None
    # .npz, .parquet or .jsonl: for each pair of the training split, in order, the numbers of other
    # pairs of it whose positives are its negatives
    negatives_index: str | None = None
    label: str | None = None  # which of the labels a pair has: its name, or its number from 0
    labels: tuple[str, ...] = ()  # what a pair may be labelled, for losses that tell them apart
    split: str = "split"  # JSON Lines, Parquet, Arrow: names each row's split, where it exists
    held_out_share: float = 0.1  # kept for "validation" where neither rows nor files name splits
    class_names: str | None = None  # file with a name a line, for captions that are class numbers
    undecodable: Literal["skip", "replace"] = "skip"  # a sample with text that is not UTF-8

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share < 1:
            raise ConfigError(
                f"config.data.fields.held_out_share = {self.held_out_share} has to be at least 0 "
                "and below 1."
            )
        if not self.keywords_separator or self.negatives_separator == "":
            raise ConfigError(
                "config.data.fields.keywords_separator and negatives_separator cannot be empty."
            )
        if self.labels and len(set(self.labels)) < max(len(self.labels), 2):
            raise ConfigError(
                f"config.data.fields.labels = {self.labels} has to name two labels or more, each "
                "once."
            )
        if self.label is not None and not self.labels:
            raise ConfigError(
                "config.data.fields.label has no effect without config.data.fields.labels."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartConfig:
    """One source of a mixture."""

    name: str  # how counters and messages call it
    source: str  # like config.data.source
    format: Format | None = None  # like config.data.format
    fields: FieldsConfig = dataclasses.field(default_factory=FieldsConfig)
    csv: CsvConfig = dataclasses.field(default_factory=CsvConfig)
    weight: float = 1.0  # how many samples come from it, relative to the sum of all weights
    # After so many passes it ends, and the others go on in their proportions; None = it repeats.
    epochs: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ConfigError(
                f"config.data.mixture: the weight {self.weight} of {self.name!r} is not positive."
            )
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ConfigError(
                f"config.data.mixture: epochs = {self.epochs} of {self.name!r} is not positive."
            )
        if self.source == "synthetic":
            raise ConfigError("config.data.mixture: synthetic pairs cannot be mixed with others.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmojiConfig:
    """Which part of the built-in set is trained on."""

    # Set a tenth of the training concepts aside, by base, and evaluate on their pictures only:
    # to choose settings by, without a look at the test sets.
    validation: bool = False
    # Also train on OpenMoji's drawings of the training concepts; needs the extra openmoji.
    openmoji: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """Random pairs, made as they are needed; sizes are those of the data and the tokenizer."""

    examples: int = 1 << 20  # different pairs; the same ones come again after that many

    def __post_init__(self) -> None:
        if not 0 < self.examples < 2**31:
            raise ConfigError(
                f"config.data.synthetic.examples = {self.examples} has to lie between 1 and "
                "2,147,483,647."
            )


def format_of_name(source: str) -> Format | None:
    if source in ("emoji", "synthetic", "mixture"):
        return source
    if source.startswith("tfds:"):
        return "tfds"
    plain = re.sub(r"\{[^{}]*\}", "0", source)
    suffix = pathlib.PurePath(plain).suffix.lower()
    suffix = re.sub(r"-[0-9?*]+(-of-[0-9?*]+)?$", "", suffix)  # of files cut in shards
    return FORMAT_OF_SUFFIX.get(suffix)


def format_of_folder(folder: pathlib.Path) -> Format:
    """What most files of a folder (or of its folder ``data``) are; else it is of pictures."""
    names = (str(path) for path in (*folder.iterdir(), *folder.glob("data/*")))
    formats = collections.Counter(format_of_name(name) for name in names)
    for found, _ in formats.most_common():
        if found in ("parquet", "arrow", "webdataset", "array_record", "tfrecord"):
            return found
    return "image_folder"
