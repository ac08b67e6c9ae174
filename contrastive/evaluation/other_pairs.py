"""Evaluation of pairs of texts and of pairs of views: retrieval of one half by the other, and how
the two lie on the sphere."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Int32, UInt8

from contrastive.data import emoji
from contrastive.data.captions import canonical
from contrastive.data.config import DataConfig
from contrastive.data.draws import example_keys
from contrastive.data.examples import read_evaluation_pairs, read_examples, read_pictures
from contrastive.data.pairs import view_batch
from contrastive.data.records import SampleError, Source, Subset
from contrastive.data.sources import open_source
from contrastive.data.splits import content_ids
from contrastive.data.unchecked import Fetched
from contrastive.errors import DataError
from contrastive.evaluation import shape
from contrastive.evaluation.baselines import raw_pixel_scores, tf_idf_scores
from contrastive.evaluation.judged import (
    LabelledPairs,
    RankedPassages,
    judged_pairs,
    triplet_accuracy,
)
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.ranking import rank_scores
from contrastive.evaluation.retrieval import summarise
from contrastive.evaluation.sets import HELD_OUT_SPLITS, emoji_splits, evenly, of_split, open_splits
from contrastive.geometry import uniformity
from contrastive.logits import LogitPartition

Compare = Callable[..., Measured]
_uniformity = jax.jit(partial(uniformity, partition=LogitPartition()))
_VIEW_SEED = 0  # of the views that held-out pictures are compared by


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """Queries and positives; they belong together where their ids are equal. ``triplets``: those
    that come with negatives."""

    name: str
    queries: Sequence[str]
    query_ids: Int32[np.ndarray, " queries"]
    positives: Sequence[str]
    positive_ids: Int32[np.ndarray, " positives"]
    triplets: RankedPassages | None = None

    def measure(self, model: Any, compare: Compare) -> Measured:
        """``{"TASK/METRIC": value}``: retrieval both ways and geometry."""
        queries = model.encode_text(list(self.queries), role="query")
        positives = model.encode_text(list(self.positives), role="passage")
        ids = self.query_ids, self.positive_ids
        results = Measured().add(compare(queries, positives, *ids), "query_to_positive")
        results.add(compare(positives, queries, *ids[::-1]), "positive_to_query")
        results.add(_geometry(model, queries, positives, ids, ("queries", "texts")), "geometry")
        return (
            results
            if self.triplets is None
            else results.add(triplet_accuracy(model, self.triplets))
        )

    def baseline(self) -> Measured:
        """Retrieval by the words that two texts have in common."""
        results, scores = Measured(), tf_idf_scores(self.queries, self.positives)
        ids = self.query_ids, self.positive_ids
        for task, matrix, own, other in (
            ("query_to_positive", scores, *ids),
            ("positive_to_query", scores.T, *ids[::-1]),
        ):
            results.add(summarise(rank_scores(matrix, own, other), own, other), task)
        return results

    def contents(self) -> list[str]:
        """What the set consists of, to tell it from others."""
        return [*self.queries, *self.positives]


@dataclasses.dataclass(frozen=True)
class ViewPairs:
    """Pictures to look for, and those among which; equal ids show the same."""

    name: str
    queries: UInt8[np.ndarray, "queries ..."]
    query_ids: Int32[np.ndarray, " queries"]
    gallery: UInt8[np.ndarray, "gallery ..."]
    gallery_ids: Int32[np.ndarray, " gallery"]

    def measure(self, model: Any, compare: Compare) -> Measured:
        """``{"TASK/METRIC": value}``: retrieval and geometry."""
        queries, gallery = model.encode_image(self.queries), model.encode_image(self.gallery)
        ids = self.query_ids, self.gallery_ids
        results = Measured().add(compare(queries, gallery, *ids), "image_to_image")
        return results.add(
            _geometry(model, queries, gallery, ids, ("queries", "images")), "geometry"
        )

    def baseline(self) -> Measured:
        """The same, by the pictures' pixels."""
        labels = np.unique(self.gallery_ids)
        scores = raw_pixel_scores(self.queries, self.gallery, self.gallery_ids, labels)
        found = summarise(rank_scores(scores, self.query_ids, labels), self.query_ids, labels)
        return Measured().add(found, "image_to_image")

    def contents(self) -> list[str]:
        """What the set consists of, to tell it from others."""
        sides = (self.queries, self.query_ids, self.gallery, self.gallery_ids)
        return [hashlib.blake2b(np.ascontiguousarray(x)).hexdigest() for x in sides]


TextSet = TextPairs | LabelledPairs | RankedPassages


def load_pairs(data: DataConfig, *, most: int) -> Sequence[TextSet] | Sequence[ViewPairs]:
    """The evaluation sets of a source of pairs of texts or of views.

    Texts: the splits ``validation``, ``test`` and ``train``; of labelled or joined ones, what is
    said of each pair. Views of emoji: two artists' drawings of the same concepts. Views of your own
    pictures: two views of each held-out picture, made as in training, always the same ones.

    Args:
      data: The data settings of the run, of ``texts`` or ``views``.
      most: Pairs a set; of larger ones, evenly spaced pairs are taken.
    """
    if data.pairs == "texts":
        sets = (_text_set(name, source, data) for name, source in _splits(data, most))
        return [one for one in sets if one is not None]
    if data.source == "emoji":
        return list(_two_artists(data, most))
    return [_two_views(name, source, data) for name, source in _splits(data, most)]


