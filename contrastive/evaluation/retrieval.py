"""Retrieval across the two towers: recall@k, ranks and R-precision, both ways."""

import math

import numpy as np
from jaxtyping import Float, Int

from contrastive.evaluation.measured import Measured
from contrastive.evaluation.placing import Placement, place
from contrastive.evaluation.ranking import Ranks, best_ranks
from contrastive.evaluation.relevance import Relevance
from contrastive.mesh import Devices

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
    devices: Devices | None = None,
) -> Measured:
    """Recall@k, mean and median rank of the first right item, R-precision, and what chance gives.

    Several items may be right for a query and several queries may share an item: what belongs
    together has the same id. Recall@k is the share of queries with a right item among the first k
    (not the share of right items found), its expectation under random order of equal scores.

    Args:
      queries: Unit rows, float32.
      gallery: Unit rows, float32.
      query_ids: Content ids, at least 0.
      gallery_ids: Content ids; −1 is right for no query.
      top: The k of recall@k; those larger than the gallery are left out.
      block_rows: Queries of a tile.
      block_cols: Items of a tile; the result does not depend on either.
      devices: The queries are cut over them; see :func:`contrastive.evaluation.placing.place`.

    Raises:
      ValueError: No queries, a query without a right item, or rows that are not finite.
    """
    relevance = Relevance.from_ids(query_ids, gallery_ids)
    placement = place(
        queries, gallery, relevance,
        block_rows=block_rows, block_cols=block_cols, devices=devices,
    )  # fmt: skip
    ranks = best_ranks(placement, relevance)
    results = summarise(ranks, query_ids, gallery_ids, top=top)
    results.mean("r_precision", r_precision(placement, relevance))
    results["r_precision_chance"] = float(np.mean(relevance.counts / len(gallery_ids)))
    return results


def summarise(
    ranks: Ranks,
    query_ids: Int[np.ndarray, "queries"],
    gallery_ids: Int[np.ndarray, "items"],
    *,
    top: tuple[int, ...] = TOP,
) -> Measured:
    """The metrics of :func:`retrieval_metrics` that follow from the best item's rank."""
    results = Measured()
    right = _targets_per_query(query_ids, gallery_ids)
    for k in top:
        if k <= len(gallery_ids):
            results.mean(f"recall@{k}", np.asarray(ranks.recall(k)))
            results[f"recall@{k}_chance"] = chance_recall(right, len(gallery_ids), k)
    expected = np.asarray(ranks.expected())
    results.mean("mean_rank", expected)
    results["median_rank"] = float(np.median(expected))
    results["mean_rank_chance"] = float(np.mean((len(gallery_ids) + 1) / (right + 1)))
    results["queries"] = float(len(query_ids))
    results["gallery"] = float(len(gallery_ids))
    return results


def r_precision(placement: Placement, relevance: Relevance) -> Float[np.ndarray, "queries"]:
    """Share of right items among a query's first R, R the number of its right items.

    In expectation under random order of equal scores, each right item is among the first R with
    probability ``clip((R − greater) / level, 0, 1)``.
    """
    counts = np.repeat(relevance.counts, relevance.counts)
    inside = np.clip((counts - placement.greater) / placement.level, 0, 1)
    return np.bincount(relevance.rows, inside, len(relevance.counts)) / relevance.counts


def chance_recall(targets: Int[np.ndarray, "queries"], items: int, k: int) -> float:
    """Recall@k of a random order: the mean of ``1 − C(n − p, k) / C(n, k)`` over the queries."""
    values, counts = np.unique(targets, return_counts=True)
    missed = [math.comb(items - int(p), k) / math.comb(items, k) for p in values]
    return float(np.average(1.0 - np.array(missed), weights=counts))


def _targets_per_query(query_ids: np.ndarray, gallery_ids: np.ndarray) -> np.ndarray:
    order = np.sort(gallery_ids)
    first = np.searchsorted(order, query_ids, side="left")
    return np.searchsorted(order, query_ids, side="right") - first
