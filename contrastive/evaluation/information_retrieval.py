"""Information retrieval over judged items (qrels): nDCG, MRR, MAP, recall, as trec_eval has them.

Every measure is its expectation under random order of equal scores, in closed form (McSherry &
Najork 2008); without ties it is trec_eval's. trec_eval itself breaks ties by the items' names.
"""

import numpy as np
from jaxtyping import Float, Int
from scipy.special import digamma

from contrastive.errors import DataError
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.placing import Placement, place
from contrastive.evaluation.ranking import best_ranks
from contrastive.evaluation.relevance import Relevance
from contrastive.mesh import Devices

NDCG, MRR, MAP, RECALL, PRECISION, SUCCESS = (10,), (10,), (100,), (1, 10, 100), (10,), (1, 10)


def information_retrieval_metrics(
    queries: Float[np.ndarray, "queries dim"],
    corpus: Float[np.ndarray, "items dim"],
    relevance: Relevance,
    *,
    excluded: Relevance | None = None,
    block_rows: int = 1024,
    block_cols: int = 8192,
    devices: Devices | None = None,
) -> Measured:
    """nDCG@10, MRR@10, MAP, MAP@100, recall@k, precision@10 and success@k over the queries.

    With rank r of a right item, R right items, gains g and the best possible order for the ideal::

        ndcg@k       Σ_{r ≤ k} g / log2(r + 1), divided by that of the ideal order
        mrr@k        1 / r of the first right item, 0 if r > k
        map          mean over the right items of (right ones up to r) / r; map@100 counts r ≤ 100
        recall@k     right items up to k / R            (not: whether there is one)
        precision@k  right items up to k / k
        success@k    whether there is a right item up to k

    Queries without a right item are left out and counted.

    Args:
      queries: Unit rows, float32.
      corpus: Unit rows, float32.
      relevance: The right items and their gains.
      excluded: Items that are left out of a query's ranking.
      block_rows: Queries of a tile.
      block_cols: Items of a tile.
      devices: See :func:`contrastive.evaluation.placing.place`.

    Raises:
      DataError: No query has a right item.
      ValueError: Rows that are not finite.

    References:
      McSherry & Najork, Computing Information Retrieval Performance Measures Efficiently in the
      Presence of Tied Scores, 2008.
    """
    judged = np.flatnonzero(relevance.counts)
    if not len(judged):
        raise DataError(f"none of the {len(queries)} queries has a right item.")
    placement = place(
        queries, corpus, relevance, excluded=excluded,
        block_rows=block_rows, block_cols=block_cols, devices=devices,
    )  # fmt: skip
    only = Relevance(
        np.concatenate([[0], np.cumsum(relevance.counts[judged])]),
        relevance.items,
        relevance.gains,
    )
    results = metrics_of(placement, only)
    for k in RECALL:
        results[f"recall@{k}_chance"] = min(1.0, k / len(corpus))
    results["queries"] = float(len(judged))
    results["corpus"] = float(len(corpus))
    if len(judged) < len(queries):
        results["queries_without_right_items"] = float(len(queries) - len(judged))
    return results


def metrics_of(placement: Placement, relevance: Relevance) -> Measured:
    """The metrics from the places of right items; every query has one."""
    results = Measured()
    for k in NDCG:
        results.mean(f"ndcg@{k}", ndcg(placement, relevance, k))
    for k in MRR:
        results.mean(f"mrr@{k}", reciprocal_rank(placement, relevance, k))
    results.mean("map", average_precision(placement, relevance))
    for k in MAP:
        results.mean(f"map@{k}", average_precision(placement, relevance, k))
    for k in RECALL:
        results.mean(f"recall@{k}", _inside(placement, relevance, k) / relevance.counts)
    for k in PRECISION:
        results.mean(f"precision@{k}", _inside(placement, relevance, k) / k)
    ranks = best_ranks(placement, relevance)
    for k in SUCCESS:
        results.mean(f"success@{k}", np.asarray(ranks.recall(k)))
    return results


def ndcg(placement: Placement, relevance: Relevance, k: int) -> Float[np.ndarray, "queries"]:
    """nDCG@k of every query, with linear gains and the discount ``1 / log2(rank + 1)``."""
    # total[n]: the discounts of the ranks 1 … n
    total = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))])
    first, last = (np.minimum(x, k) for x in (placement.greater, _end(placement)))
    discount = (total[last] - total[first]) / placement.level
    found = np.bincount(relevance.rows, relevance.gains * discount, len(relevance.counts))
    rows = relevance.rows
    order = np.lexsort((-relevance.gains, rows))
    place = np.arange(len(rows)) - relevance.starts[rows]  # of a query's gains, largest first
    inside = place < k
    gains = relevance.gains[order] * np.diff(total)[np.minimum(place, k - 1)]
    ideal = np.bincount(rows[inside], gains[inside], len(relevance.counts))
    return found / ideal


def reciprocal_rank(
    placement: Placement, relevance: Relevance, k: int
) -> Float[np.ndarray, "queries"]:
    """``E[1 / rank]`` of the first right item, 0 beyond the first k."""
    ranks = best_ranks(placement, relevance)
    greater, equal, targets = (np.asarray(x) for x in ranks)
    value, later = np.zeros(len(greater)), np.ones(len(greater))
    for i in range(k):
        # The i-th of the places that share the best score holds the first right one.
        left = equal + targets - i
        here = np.where(left > 0, later * np.clip(targets / np.maximum(left, 1), 0, 1), 0.0)
        rank = np.minimum(greater, k) + i + 1
        value += np.where(rank <= k, here / rank, 0.0)
        later = later - here
    return value


def average_precision(
    placement: Placement, relevance: Relevance, k: int | None = None
) -> Float[np.ndarray, "queries"]:
    """Average precision of every query, over all ranks or the first k; divided by the number of
    right items.

    Of n items that share a score, p of them right, g above and r right ones above, rank g + i is
    right with probability p / n, and then ``r + 1 + (i − 1)(p − 1)/(n − 1)`` are right up to it.
    """
    rows, greater = relevance.rows, placement.greater
    order = np.lexsort((greater, rows))
    rows, greater, n = rows[order], greater[order], placement.level[order]
    found = greater < np.iinfo(np.int64).max // 8  # what is not in the corpus is never found
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]) | (greater[1:] != greater[:-1])
    group = np.cumsum(new) - 1
    right = np.bincount(group)[group]  # p
    before = np.flatnonzero(new)[group] - relevance.starts[rows]  # r
    g = np.where(found, greater, 0).astype(np.float64)
    last = n if k is None else np.clip(k - g, 0, n)
    inverse = digamma(g + last + 1) - digamma(g + 1)  # Σ 1 / (g + i)
    inverse = np.where((n == 1) & (last == 1), 1 / (g + 1), inverse)
    steps = last - (g + 1) * inverse  # Σ (i − 1) / (g + i)
    slope = (right - 1) / np.maximum(n - 1, 1)
    precision = ((before + 1) * inverse + slope * steps) / n
    total = np.bincount(rows, np.where(found, precision, 0.0), len(relevance.counts))
    return total / relevance.counts


def _end(placement: Placement) -> Int[np.ndarray, "pairs"]:
    return placement.greater + placement.level


def _inside(placement: Placement, relevance: Relevance, k: int) -> Float[np.ndarray, "queries"]:
    """Expected number of right items among the first k."""
    inside = np.clip((k - placement.greater) / placement.level, 0, 1)
    return np.bincount(relevance.rows, inside, len(relevance.counts))
