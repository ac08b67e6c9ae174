"""What texts become: captions of records, and ids of captions."""

import dataclasses
from typing import Literal, TypeAlias

from contrastive.errors import ConfigError

LEAST_VOCABULARY = 259  # 256 bytes, begin, end, padding

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
    # Broader terms that follow the words of a text, at most so many for each ("zebra" -> equine,
    # mammal, animal ...), by WordNet, in English. Of "words" only. They stand behind the whole
    # text, its prefix or template included.
    broader: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.hidden < 1:
            raise ConfigError(
                f"config.data.tokenizer.hidden = {self.hidden} has to be at least 0 and below 1."
            )
        if self.broader < 0:
            raise ConfigError(
                f"config.data.tokenizer.broader = {self.broader} cannot be negative; 0 = no terms."
            )
        if self.broader and (self.kind, self.preset, self.path) != ("words", None, None):
            raise ConfigError(
                "config.data.tokenizer.broader needs config.data.tokenizer.kind = 'words' and a "
                "vocabulary learned from the captions (no preset, no path): others have no tokens "
                "for the terms. Set one or the other, or config.data.tokenizer.broader = 0."
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
