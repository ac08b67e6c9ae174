"""Retrieval across the two towers: recall@k, mean and median rank, both ways."""

import math

import numpy as np
from jaxtyping import Float, Int

from contrastive.evaluation.ranking import Ranks, rank

TOP = (1, 5, 10)


def retrieval_metrics(
    queries: Float[np.ndarray, "queries dim"],
    gallery: Float[np.ndarray, "items dim"],
    query_ids: Int[np.ndarray, "queries"],
    gallery_ids: Int[np.ndarray, "items"],
    *,
    top: tuple[int, ...] = TOP,
    block_rows: int = 1024,
    block_cols: int = 8192,
) -> dict[str, float]:
    """Recall@k, mean and median rank of the first right item, and what chance gives.

    Several items may be right for a query and several queries may share an item: what belongs
    together has the same id. Recall@k is the share of queries with a right item among the first k
    (not the share of right items found), its expectation under random order of equal scores.

    Args:
      queries: Unit rows, float32.
      gallery: Unit rows, float32.
      query_ids: Content ids, at least 0.
      gallery_ids: Content ids; −1 is right for no query.
      top: The k of recall@k; those larger than the gallery are left out.
      block_rows: Queries scored at a time.
      block_cols: Items scored at a time; the result does not depend on either.

    Raises:
      ValueError: No queries, a query without a right item, or rows that are not finite.
    """
    ranks = rank(
        queries, gallery, query_ids, gallery_ids, block_rows=block_rows, block_cols=block_cols
    )
    return summarise(ranks, query_ids, gallery_ids, top=top)


def summarise(
    ranks: Ranks,
    query_ids: Int[np.ndarray, "queries"],
    gallery_ids: Int[np.ndarray, "items"],
    *,
    top: tuple[int, ...] = TOP,
) -> dict[str, float]:
    """The metrics of :func:`retrieval_metrics` from ranks that exist."""
    results: dict[str, float] = {}
    right = _targets_per_query(query_ids, gallery_ids)
    for k in top:
        if k <= len(gallery_ids):
            results[f"recall@{k}"] = float(ranks.recall(k).mean())
            results[f"recall@{k}_chance"] = chance_recall(right, len(gallery_ids), k)
    expected = ranks.expected()
    results["mean_rank"] = float(expected.mean())
    results["median_rank"] = float(np.median(expected))
    results["mean_rank_chance"] = float(np.mean((len(gallery_ids) + 1) / (right + 1)))
    results["queries"] = float(len(query_ids))
    results["gallery"] = float(len(gallery_ids))
    return results


def chance_recall(targets: Int[np.ndarray, "queries"], items: int, k: int) -> float:
    """Recall@k of a random order: the mean of ``1 − C(n − p, k) / C(n, k)`` over the queries."""
    values, counts = np.unique(targets, return_counts=True)
    missed = [math.comb(items - int(p), k) / math.comb(items, k) for p in values]
    return float(np.average(1.0 - np.array(missed), weights=counts))


def _targets_per_query(query_ids: np.ndarray, gallery_ids: np.ndarray) -> np.ndarray:
    order = np.sort(gallery_ids)
    first = np.searchsorted(order, query_ids, side="left")
    return np.searchsorted(order, query_ids, side="right") - first
