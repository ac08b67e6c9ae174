"""Everything that can be set about the data, from the file on disk to the batch."""

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
_ROOM = 1.5  # pictures are kept this much larger than the tower's input while geometry is pending
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
        if not self.keywords_separator:
            raise ConfigError("config.data.fields.keywords_separator cannot be empty.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartConfig:
    """One source of a mixture."""

    name: str  # how counters and messages call it
    source: str  # like config.data.source
    format: Format | None = None  # like config.data.format
    fields: FieldsConfig = dataclasses.field(default_factory=FieldsConfig)
    csv: CsvConfig = dataclasses.field(default_factory=CsvConfig)
    weight: float = 1.0  # how many samples come from it, relative to the sum of all weights

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ConfigError(
                f"config.data.mixture: the weight {self.weight} of {self.name!r} is not positive."
            )
        if self.source == "synthetic":
            raise ConfigError("config.data.mixture: synthetic pairs cannot be mixed with others.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmojiConfig:
    """Which part of the built-in set is trained on."""

    # Set a tenth of the training concepts aside, by base, and evaluate on their pictures only:
    # to choose settings by, without a look at the test sets.
    validation: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Where token ids come from."""

    # The vocabulary, markers, padding, cleaning and length of a published model. clip and bert come
    # with this package; siglip and siglip2 need the path of their vocabulary.
    preset: Literal["clip", "bert", "siglip", "siglip2"] | None = None
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
        if self.path is None and self.preset in ("siglip", "siglip2"):
            raise ConfigError(
                f"config.data.tokenizer.preset = {self.preset!r} needs config.data.tokenizer.path: "
                "the .model or tokenizer.json that its authors publish."
            )

    def check_length(self, length: int) -> None:
        """Raises :class:`ConfigError` unless the preset can have texts of so many ids."""
        fixed = {"clip": 77, "siglip": 64, "siglip2": 64}.get(str(self.preset))
        if fixed is not None and length != fixed:
            raise ConfigError(
                f"config.data.text_length = {length}, but the preset {self.preset!r} has {fixed} "
                "ids a text. For another length name the vocabulary by config.data.tokenizer.path "
                "without a preset."
            )
        if self.preset == "bert" and length > 512:
            raise ConfigError(f"config.data.text_length = {length}; BERT has 512 ids at most.")


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
class CropConfig:
    """A random part of each training picture, resized, before anything else is done to it."""

    # Share of the picture's area; None = the whole picture. (0.9, 1.0) is open_clip's, (0.2, 1.0)
    # MoCo's, (0.08, 1.0) SimCLR's.
    area: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height

    def __post_init__(self) -> None:
        if self.area is not None and not 0 < self.area[0] <= self.area[1] <= 1:
            raise ConfigError(
                f"config.data.crop.area = {self.area} has to be two shares, the smaller one first."
            )
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(
                f"config.data.crop.ratio = {self.ratio} has to be two positive ratios, the smaller "
                "one first."
            )
        if self.area is None and self.ratio != (3 / 4, 4 / 3):
            raise ConfigError("config.data.crop.ratio has no effect without config.data.crop.area.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How far training pictures are changed. 0 = off."""

    zoom: float = 0.2  # size times or divided by up to 1 + zoom
    stretch: float = 0.1  # width over height times or divided by up to 1 + stretch
    shift: float = 0.1  # moved by up to this share of the side, each way
    rotate: float = 10.0  # turned by up to so many degrees, each way
    flip: float = 0.0  # share of pictures that are mirrored (arrows and letters change meaning)
    brightness: float = 0.2  # all values times 1 - brightness ... 1 + brightness
    contrast: float = 0.2  # distance from the mean grey times 1 - contrast ... 1 + contrast
    saturation: float = 0.3  # distance from grey times 1 - saturation ... 1 + saturation
    hue: float = 10.0  # colours turned around the grey axis by up to so many degrees
    grayscale: float = 0.05  # share of pictures that lose their colour
    blur: float = 0.1  # share of pictures that are blurred (3 x 3, of random weight)
    cutout: float = 0.0  # a rectangle of up to this share of each side gets the mean colour

    def __post_init__(self) -> None:
        shares = ("shift", "flip", "brightness", "contrast", "grayscale", "blur", "cutout")
        limits = {**dict.fromkeys(shares, 1.0), "rotate": 180.0, "hue": 180.0}
        for field in dataclasses.fields(self):
            value, limit = getattr(self, field.name), limits.get(field.name, math.inf)
            if not 0 <= value <= limit:
                raise ConfigError(
                    f"config.data.augment.{field.name} = {value} has to lie between 0 and "
                    f"{limit:g}."
                )

    @property
    def geometric(self) -> bool:
        """Whether pictures are moved at all."""
        return any((self.zoom, self.stretch, self.shift, self.rotate, self.flip))

    def room(self, image_size: int) -> int:
        """The side at which pictures wait for their geometry."""
        return math.ceil(image_size * _ROOM) if self.geometric else image_size


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
    image_size: int = 32  # side of the pictures that the model sees, in pixels
    # How a picture becomes square: its middle, resized (square); resized, then the middle (clip);
    # stretched (siglip). Together with model.pixel_mean and pixel_std.
    preprocessing: Literal["square", "clip", "siglip"] = "square"
    # How training pictures are decoded and resized. evaluation: as in evaluation, by Pillow. train:
    # by faster code where contrastive[fast] is installed, within 2/255. train_fast: large JPEGs are
    # also decoded at a smaller scale, which is less exact.
    decoding: Literal["evaluation", "train", "train_fast"] = "evaluation"
    text_length: int = 16  # token ids a caption, begin and end included
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    captions: CaptionConfig = dataclasses.field(default_factory=CaptionConfig)
    crop: CropConfig = dataclasses.field(default_factory=CropConfig)
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)
    csv: CsvConfig = dataclasses.field(default_factory=CsvConfig)
    fields: FieldsConfig = dataclasses.field(default_factory=FieldsConfig)
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
        defaults = {
            "csv": CsvConfig(),
            "fields": FieldsConfig(),
            "synthetic": SyntheticConfig(),
            "mixture": (),
        }
        for name, default in defaults.items():
            used = kind is None or _GROUP_OF_FORMAT.get(kind, "fields") == name
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
        if kind != "emoji" and self.emoji != EmojiConfig():
            raise ConfigError(
                f"config.data.emoji has no effect with config.data.source = {self.source!r}."
            )
        self.tokenizer.check_length(self.text_length)
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

    @property
    def room(self) -> int:
        """The side at which pictures wait for their geometry."""
        return self.augment.room(self.image_size) if self.crop.area is None else self.image_size

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
        if found in ("parquet", "arrow", "webdataset", "array_record"):
            return found
    return "image_folder"
