"""Everything that can be set about the data, from the file on disk to the batch."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

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
from contrastive.data.source_config import (
    FORMAT_OF_SUFFIX,
    CsvConfig,
    EmojiConfig,
    FieldsConfig,
    Format,
    PartConfig,
    SyntheticConfig,
    format_of_folder,
    format_of_name,
)
from contrastive.data.stream_config import StreamConfig
from contrastive.data.text_config import CaptionConfig, TokenizerConfig
from contrastive.errors import ConfigError

# The group of settings that a format reads; the others read "fields".
_GROUP_OF_FORMAT = {
    "csv": "csv",
    "tsv": "csv",
    "emoji": "emoji",
    "synthetic": "synthetic",
    "mixture": "mixture",
}


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
        kind = self.format or format_of_name(self.source)
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
        found = self.format or format_of_name(self.source)
        path = pathlib.Path(self.source.replace("{split}", "train")).expanduser()
        if found is None and path.is_dir():
            found = format_of_folder(path)
        if found is None:
            raise ConfigError(
                f"config.data.source = {self.source!r} has to be 'emoji', tfds:NAME, a folder, or "
                f"a path that ends in one of {', '.join(FORMAT_OF_SUFFIX)}. Or say what it is: "
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