def _splits(data: DataConfig, most: int) -> Iterable[tuple[str, Source]]:
    for name, source in open_splits(data, (*HELD_OUT_SPLITS, "train")):
        chosen = evenly(len(source), most)
        yield name, source if len(chosen) == len(source) else Subset(source, chosen.tolist())


def _text_set(name: str, source: Source, data: DataConfig) -> TextSet | None:
    """The texts of a split; one that comes several times with the same id counts once."""
    with of_split(name, data):
        found = read_examples(source, data)
    judged = None
    if data.negatives or data.fields.labels:
        judged = judged_pairs(name, found, data.fields.labels)
    if data.joined or data.fields.labels:
        return judged

    def once(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
        different: dict[tuple[int, str], str] = {}
        for identity, text in zip(found.ids.tolist(), texts, strict=True):
            different.setdefault((identity, canonical(text)), text)
        ids = np.array([identity for identity, _ in different], np.int32)
        return list(different.values()), ids

    triplets = judged if isinstance(judged, RankedPassages) else None
    return TextPairs(name, *once(found.queries), *once(found.captions), triplets)


def _two_artists(data: DataConfig, most: int) -> Iterable[ViewPairs]:
    first, second = emoji.TRAIN_STYLES[:2]
    if data.emoji.validation:
        yield _artists(
            emoji.VALIDATION_SPLIT, (emoji.VALIDATION_SPLIT, emoji.VALIDATION_SPLIT), data, most
        )
    else:
        others = [name for name in emoji_splits(data) if name.startswith("unseen_both")]
        for other in others:
            name = other.replace("unseen_both", "unseen_concepts")
            yield _artists(name, ("unseen_concepts", other), data, most)
        yield _artists("unseen_artist", ("train", "unseen_artist"), data, most)
    yield _artists("train", ("train", "train"), data, most, (first, second))


def _artists(
    name: str,
    splits: tuple[str, str],
    data: DataConfig,
    most: int,
    styles: tuple[str, str] | None = None,
) -> ViewPairs:
    """The drawings of a split against those of another, or of two artists of one split."""
    if splits[0] == splits[1] and styles is None:
        styles = emoji.TRAIN_STYLES[0], emoji.TRAIN_STYLES[1]
    sides = []
    for i, split in enumerate(splits):
        source = open_source(data, split)
        style = styles[i] if styles else emoji.TRAIN_STYLES[0] if split == "train" else ""
        rows = [r for r in range(len(source)) if source[r]["key"].startswith(style)]
        sides.append(read_evaluation_pairs(Subset(source, rows), data))
    known = np.intersect1d(sides[0].ids, sides[1].ids)
    known = known[evenly(len(known), most)]
    parts = []
    for side in sides:
        keep = np.isin(side.ids, known)
        parts += [side.images[keep], side.ids[keep]]
    return ViewPairs(name, *parts)


def _two_views(name: str, source: Source, data: DataConfig) -> ViewPairs:
    """Two views of each picture; equal pictures, and those of equal ids, are of one content."""
    keys = example_keys(_VIEW_SEED, np.arange(len(source), dtype=np.int64))
    pictures, kept, contents = [], [], []
    for i in range(len(source)):
        try:
            record = source[i]
            pictures.append(read_pictures(record, data, keys[i : i + 1]))
        except SampleError:
            continue  # counted and named when the run started
        kept.append(i)
        digest = hashlib.blake2b(record["image"], digest_size=16).digest()
        contents.append((digest if record["id"] < 0 else record["id"],))
    if not kept:
        raise DataError(f"none of the {len(source)} pictures of the split {name!r} can be read.")
    rows = np.array(kept, np.int64)
    ids = np.array(content_ids(contents), np.int32)
    found = Fetched([""] * len(rows), [()] * len(rows), pictures, ids, rows)
    batch = view_batch(found, found, keys[rows], data)
    return ViewPairs(name, batch["view_a"], ids, batch["view_b"], ids)


def _geometry(
    model: Any,
    first: np.ndarray,
    second: np.ndarray,
    ids: tuple[np.ndarray, np.ndarray],
    names: tuple[str, str],
) -> Measured:
    """How the pairs lie, each row of the first side with the first row of its id on the second;
    the second side's uniformity is that of all its rows."""
    place = {identity: row for row, identity in reversed(list(enumerate(ids[1].tolist())))}
    others = second[[place[identity] for identity in ids[0].tolist()]]
    scale = getattr(model, "scale", None)
    results = shape.geometry_metrics(first, others, ids[0], scale=scale, names=names)
    if len(second) > 1:
        results[f"uniformity_{names[1]}"] = float(_uniformity(second))
    results.drawn |= shape.histograms(first, others, ids[0])
    return results
