"""Everything that can be set about the data, from the file on disk to the batch."""

import collections
import dataclasses
import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from contrastive.data.mined_config import MinedConfig
from contrastive.data.picture_config import (
    AugmentConfig,
    CropConfig,
    RandAugmentConfig,
    ResizeConfig,
    StackConfig,
    ViewsConfig,
)
from contrastive.data.records import Pairs
from contrastive.data.stream_config import StreamConfig
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
_FORMAT_OF_SUFFIX: dict[str, Format] = {
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
# The group of settings that a format reads; the others read "fields".
_GROUP_OF_FORMAT = {
    "csv": "csv",
    "tsv": "csv",
    "emoji": "emoji",
    "synthetic": "synthetic",
    "mixture": "mixture",
}
LEAST_VOCABULARY = 259  # 256 bytes, begin, end, padding


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


Preset: TypeAlias = Literal[
    "clip",
    "bert",
    "siglip",
    "siglip_transformers",
    "siglip_open_clip",
    "siglip2",
    "siglip2_open_clip",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Where token ids come from."""

    # The vocabulary, markers, padding, cleaning and length of a published model. clip and bert come
    # with this package; the others need the path of their vocabulary. siglip is as big_vision
    # reads texts, siglip2 as transformers does; the others as the library in their name does.
    preset: Preset | None = None
    # A tokenizer.json or a SentencePiece .model (for bert also a vocab.txt, for clip a list of
    # merges); None = the preset's own, or without one learn a vocabulary from the captions.
    path: str | None = None
    # What is learned. "bpe": pieces down to bytes, so any text has ids. "words": whole words, and
    # words that no training caption has are one unknown token: better where captions are few, so
    # that pieces of words say little, and in languages that put spaces between words.
    kind: Literal["bpe", "words"] = "bpe"
    vocabulary_size: int = (
        4096  # entries at most, when learned; of "bpe", 259 are bytes and markers
    )
    begin_token: str | None = None  # None = the first known one that the vocabulary has, or none
    end_token: str | None = None  # likewise
    pad_token: str | None = None  # likewise, but there has to be one
    hidden: float = 0.0  # share of a training caption's tokens that become the unknown token

    def __post_init__(self) -> None:
        if not 0 <= self.hidden < 1:
            raise ConfigError(
                f"config.data.tokenizer.hidden = {self.hidden} has to be at least 0 and below 1."
            )
        if self.vocabulary_size < LEAST_VOCABULARY:
            raise ConfigError(
                f"config.data.tokenizer.vocabulary_size = {self.vocabulary_size} has to be at "
                f"least {LEAST_VOCABULARY}: 256 bytes, begin, end and padding."
            )
        if self.preset is None:
            return
        for name in ("begin_token", "end_token", "pad_token"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"config.data.tokenizer.{name} belongs to the preset {self.preset!r}; leave it "
                    "out, or set config.data.tokenizer.preset = None."
                )
        if self.path is None and str(self.preset).startswith("siglip"):
            raise ConfigError(
                f"config.data.tokenizer.preset = {self.preset!r} needs config.data.tokenizer.path: "
                "the .model or tokenizer.json that its authors publish."
            )

    def check_length(self, length: int) -> None:
        """Raises :class:`ConfigError` unless the preset can have texts of so many ids."""
        if self.preset == "clip" and length != 77 and self.path is None:
            raise ConfigError(
                f"config.data.text_length = {length}, but the preset 'clip' has 77 ids a text. For "
                "another length name the vocabulary by config.data.tokenizer.path."
            )
        most = length
        if self.preset not in (None, "clip"):
            most = 512 if self.preset == "bert" else 64
        if length > most:
            raise ConfigError(
                f"config.data.text_length = {length}; the preset {self.preset!r} has {most} ids a "
                "text at most."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionConfig:
    """How captions are made from a record. The three weights are taken relative to their sum; a
    record without keywords always gives its caption."""

    name: float = 0.4  # weight of the caption alone
    name_and_keywords: float = 0.3  # weight of the caption and some keywords, in random order
    keywords: float = 0.3  # weight of some keywords without the caption
    most_keywords: int = 4  # how many keywords are taken at most; at least one is
    templates: tuple[str, ...] = ()  # for example ("a picture of {}",)
    template_share: float = 0.0  # share of captions that are put into one of the templates

    def __post_init__(self) -> None:
        weights = (self.name, self.name_and_keywords, self.keywords)
        if min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError(
                "config.data.captions: the weights name, name_and_keywords and keywords cannot be "
                f"negative, and one has to be positive; given are {weights}."
            )
        if self.most_keywords < 1:
            raise ConfigError(
                f"config.data.captions.most_keywords = {self.most_keywords} has to be at least 1."
            )
        if not 0 <= self.template_share <= 1:
            raise ConfigError(
                f"config.data.captions.template_share = {self.template_share} has to lie between 0 "
                "and 1."
            )
        if bool(self.template_share) != bool(self.templates):
            raise ConfigError(
                "config.data.captions.templates and template_share go together; one of them is not "
                "set."
            )
        for template in self.templates:
            if "{}" not in template:
                raise ConfigError(
                    f"config.data.captions.templates: {template!r} has no {{}} for the caption."
                )


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Pairs, and how they become batches."""

    # "emoji" (the built-in set), "synthetic" (random pairs), or your data: the path of a file, a
    # folder, a pattern with * or {0000..0099}, or tfds:NAME. "{split}" in it stands for train,
    # validation, test.
    source: str = "emoji"
    format: Format | None = None  # of the source; None = by its name
    mixture: tuple[PartConfig, ...] = ()  # several sources, for config.data.source = "mixture"
    cache: str = "~/.cache/contrastive"  # where data sets are prepared
    # What a pair is. captions: a picture and its caption. views: two views of a picture. texts: two
    # texts, and some that do not belong to them.
    pairs: Pairs = "captions"
    # Which equal halves make two pairs equal in content, so that they are no negatives of each
    # other: the first ones (pictures, queries), the second ones (captions, positives) or either.
    # None = either, or where samples are checked as they come, the second ones. Views: the picture.
    content: Literal["first", "second", "either"] | None = None
    negatives: int = 0  # of pairs of texts: how many reach the batch, drawn anew in each epoch
    mined: MinedConfig = dataclasses.field(default_factory=MinedConfig)
    image_size: int = 32  # side of the pictures that the model sees, in pixels
    # How a picture becomes square: its middle, resized (square); resized, then the middle (clip);
    # stretched (siglip). Together with model.pixel_mean and pixel_std. shortest and stretch are
    # clip's and siglip's rules for models with other statistics. naflex: no square, but as many
    # patches of resize.patch as image_size has, in the picture's own proportions.
    preprocessing: Literal["square", "clip", "siglip", "shortest", "stretch", "naflex"] = "square"
    resize: ResizeConfig = dataclasses.field(default_factory=ResizeConfig)
    # How training pictures are decoded and resized. evaluation: as in evaluation, by Pillow. train:
    # by faster code where contrastive[fast] is installed, within 2/255. train_fast: large JPEGs are
    # also decoded at a smaller scale, which is less exact.
    decoding: Literal["evaluation", "train", "train_fast"] = "evaluation"
    text_length: int = 16  # token ids a caption, begin and end included
    # Of pairs of texts: ids of a query; None: text_length. Short rows cost less than padded ones
    query_length: int | None = None
    # Of pairs of texts: what stands before every query, and before every positive and negative,
    # such as "query: " and "passage: "
    query_prefix: str = ""
    passage_prefix: str = ""
    # Of pairs of texts, what a training batch has as queries: these, or the positives once more
    # (SimCSE: a text and itself under other dropout). Evaluation compares queries with positives
    query_from: Literal["query", "positive"] = "query"
    # Of pairs of texts, for a cross-encoder: query and passage are one row of text_length ids, with
    # the begin token before each of them
    joined: bool = False
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    captions: CaptionConfig = dataclasses.field(default_factory=CaptionConfig)
    crop: CropConfig = dataclasses.field(default_factory=CropConfig)
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)
    stack: StackConfig = dataclasses.field(default_factory=StackConfig)
    rand_augment: RandAugmentConfig = dataclasses.field(default_factory=RandAugmentConfig)
    views: ViewsConfig = dataclasses.field(default_factory=ViewsConfig)
    csv: CsvConfig = dataclasses.field(default_factory=CsvConfig)
    fields: FieldsConfig = dataclasses.field(default_factory=FieldsConfig)
    stream: StreamConfig = dataclasses.field(default_factory=StreamConfig)
    emoji: EmojiConfig = dataclasses.field(default_factory=EmojiConfig)
    synthetic: SyntheticConfig = dataclasses.field(default_factory=SyntheticConfig)
    # When samples are checked: all before the first batch, and bad ones are left out; or as they
    # come, and the row of a bad one gets weight 0. auto = before, up to 50,000 samples and for
    # tables in text, which have no index.
    check: Literal["auto", "before", "during"] = "auto"
    max_bad_share: float = 0.1  # a run does not start, or stops, if more samples are unusable
    memory_mib: int = 1024  # decoded pictures stay in memory if they fit in so much
    threads: int = 2  # that read pictures and prepare batches; 0 = in the caller's thread
    prefetch: int = 4  # batches prepared ahead

    def __post_init__(self) -> None:
        kind = self.format or _format_of_name(self.source)
        self._check_pairs(kind)
        defaults = {
            "csv": CsvConfig(),
            "fields": FieldsConfig(),
            "synthetic": SyntheticConfig(),
            "mixture": (),
        }
        for name, default in defaults.items():
            used = kind is None or _GROUP_OF_FORMAT.get(kind, "fields") == name
            used |= name == "fields" and kind in ("csv", "tsv") and self.pairs == "texts"
            if not used and getattr(self, name) != default:
                raise ConfigError(
                    f"config.data.{name} has no effect on the format {kind!r} of "
                    f"config.data.source = {self.source!r}."
                )
        names = [part.name for part in self.mixture]
        if kind == "mixture" and (len(names) < 2 or len(set(names)) < len(names)):
            raise ConfigError(
                f"config.data.mixture has the parts {names}; a mixture needs two or more, each "
                "with its own name."
            )
        if kind == "mixture" and all(part.epochs is not None for part in self.mixture):
            raise ConfigError(
                "config.data.mixture: one part at least has to repeat (epochs = None), since a run "
                "ends by config.total_steps only."
            )
        if kind != "emoji" and self.emoji != EmojiConfig():
            raise ConfigError(
                f"config.data.emoji has no effect with config.data.source = {self.source!r}."
            )
        self._check_resize()
        if not self.stream.lanes:
            _check_unused(
                "config.data.stream", self.stream, ("window", "cache_gib"), "without lanes"
            )
        elif (kind or "webdataset") != "webdataset" or self.check == "before":
            raise ConfigError(
                "config.data.stream.lanes is for webdataset tars that are checked as they are "
                f"read; config.data.source = {self.source!r}, check = {self.check!r}."
            )
        self.tokenizer.check_length(self.text_length)
        self._check_query_length()
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

    def _check_query_length(self) -> None:
        length = self.query_length
        if length is None:
            return
        if self.joined or self.query_from != "query":
            raise ConfigError(
                "config.data.query_length: joined texts, and queries that are the positives, have "
                "config.data.text_length ids."
            )
        if not 1 <= length <= self.text_length:
            raise ConfigError(
                f"config.data.query_length = {length} has to lie between 1 and "
                f"config.data.text_length = {self.text_length}."
            )

    def _check_resize(self) -> None:
        """The details of resizing that have no effect are not set."""
        if self.preprocessing not in ("clip", "shortest"):
            why = f"with config.data.preprocessing = {self.preprocessing!r}"
            _check_unused("config.data.resize", self.resize, ("share", "centre"), why)
        if self.preprocessing != "naflex":
            why = f"with config.data.preprocessing = {self.preprocessing!r}"
            _check_unused("config.data.resize", self.resize, ("patch",), why)
        elif self.image_size % self.resize.patch:
            raise ConfigError(
                f"config.data.image_size = {self.image_size} is no multiple of "
                f"config.data.resize.patch = {self.resize.patch}."
            )
        if self.decoding != "evaluation" and self.preprocessing == "naflex":
            raise ConfigError(
                f"config.data.decoding = {self.decoding!r} makes squares; "
                "config.data.preprocessing = 'naflex' keeps proportions."
            )
        if self.decoding != "evaluation" and self.resize.interpolation != "bicubic":
            raise ConfigError(
                f"config.data.decoding = {self.decoding!r} resizes by bicubic interpolation; "
                f"config.data.resize.interpolation is {self.resize.interpolation!r}."
            )

    def _check_pairs(self, kind: Format | None) -> None:
        """What a kind of pair has no use for is not set."""
        why = f"with config.data.pairs = {self.pairs!r}"
        _check_unused("config.data", self, _UNUSED[self.pairs], why)
        _check_unused("config.data.fields", self.fields, _UNUSED_FIELDS[self.pairs], why)
        if self.stack.name is not None:
            by_stack = f"with config.data.stack.name = {self.stack.name!r}"
            _check_unused("config.data", self, ("augment", "crop"), by_stack)
        if self.pairs != "captions" and kind in ("csv", "tsv"):
            names = ("caption", "keywords", "keywords_separator")
            names += ("image",) if self.pairs == "texts" else ()
            _check_unused("config.data.csv", self.csv, names, why)
            if self.pairs == "texts":
                names = ("split", "held_out_share", "undecodable")
                _check_unused("config.data.fields", self.fields, names, "beside config.data.csv")
        if self.pairs == "texts" and kind in ("emoji", "synthetic", "webdataset", "image_folder"):
            raise ConfigError(f"config.data.source: {kind} holds no pairs of texts.")
        if self.pairs == "views" and kind == "synthetic":
            raise ConfigError("config.data.source: synthetic pairs are pictures with texts.")
        if self.views.second == "content" and self.check == "during":
            raise ConfigError(
                "config.data.views.second = 'content' needs config.data.check = 'before': which "
                "pictures have the same content is known only when all have been read."
            )
        if self.mined.every and (not self.negatives or self.joined or self.check == "during"):
            raise ConfigError(
                "config.data.mined.every: mined negatives need a place in the batch "
                "(config.data.negatives), rows that are compared (config.data.joined = False) and "
                "pairs that are all read before the first batch (config.data.check)."
            )
        if self.mined.every and self.tokenizer.hidden:
            raise ConfigError("config.data.tokenizer.hidden does not go with config.data.mined.")
        for name in ("negatives_file", "negatives_index"):
            if self._named(name) and not self.negatives:
                raise ConfigError(
                    f"config.data.fields.{name} has no effect: config.data.negatives, how many a "
                    "pair has in a batch, is 0."
                )
        if self.numbered and self.check == "during":
            raise ConfigError(
                "config.data.fields.negatives_index needs config.data.check = 'before': the texts "
                "of other pairs are known only when all have been read."
            )
        if self.joined and self.tokenizer.hidden:
            raise ConfigError("config.data.tokenizer.hidden has no effect with config.data.joined.")
        if self.negatives < 0:
            raise ConfigError(f"config.data.negatives = {self.negatives} cannot be negative.")
        if self.content == "first" and self.pairs == "texts":
            raise ConfigError(
                "config.data.content = 'first': equal positives of texts have to be equal in "
                "content, since negatives are told from them; use 'second' or 'either'."
            )
        if self.content == "either" and self.check == "during":
            raise ConfigError(
                "config.data.content = 'either' needs config.data.check = 'before': which pairs "
                "are joined by others is known only when all have been read."
            )

    @property
    def random_part(self) -> CropConfig:
        """Which part of a picture is taken in training: the crop's, or the stack's."""
        stack = self.stack.stack
        return self.crop if stack is None else CropConfig(area=stack.area)

    @property
    def numbered(self) -> bool:
        """Whether negatives are named by numbers of other samples."""
        return self._named("negatives_index")

    def _named(self, file: str) -> bool:
        """Whether the fields, or those of a part of a mixture, name such a file."""
        every = (self.fields, *(part.fields for part in self.mixture))
        return any(getattr(fields, file) is not None for fields in every)

    @property
    def patches(self) -> int:
        """Of the rule naflex: how many a picture has at most."""
        return (self.image_size // self.resize.patch) ** 2

    @property
    def room(self) -> int:
        """The side at which pictures wait for their geometry."""
        if self.random_part.area is not None or self.preprocessing == "naflex":
            return self.image_size
        return self.augment.room(self.image_size)

    @property
    def kind(self) -> Format:
        """The format of the source.

        Raises:
          ConfigError: Its name does not tell, and ``format`` does not say it.
        """
        found = self.format or _format_of_name(self.source)
        path = pathlib.Path(self.source.replace("{split}", "train")).expanduser()
        if found is None and path.is_dir():
            found = _format_of_folder(path)
        if found is None:
            raise ConfigError(
                f"config.data.source = {self.source!r} has to be 'emoji', tfds:NAME, a folder, or "
                f"a path that ends in one of {', '.join(_FORMAT_OF_SUFFIX)}. Or say what it is: "
                "config.data.format."
            )
        return found


# What has no effect on a kind of pairs.
_OF_TEXTS = ("query", "positive", "negatives", "negatives_separator", "negatives_file")
_OF_TEXTS += ("negatives_index", "label", "labels")
_OF_CAPTIONS = ("caption", "keywords", "keywords_separator", "class_names")
_OF_PICTURES = (
    "preprocessing",
    "resize",
    "decoding",
    "crop",
    "augment",
    "stack",
    "rand_augment",
    "views",
)
_PREFIXES = ("query_length", "query_prefix", "passage_prefix", "query_from", "joined", "mined")
_UNUSED = {
    "captions": ("views", "negatives", *_PREFIXES),
    "views": ("captions", "negatives", "content", *_PREFIXES),
    "texts": ("captions", *_OF_PICTURES),
}
_UNUSED_FIELDS = {
    "captions": _OF_TEXTS,
    "views": (*_OF_CAPTIONS, *_OF_TEXTS),
    "texts": ("image", *_OF_CAPTIONS),
}


def _check_unused(where: str, given: Any, names: Sequence[str], why: str) -> None:
    """Raises :class:`ConfigError` where one of these settings has another value than its
    default."""
    fields = {field.name: field for field in dataclasses.fields(given)}
    for name in names:
        make = fields[name].default_factory
        plain = fields[name].default if make is dataclasses.MISSING else make()
        if getattr(given, name) != plain:
            raise ConfigError(f"{where}.{name} has no effect {why}.")


def _format_of_name(source: str) -> Format | None:
    if source in ("emoji", "synthetic", "mixture"):
        return source
    if source.startswith("tfds:"):
        return "tfds"
    plain = re.sub(r"\{[^{}]*\}", "0", source)
    suffix = pathlib.PurePath(plain).suffix.lower()
    suffix = re.sub(r"-[0-9?*]+(-of-[0-9?*]+)?$", "", suffix)  # of files cut in shards
    return _FORMAT_OF_SUFFIX.get(suffix)


def _format_of_folder(folder: pathlib.Path) -> Format:
    """What most files of a folder (or of its folder ``data``) are; else it is of pictures."""
    names = (str(path) for path in (*folder.iterdir(), *folder.glob("data/*")))
    formats = collections.Counter(_format_of_name(name) for name in names)
    for found, _ in formats.most_common():
        if found in ("parquet", "arrow", "webdataset", "array_record", "tfrecord"):
            return found
    return "image_folder"
