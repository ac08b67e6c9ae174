"""Where the right answer stands in a ranking, with ties ranked fairly.

A query may have several right answers (targets); the best-ranked one counts. Items that score the
same are taken to stand in random order, and the expected value over that order is reported: a
collapsed model, whose scores are all equal, gets exactly chance.

Scores that float32 cannot tell apart are scored again in float64, pair by pair: ranks are those of
exact arithmetic, whatever the blocks in which the score matrix is computed. This is for numbers
that are reported, and runs on the host. :func:`contrastive.geometry.ranks` is its sibling inside a
compiled program, on a mesh; it calls such near scores equal, as float32 has to.
"""

import dataclasses
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Two float64 scores closer than this are equal: far above float64 rounding, far below float32's.
TIE = 1e-12
# At most so many float64 numbers are held while pairs are scored again.
PAIR_BUDGET = 1 << 22


@dataclasses.dataclass(frozen=True)
class Ranks:
    """For each query: what stands above its best target and what stands level with it."""

    greater: Int[np.ndarray, "queries"]  # items that score higher than the best target
    tied: Int[np.ndarray, "queries"]  # items that are no target and score the same
    targets: Int[np.ndarray, "queries"]  # targets that share the best score, at least 1

    def recall(self, k: int) -> Float[np.ndarray, "queries"]:
        """Probability that a target is among the first ``k`` under random order of ties.

        With g items above, t level and p targets level, s = clip(k − g, 0, t + p) places are left::

            1 − C(t, s) / C(t + p, s)        (one target: clip((k − g) / (t + 1), 0, 1))
        """
        places = np.clip(k - self.greater, 0, self.tied + self.targets)
        missed = np.ones(len(places))
        for target in range(int(self.targets.max(initial=0))):
            # C(t, s) / C(t + p, s) = prod over the p targets of (t + p − i − s) / (t + p − i)
            left = self.tied + self.targets - target
            factor = np.clip(left - places, 0, None) / np.maximum(left, 1)
            missed *= np.where(target < self.targets, factor, 1.0)
        return 1.0 - missed

    def expected(self) -> Float[np.ndarray, "queries"]:
        """Expected rank of the best-placed target, from 1: ``g + (t + p + 1) / (p + 1)``."""
        return self.greater + (self.tied + self.targets + 1) / (self.targets + 1)


def rank(
    queries: Float[np.ndarray, "queries dim"],
    gallery: Float[np.ndarray, "items dim"],
    query_ids: Int[np.ndarray, "queries"],
    gallery_ids: Int[np.ndarray, "items"],
    *,
    block_rows: int = 1024,
    block_cols: int = 8192,
) -> Ranks:
    """Ranks of the targets of every query by inner product, in bounded memory.

    Item j is a target of query i where ``query_ids[i] == gallery_ids[j]``. One block of
    ``block_rows × block_cols`` float32 scores is held at a time.

    Args:
      queries: Rows to rank for, unit length, float32.
      gallery: Rows to be ranked, unit length, float32.
      query_ids: Content ids, at least 0.
      gallery_ids: Content ids; −1 is the target of no query.
      block_rows: Queries in a block.
      block_cols: Items in a block.

    Raises:
      ValueError: There are no queries, a query has no target, or a row is not finite.
    """
    _check(query_ids, gallery_ids)
    for name, x in (("query", queries), ("gallery item", gallery)):
        bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
        if len(bad):
            raise ValueError(f"{name} {bad[0]} is not finite ({len(bad)} such rows).")
    order = np.argsort(gallery_ids, kind="stable")
    greater = np.zeros(len(queries), np.int64)
    tied, targets = np.zeros_like(greater), np.zeros_like(greater)
    band = np.float32(4 * math.sqrt(queries.shape[1]) * 2.0**-24)
    rows, cols = min(block_rows, len(queries)), min(block_cols, len(gallery))
    for r in range(0, len(queries), rows):
        some = slice(r, min(r + rows, len(queries)))
        best, targets[some] = _best_targets(
            queries[some], gallery, query_ids[some], gallery_ids, order
        )
        block = _pad(queries[some], rows), _pad(best.astype(np.float32), rows)
        row_ids = _pad(query_ids[some].astype(np.int32), rows, fill=-2)
        for c in range(0, len(gallery), cols):
            items = gallery[c : c + cols]
            item_ids = gallery_ids[c : c + cols].astype(np.int32)
            above, unsure, n_unsure = _compare(
                *block, row_ids, _pad(items, cols), _pad(item_ids, cols, fill=-1),
                np.int32(len(items)), band,
            )  # fmt: skip
            size = some.stop - some.start
            greater[some] += np.asarray(above)[:size]
            if int(n_unsure):
                pairs = np.nonzero(np.asarray(unsure)[:size, : len(items)])
                more, same = _compare_exactly(queries[some], items, best, *pairs)
                greater[some] += more
                tied[some] += same
    return Ranks(greater, tied, targets)


