"""Queries with what the model finds for them, and what it gets most wrong.

Which queries are shown is drawn at random, never chosen by the result.
"""

import base64
import collections
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from contrastive.data.config import DataConfig
from contrastive.data.transforms import decode_image, square
from contrastive.evaluation.neighbours import neighbours
from contrastive.evaluation.ranking import rank
from contrastive.evaluation.sets import EvaluationSet, emoji_splits, load_sets

SHOWN_PICTURES = 2000
THUMBNAIL = 96  # pixels; smaller pictures keep their size


@dataclasses.dataclass(frozen=True)
class Hit:
    """Something that was found."""

    name: str
    score: float
    right: bool
    picture: str = ""  # a data URI


@dataclasses.dataclass(frozen=True)
class TextQuery:
    """Words, and the pictures nearest to them."""

    text: str
    hits: Sequence[Hit]
    right: int  # pictures that would be right, anywhere
    rank: int  # of the best-placed right one


@dataclasses.dataclass(frozen=True)
class ImageQuery:
    """A picture, and the names nearest to it."""

    picture: str
    name: str  # its own
    score: float  # of its own name
    rank: int  # of its own name; the best place where scores tie
    hits: Sequence[Hit]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A picture that is far nearer to a wrong name than to its own."""

    picture: str
    name: str
    score: float
    rank: int
    said: str
    said_score: float
    said_picture: str  # of what was said, by the same artist; may be empty


@dataclasses.dataclass(frozen=True)
class Examples:
    """All that the page shows of one set."""

    set_name: str
    pictures: int
    texts: int
    by_name: Sequence[TextQuery]
    by_keyword: Sequence[TextQuery]
    by_image: Sequence[ImageQuery]
    mistakes: Sequence[Mistake]


def find_examples(model: Any, data: DataConfig, *, seed: int = 0) -> Examples | None:
    """Examples from pictures that were not trained on, or None where there is nothing to show.

    Args:
      model: Encodes pictures and texts (``contrastive.inference.Model``).
      data: The run's data settings.
      seed: Decides which queries are drawn.
    """
    names = emoji_splits(data)[:1] if data.source == "emoji" else ("validation", "test", "train")
    for name in names:
        if found := load_sets(data, most=SHOWN_PICTURES, only=(name,), encoded=True):
            return examples_of(model, found[0], seed=seed)
    return None


def examples_of(model: Any, one: EvaluationSet, *, seed: int = 0) -> Examples:
    """The examples of one set, whose pictures' files are at hand."""
    draw = np.random.default_rng(seed)
    view = _View(one, model.encode_image(one.images), model.encode_text(list(one.texts)))
    named = np.flatnonzero(np.isin(one.text_ids, one.ids))
    names = [int(i) for i in np.sort(draw.choice(named, min(6, len(named)), replace=False))]
    words = _keywords(one, draw, 6)
    rows = model.encode_text(words) if words else view.texts[:0]
    pictures = np.sort(draw.choice(len(one.ids), min(9, len(one.ids)), replace=False)).tolist()
    return Examples(
        set_name=one.name,
        pictures=len(one.ids),
        texts=len(one.texts),
        by_name=[
            view.text_query(one.texts[i], view.texts[i], one.ids == one.text_ids[i]) for i in names
        ],
        by_keyword=[
            view.text_query(word, row, np.array([word in words for words in one.keywords]))
            for word, row in zip(words, rows, strict=True)
        ],
        by_image=[view.image_query(i) for i in pictures],
        mistakes=view.mistakes(12),
    )


class _View:
    """A set as the model sees it."""

    def __init__(self, one: EvaluationSet, images: np.ndarray, texts: np.ndarray) -> None:
        self.one, self.images, self.texts = one, images, texts
        self.above = rank(images, texts, one.ids, one.text_ids).greater
        pairs = reversed(list(zip(one.text_ids.tolist(), one.texts, strict=True)))
        name_of = dict(pairs)  # the first text of each id
        self.names = [name_of[identity] for identity in one.ids.tolist()]

    def text_query(self, text: str, row: np.ndarray, right: np.ndarray) -> TextQuery:
        best, scores = neighbours(row[None], self.images, min(6, len(self.images)))
        every = self.images @ row
        place = int(np.sum(every > np.max(every, where=right, initial=-2.0))) + 1
        hits = [
            Hit(self.names[i], score, bool(right[i]), thumbnail(self.one.encoded[i]))
            for i, score in zip(best[0].tolist(), scores[0].tolist(), strict=True)
        ]
        return TextQuery(text, hits, int(right.sum()), place)

    def image_query(self, i: int) -> ImageQuery:
        best, scores = neighbours(self.images[i : i + 1], self.texts, min(5, len(self.texts)))
        right = self.one.text_ids == self.one.ids[i]
        hits = [
            Hit(self.one.texts[int(t)], float(score), bool(right[t]))
            for t, score in zip(best[0], scores[0], strict=True)
        ]
        picture = thumbnail(self.one.encoded[i])
        own = float(np.max(self.texts @ self.images[i], where=right, initial=-2.0))
        return ImageQuery(picture, self.names[i], own, int(self.above[i]) + 1, hits)

    def mistakes(self, count: int) -> list[Mistake]:
        """The widest gaps between what was said and what is right, one for each thing said."""
        one = self.one
        scores = self.images @ self.texts.T
        said, right = scores.argmax(axis=1), one.ids[:, None] == one.text_ids[None, :]
        own = np.max(scores, axis=1, where=right, initial=-2.0)
        margin = np.where(self.above > 0, scores.max(axis=1) - own, -np.inf)
        picture_of = {identity: i for i, identity in reversed(list(enumerate(one.ids.tolist())))}
        found: dict[int, Mistake] = {}
        for i in np.argsort(-margin, kind="stable").tolist():
            text = int(said[i])
            if margin[i] <= 0 or len(found) == count:
                break
            if text in found:
                continue
            other = picture_of.get(int(one.text_ids[text]))
            found[text] = Mistake(
                picture=thumbnail(one.encoded[i]),
                name=self.names[i],
                score=float(own[i]),
                rank=int(self.above[i]) + 1,
                said=one.texts[text],
                said_score=float(scores[i, text]),
                said_picture="" if other is None else thumbnail(one.encoded[other]),
            )
        return list(found.values())


def _keywords(one: EvaluationSet, draw: np.random.Generator, count: int) -> list[str]:
    """Words that several pictures have, but not too many, and that are nobody's name."""
    owners = collections.Counter(word for words in one.keywords for word in set(words))
    taken = {text.casefold() for text in one.texts}
    fit = sorted(w for w, n in owners.items() if 3 <= n <= 12 and w.casefold() not in taken)
    if not fit:
        return []
    return [str(w) for w in draw.choice(fit, min(count, len(fit)), replace=False)]


def thumbnail(encoded: bytes) -> str:
    """The middle square of a picture as a data URI, its own size or ``THUMBNAIL`` wide."""
    image = square(decode_image(encoded))
    small = image.width <= THUMBNAIL
    if not small:
        image = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    if small:
        image.quantize(128).save(out, "png", optimize=True)
    else:
        image.save(out, "jpeg", quality=85)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"
