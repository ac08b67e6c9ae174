"""Where the best right answer stands in a ranking, with ties ranked fairly.

A query may have several right answers (targets); the best-ranked one counts. Items that score the
same are taken to stand in random order, and the expected value over that order is reported: a
collapsed model, whose scores are all equal, gets exactly chance. The formulas are those of
:class:`contrastive.geometry.Ranks`.

This is for numbers that are reported: ranks are those of exact arithmetic
(:mod:`contrastive.evaluation.placing`). :func:`contrastive.geometry.ranks` is its sibling inside a
compiled program; it calls scores that float32 cannot tell apart equal.
"""

import numpy as np
from jaxtyping import Float, Int

from contrastive.evaluation.placing import Placement, place
from contrastive.evaluation.relevance import Relevance
from contrastive.geometry import Ranks
from contrastive.mesh import Devices

__all__ = ["Ranks", "best_ranks", "rank", "rank_scores"]


def rank(
    queries: Float[np.ndarray, "queries dim"],
    gallery: Float[np.ndarray, "items dim"],
    query_ids: Int[np.ndarray, "queries"],
    gallery_ids: Int[np.ndarray, "items"],
    *,
    block_rows: int = 1024,
    block_cols: int = 8192,
    devices: Devices | None = None,
) -> Ranks:
    """Ranks of the targets of every query by inner product, in bounded memory.

    Item j is a target of query i where ``query_ids[i] == gallery_ids[j]``.

    Args:
      queries: Rows to rank for, unit length, float32.
      gallery: Rows to be ranked, unit length, float32.
      query_ids: Content ids, at least 0.
      gallery_ids: Content ids; −1 is the target of no query.
      block_rows: Queries in a tile.
      block_cols: Items in a tile.
      devices: See :func:`contrastive.evaluation.placing.place`.

    Raises:
      ValueError: There are no queries, a query has no target, or a row is not finite.
    """
    relevance = Relevance.from_ids(query_ids, gallery_ids)
    placement = place(
        queries, gallery, relevance,
        block_rows=block_rows, block_cols=block_cols, devices=devices,
    )  # fmt: skip
    return best_ranks(placement, relevance)


def best_ranks(placement: Placement, relevance: Relevance) -> Ranks:
    """Ranks of the best right item of every query, each of which has one."""
    starts = relevance.starts[:-1]
    greater = np.minimum.reduceat(placement.greater, starts)
    best = placement.greater == np.repeat(greater, relevance.counts)
    targets = np.add.reduceat(best, starts, dtype=np.int64)
    level = np.maximum.reduceat(np.where(best, placement.level, 0), starts)
    return Ranks(greater, level - targets, targets)


def rank_scores(
    scores: Float[np.ndarray, "queries items"],
    query_ids: Int[np.ndarray, "queries"],
    gallery_ids: Int[np.ndarray, "items"],
) -> Ranks:
    """:func:`rank` for a score matrix that exists; equal scores are ties, −inf may occur."""
    Relevance.from_ids(query_ids, gallery_ids)
    bad = np.flatnonzero(np.isnan(scores).any(axis=1))
    if len(bad):
        raise ValueError(f"the scores of query {bad[0]} are not numbers ({len(bad)} such rows).")
    right = query_ids[:, None] == gallery_ids[None, :]
    best = np.max(scores, axis=1, where=right, initial=-np.inf, keepdims=True)
    level = scores == best
    return Ranks(
        greater=np.sum((scores > best) & ~right, axis=1),
        equal=np.sum(level & ~right, axis=1),
        targets=np.sum(level & right, axis=1),
    )
