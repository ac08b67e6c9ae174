"""Which words a training picture is shown with."""

import dataclasses
import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt64

from contrastive.data.draws import uniform
from contrastive.errors import ConfigError


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


def canonical(caption: str) -> str:
    """The form in which captions are compared: composed, lower case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", caption).casefold().split())


def choose_captions(
    captions: Sequence[str],
    keywords: Sequence[Sequence[str]],
    keys: UInt64[np.ndarray, " batch"],
    config: CaptionConfig,
) -> list[str]:
    """One caption for each example of a batch."""
    weights = np.array([config.name, config.name_and_keywords, config.keywords])
    edges = np.cumsum(weights / weights.sum())[:2]
    u = uniform(keys, "caption", 4)
    kind = np.searchsorted(edges, u[:, 0], side="right").tolist()
    rank = uniform(keys, "keywords", max(map(len, keywords), default=0))
    chosen: list[str] = []
    for i, (caption, words) in enumerate(zip(captions, keywords, strict=True)):
        if kind[i] and words:
            count = 1 + int(u[i, 1] * min(config.most_keywords, len(words)))
            order = np.argsort(rank[i, : len(words)])
            parts = [words[int(j)] for j in order[:count]]
            caption = ", ".join([caption, *parts] if kind[i] == 1 else parts)
        if config.templates and u[i, 2] < config.template_share:
            template = config.templates[int(u[i, 3] * len(config.templates))]
            caption = template.replace("{}", caption)
        chosen.append(caption)
    return chosen
