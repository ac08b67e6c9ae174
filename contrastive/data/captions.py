"""Which words a training picture is shown with."""

import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt64

from contrastive.data.draws import uniform
from contrastive.data.text_config import CaptionConfig


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
