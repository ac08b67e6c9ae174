"""Bitext mining: which sentences of two lists are translations of each other."""

import numpy as np
from jaxtyping import Float, Int

from contrastive.errors import DataError
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.neighbours import neighbours
from contrastive.evaluation.ranking import rank


def bitext_metrics(
    first: Float[np.ndarray, "sentences dim"],
    second: Float[np.ndarray, "others dim"],
    pairs: Int[np.ndarray, "pairs 2"] | None = None,
    *,
    k: int = 4,
) -> Measured:
    """How well translations are found, by the nearest sentence and by mining.

    ``accuracy`` is the share of the sentences of known pairs whose nearest one is the right one
    (equal cosines share the credit), ``accuracy_back`` the same from the second list. ``f1`` is
    that of :func:`mine`'s pairs at the best threshold of their margin, chosen on these very pairs,
    with its ``precision``, ``recall`` and ``threshold``.

    Args:
      first: Unit rows of one language.
      second: Unit rows of the other.
      pairs: Which sentences belong together; None: those of the same number.
      k: Neighbours that the margin looks at.

    Raises:
      DataError: No pairs; without ``pairs``, lists of different lengths.
    """
    if pairs is None:
        if len(first) != len(second):
            raise DataError(
                f"{len(first)} and {len(second)} sentences cannot be pairs by their number; say "
                "which belong together."
            )
        pairs = np.stack([np.arange(len(first))] * 2, axis=1)
    if not len(pairs):
        raise DataError("there are no pairs of sentences to find.")
    results = Measured()
    for name, one, other, own in (
        ("accuracy", first, second, pairs),
        ("accuracy_back", second, first, pairs[:, ::-1]),
    ):
        ranks = rank(one[own[:, 0]], other, own[:, 1], np.arange(len(other)))
        results.mean(name, np.asarray(ranks.recall(1)))
    results["accuracy_chance"] = 1 / len(second)
    found, margins = mine(first, second, k=k)
    known = set(map(tuple, pairs.tolist()))
    right = np.array([tuple(pair) in known for pair in found.tolist()])
    hits = np.cumsum(right)
    said = np.arange(1, len(found) + 1)
    f1 = 2 * hits / (said + len(known))
    f1[:-1][margins[:-1] == margins[1:]] = 0  # a threshold is between two margins
    best = int(f1.argmax())
    results |= {
        "f1": float(f1[best]),
        "precision": float(hits[best] / said[best]),
        "recall": float(hits[best] / len(known)),
        "threshold": float(margins[best]),
        "mined": float(len(found)),
        "pairs": float(len(known)),
    }
    return results


def mine(
    first: Float[np.ndarray, "sentences dim"],
    second: Float[np.ndarray, "others dim"],
    *,
    k: int = 4,
) -> tuple[Int[np.ndarray, "found 2"], Float[np.ndarray, "found"]]:
    """Candidate translations, the surest first, each sentence once.

    The margin of a pair is its cosine divided by the mean cosine of both sentences with their k
    nearest. Pairs are the best of each sentence of either list; greedily, the surest first, a
    sentence is taken once.

    Returns:
      The pairs' numbers, and their margins.

    References:
      Artetxe & Schwenk, Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings,
      2019.
    """
    there = neighbours(first, second, min(k, len(second)))
    back = neighbours(second, first, min(k, len(first)))
    around = there.scores.mean(axis=1), back.scores.mean(axis=1)

    def margins(rows: np.ndarray, columns: np.ndarray, cosines: np.ndarray) -> np.ndarray:
        mean = (around[0][rows] + around[1][columns]) / 2
        return np.divide(cosines, mean, out=np.zeros_like(cosines), where=mean > 0)

    ahead = margins(np.arange(len(first))[:, None], there.items, there.scores)
    behind = margins(back.items, np.arange(len(second))[:, None], back.scores)
    forward = np.stack([np.arange(len(first)), _best(there.items, ahead)], axis=1)
    reverse = np.stack([_best(back.items, behind), np.arange(len(second))], axis=1)
    pairs = np.concatenate([forward, reverse])
    surest = np.concatenate([ahead.max(axis=1), behind.max(axis=1)])
    taken: tuple[set[int], set[int]] = set(), set()
    kept = []
    for place in np.argsort(-surest, kind="stable").tolist():
        one, other = pairs[place].tolist()
        if one not in taken[0] and other not in taken[1]:
            taken[0].add(one)
            taken[1].add(other)
            kept.append(place)
    return pairs[kept], surest[kept]


def _best(items: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.take_along_axis(items, values.argmax(axis=1)[:, None], axis=1)[:, 0]