def rank_scores(
    scores: Float[np.ndarray, "queries items"],
    query_ids: Int[np.ndarray, "queries"],
    gallery_ids: Int[np.ndarray, "items"],
) -> Ranks:
    """:func:`rank` for a score matrix that exists; equal scores are ties, −inf may occur."""
    _check(query_ids, gallery_ids)
    bad = np.flatnonzero(np.isnan(scores).any(axis=1))
    if len(bad):
        raise ValueError(f"the scores of query {bad[0]} are not numbers ({len(bad)} such rows).")
    right = query_ids[:, None] == gallery_ids[None, :]
    best = np.max(scores, axis=1, where=right, initial=-np.inf, keepdims=True)
    level = scores == best
    return Ranks(
        greater=np.sum((scores > best) & ~right, axis=1),
        tied=np.sum(level & ~right, axis=1),
        targets=np.sum(level & right, axis=1),
    )


def top(
    queries: Float[np.ndarray, "queries dim"], gallery: Float[np.ndarray, "items dim"], k: int
) -> tuple[Int[np.ndarray, "queries k"], Float[np.ndarray, "queries k"]]:
    """The ``k`` best items of every query, best first (equal scores: lowest index), and scores."""
    k = min(k, len(gallery))
    scores = queries @ gallery.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return best, np.take_along_axis(scores, best, axis=1)


def _check(query_ids: np.ndarray, gallery_ids: np.ndarray) -> None:
    if not len(query_ids):
        raise ValueError("there is nothing to rank for: 0 queries were given.")
    missing = ~np.isin(query_ids, gallery_ids) | (query_ids < 0)
    if missing.any():
        raise ValueError(
            f"{missing.sum()} of {len(query_ids)} queries have no matching item in the gallery of "
            f"{len(gallery_ids)}, the first is query {np.flatnonzero(missing)[0]} with id "
            f"{query_ids[missing][0]}."
        )


def _pad(x: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    padding = [(0, size - len(x)), *[(0, 0)] * (x.ndim - 1)]
    return np.pad(x, padding, constant_values=fill)


@jax.jit
def _compare(
    queries: Float[Array, "rows dim"],
    best: Float[Array, " rows"],
    query_ids: Int[Array, " rows"],
    items: Float[Array, "cols dim"],
    item_ids: Int[Array, " cols"],
    n_items: Int[Array, ""],
    band: Float[Array, ""],
) -> tuple[Int[Array, " rows"], Bool[Array, "rows cols"], Int[Array, ""]]:
    """Counts the rivals that are surely above, and marks those too close to call in float32."""
    scores = jnp.matmul(queries, items.T, precision=jax.lax.Precision.HIGHEST)
    rival = query_ids[:, None] != item_ids[None, :]
    rival &= (query_ids >= 0)[:, None] & (jnp.arange(items.shape[0]) < n_items)[None, :]
    gap = scores - best[:, None]
    unsure = rival & (jnp.abs(gap) <= band)
    above = jnp.sum(rival & (gap > band), axis=1, dtype=jnp.int32)
    return above, unsure, jnp.sum(unsure, dtype=jnp.int32)


def _score_pairs(
    queries: np.ndarray, items: np.ndarray, rows: np.ndarray, cols: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Float64 scores of the pairs, a bounded number at a time."""
    step = max(PAIR_BUDGET // max(queries.shape[1], 1), 1)
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        left = queries[rows[part]].astype(np.float64)
        yield part, np.einsum("nd,nd->n", left, items[cols[part]].astype(np.float64))


def _compare_exactly(
    queries: np.ndarray, items: np.ndarray, best: np.ndarray, rows: np.ndarray, cols: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    above, same = np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
    for part, scores in _score_pairs(queries, items, rows, cols):
        gap = scores - best[rows[part]]
        above += np.bincount(rows[part], weights=gap > TIE, minlength=len(queries)).astype(np.int64)
        level = np.abs(gap) <= TIE
        same += np.bincount(rows[part], weights=level, minlength=len(queries)).astype(np.int64)
    return above, same


def _best_targets(
    queries: np.ndarray,
    gallery: np.ndarray,
    query_ids: np.ndarray,
    gallery_ids: np.ndarray,
    order: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The best target's float64 score of each query, and how many targets share it."""
    first = np.searchsorted(gallery_ids, query_ids, side="left", sorter=order)
    count = np.searchsorted(gallery_ids, query_ids, side="right", sorter=order) - first
    rows = np.repeat(np.arange(len(queries)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    cols = order[np.repeat(first, count) + within]
    scores = np.empty(len(rows))
    for part, values in _score_pairs(queries, gallery, rows, cols):
        scores[part] = values
    best = np.full(len(queries), -np.inf)
    np.maximum.at(best, rows, scores)
    level = scores >= best[rows] - TIE
    return best, np.bincount(rows, weights=level, minlength=len(queries)).astype(np.int64)
