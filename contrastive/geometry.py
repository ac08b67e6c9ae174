"""Geometry of embeddings on the unit sphere: unit rows, and measures of how the rows lie.

The measures that compare all rows with all others are reductions of the same matrix as the losses,
walked tile by tile and device by device, so that they run on a million rows. They take a
:class:`~contrastive.logits.LogitPartition` (``exchange="ring"`` keeps memory flat in the number of
devices). Without one they read from the inputs how these are cut, and never hold the matrix whole.
Rows of weight 0 don't exist, whatever they hold.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Float32, Int, Integer

from contrastive.logits import LogitPartition, logsumexp, masks
from contrastive.logits.exchange import Account, walk
from contrastive.logits.masks import Labels
from contrastive.logits.partition import Layout, check_divides, resolve
from contrastive.logits.tiles import Side, accumulator, dot, walk_tiles
from contrastive.losses.common import (
    Ids,
    Scalar,
    Weights,
    as_scalar,
    as_weights,
    check_pairs,
    keep_existing,
    weighted_mean,
)
from contrastive.losses.softmax import info_nce

Rows = Float[Array | np.ndarray, "batch dim"]


def normalize(rows: Float[Array | np.ndarray, "*batch dim"]) -> Float32[Array, "*batch dim"]:
    """Scales rows to unit length: ``z / ‖z‖``, in float32.

    Inputs of lower precision are raised to float32 first, and each row is divided by its largest
    entry before its norm is taken, so that no square overflows or vanishes. A zero row stays zero
    and gets a zero gradient. Elsewhere the gradient is ``(I − q qᵀ) dq / ‖z‖``, perpendicular to
    the row.

    Args:
      rows: Raw rows of any floating dtype, any number of leading axes.

    Returns:
      float32 rows of the same shape.
    """
    x = jnp.asarray(rows).astype(jnp.float32)
    # The result does not depend on the divisor, so neither does its gradient. It is kept where its
    # reciprocal is a normal number.
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    x = x / jax.lax.stop_gradient(jnp.clip(largest, 1e-37, 1e37))
    squared = jnp.sum(x * x, axis=-1, keepdims=True)
    zero = squared == 0
    length = jnp.sqrt(jnp.where(zero, 1.0, squared))
    return jnp.where(zero, 0.0, x / length)


def alignment(
    first: Rows,
    second: Rows,
    *,
    weights: Weights | None = None,
) -> Float[Array, ""]:
    """``mean_i ‖a_i − b_i‖²`` over the pairs: 0 where pairs agree, 2 where they are unrelated.

    Args:
      first: Unit rows ``[batch, dim]``.
      second: The other side of each pair.
      weights: ``[batch]``, ≥ 0.

    Returns:
      A float32 scalar, differentiable.

    References:
      Wang & Isola, Understanding Contrastive Representation Learning through Alignment and
      Uniformity on the Hypersphere, 2020.
    """
    a, b = jnp.asarray(first), jnp.asarray(second)
    check_pairs("alignment", a, b)
    weights = as_weights(weights, a.shape[0])
    a, b = (keep_existing(x, _existing(weights)).astype(jnp.float32) for x in (a, b))
    return weighted_mean(jnp.sum((a - b) ** 2, axis=1), weights)


def uniformity(
    rows: Rows,
    t: float = 2.0,
    *,
    weights: Weights | None = None,
    partition: LogitPartition | None = None,
) -> Float[Array, ""]:
    """``log mean_{i<j} exp(−t ‖x_i − x_j‖²)``: 0 for a collapsed tower, lower where rows spread.

    Of unit rows this is ``log Σ_{i≠j} exp(2t x_i·x_j) − 2t − log(N (N − 1))``.

    Args:
      rows: Unit rows ``[batch, dim]`` of one tower.
      t: Width of the kernel; 2 in the paper.
      weights: ``[batch]``; a row exists where its weight is positive, and counts once.
      partition: How the matrix is cut.

    Returns:
      A float32 scalar, differentiable once in reverse mode; −inf with fewer than two rows.

    References:
      Wang & Isola, 2020.
    """
    rows = jnp.asarray(rows)
    check_pairs("uniformity", rows, rows)
    exists = _existing(as_weights(weights, rows.shape[0]))
    scale = as_scalar("t", 2 * t, accumulator(rows.dtype))
    reduced = logsumexp(
        keep_existing(rows, exists),
        None,
        scale,
        row_exists=exists,
        partition=partition or LogitPartition(),
    ).logsumexp
    assert reduced is not None
    if exists is None:
        count = jnp.asarray(float(rows.shape[0]), scale.dtype)
    else:
        count = jnp.sum(exists.astype(scale.dtype))
    few = count < 2
    # jax.nn.logsumexp of nothing but -inf would have a NaN for gradient.
    total = jax.nn.logsumexp(jnp.where(few, 0.0, reduced))
    pairs = jnp.log(jnp.where(few, 1.0, count)) + jnp.log(jnp.where(few, 1.0, count - 1))
    return jnp.where(few, -jnp.inf, total - scale - pairs)


def mutual_information_bound(
    queries: Rows,
    keys: Rows,
    scale: Scalar,
    *,
    weights: Weights | None = None,
    partition: LogitPartition | None = None,
) -> Float[Array, ""]:
    """``log N − InfoNCE`` in nats: a lower bound on the information that the two views share.

    N is the number of candidates. The bound is an expectation over batches of independent pairs,
    never above ``log N``, and holds for keys drawn from the marginal: not for mined negatives.

    Args:
      queries: Unit rows ``[batch, dim]``.
      keys: The other view of each pair.
      scale: ``exp(log_scale)``.
      weights: ``[batch]``, ≥ 0; N counts the positive ones.
      partition: How the matrix is cut.

    References:
      van den Oord, Li & Vinyals, Representation Learning with Contrastive Predictive Coding, 2018.
      Poole et al., On Variational Bounds of Mutual Information, 2019.
    """
    queries, keys = jnp.asarray(queries), jnp.asarray(keys)
    partition = partition or LogitPartition()
    weights = None if weights is None else jnp.asarray(weights)
    loss = info_nce(queries, keys, scale, weights=weights, partition=partition)
    assert isinstance(loss, jax.Array)
    if weights is None:
        return math.log(queries.shape[0]) - loss
    count = jnp.sum((weights > 0).astype(loss.dtype))
    return jnp.log(jnp.maximum(count, 1.0)) - loss


class Hardness(NamedTuple):
    """Weights ``A_ij`` of the negatives in each row's softmax.

    Attributes:
      hardest: Those of the k hardest negatives, the largest first; 0 where there are fewer.
      total: Of all negatives together, ``1 − A_ii``.
    """

    hardest: Float[Array, "batch k"]
    total: Float[Array, " batch"]


def hardness_weights(
    queries: Rows,
    keys: Rows,
    scale: Scalar,
    k: int,
    *,
    ids: Ids | None = None,
    weights: Weights | None = None,
    partition: LogitPartition | None = None,
) -> Hardness:
    """How the gradient on each query is shared among its negatives.

    Negative j pushes query i with weight ``A_ij / tau``, ``A`` the softmax of the logits over the
    row. A low temperature puts nearly all of it on the few hardest, a high one spreads it evenly:
    ``hardest.sum(1) / total`` tells how concentrated it is. For watching; without gradient.

    Args:
      queries: Unit rows ``[batch, dim]``.
      keys: The other side of each pair.
      scale: ``exp(log_scale)``.
      k: How many of the hardest negatives; at most batch.
      ids: Content ids, int32 ``[batch]`` or uint32 ``[batch, 2]``: an equal key is no negative.
      weights: ``[batch]``; rows of weight 0 get zeros.
      partition: How the matrix is cut.

    Raises:
      ValueError: k is not in 1..batch; sizes that don't fit.

    References:
      Wang & Liu, Understanding the Behaviour of Contrastive Loss, 2021.
    """
    queries, keys = jnp.asarray(queries), jnp.asarray(keys)
    check_pairs("hardness_weights", queries, keys)
    if not 1 <= k <= queries.shape[0]:
        raise ValueError(f"k = {k}; there are {queries.shape[0]} keys.")
    exists = _existing(as_weights(weights, queries.shape[0]))
    factor = as_scalar("scale", scale, jnp.float32)

    def measure(layout: Layout, rows: Side, columns: Side, factor: Array) -> Hardness:
        def tile(r: Side, c: Side, state: Any, nothing: Any) -> tuple[Any, Any]:
            top, others, own = state
            logits = factor * _scores(layout, r, c)
            negative = _where(masks.negatives(r.labels, c.labels), logits)
            top = jax.lax.top_k(jnp.concatenate([top, negative], axis=1), k)[0]
            pair = _where(masks.own_pair(r.labels, c.labels), logits).max(axis=1)
            others = jnp.logaddexp(others, jax.nn.logsumexp(negative, axis=1))
            return (top, others, jnp.maximum(own, pair)), nothing

        size = rows.x.shape[0]
        lowest = layout.own(jnp.full((size,), -jnp.inf))
        start = layout.own(jnp.full((size, k), -jnp.inf)), lowest, lowest
        top, others, own = _over_tiles(layout, rows, columns, start, tile)
        whole = jnp.logaddexp(others, own)
        whole = jnp.where(jnp.isfinite(whole), whole, 0.0)
        return Hardness(jnp.exp(top - whole[:, None]), jnp.exp(others - whole))

    return _measured(
        measure, partition, (queries, ids, exists), (keys, ids, exists), factor, Hardness
    )


class Ranks(NamedTuple):
    """Where each query's best target stands among the keys; of JAX's arrays or NumPy's.

    Attributes:
      greater: Keys of other content that score higher.
      equal: Keys of other content that score the same.
      targets: Targets that share the best score; 0 for a query without a target, or with NaN.
    """

    greater: Int[Array | np.ndarray, " queries"]
    equal: Int[Array | np.ndarray, " queries"]
    targets: Int[Array | np.ndarray, " queries"]

    def recall(self, k: int) -> Float[Array | np.ndarray, " queries"]:
        """Probability that a target is among the first k when equal scores stand in random order.

        With s = clip(k − greater, 0, equal + targets) places left it is
        ``1 − C(equal, s) / C(equal + targets, s)``: with one target
        ``clip((k − greater) / (equal + 1), 0, 1)``. NaN for a query without a target. float32 of
        JAX's arrays, float64 of NumPy's.
        """
        xp, equal, targets = self._counts()
        places = xp.clip((k - self.greater).astype(equal.dtype), 0.0, equal + targets)

        def one_more(i: Any, missed: Any) -> Any:
            place = xp.asarray(i).astype(equal.dtype)
            left = xp.maximum(equal - place, 0.0) / xp.maximum(equal + targets - place, 1.0)
            return missed * xp.where(place < places, left, 1.0)

        if xp is np:
            missed = np.ones_like(equal)
            for i in range(int(places.max(initial=0))):
                missed = one_more(i, missed)
        else:
            missed = jax.lax.fori_loop(0, k, one_more, jnp.ones_like(equal))
        hit = xp.where(targets == 1, xp.minimum(places / (equal + 1), 1.0), 1.0 - missed)
        return xp.where(targets > 0, hit, xp.nan)

    def expected(self) -> Float[Array | np.ndarray, " queries"]:
        """Expected rank of the best-placed target, from 1; NaN for a query without a target:
        ``greater + (equal + targets + 1) / (targets + 1)``."""
        xp, equal, targets = self._counts()
        rank = self.greater.astype(equal.dtype) + (equal + targets + 1) / (targets + 1)
        return xp.where(targets > 0, rank, xp.nan)

    def _counts(self) -> tuple[Any, Any, Any]:
        xp = np if isinstance(self.greater, np.ndarray) else jnp
        dtype = np.float64 if xp is np else np.float32
        return xp, self.equal.astype(dtype), self.targets.astype(dtype)


def ranks(
    queries: Float[Array | np.ndarray, "queries dim"],
    keys: Float[Array | np.ndarray, "keys dim"],
    *,
    query_ids: Integer[Array | np.ndarray, "queries *words"] | None = None,
    key_ids: Integer[Array | np.ndarray, "keys *words"] | None = None,
    weights: Float[Array | np.ndarray, " queries"] | None = None,
    key_weights: Float[Array | np.ndarray, " keys"] | None = None,
    partition: LogitPartition | None = None,
) -> Ranks:
    """Ranks each query's target among all keys by inner product.

    The target of query i is key i; with ids, every key of the same known id is one, and the best
    counts. A target's score is read from the tile of scores that its rivals are in. Scores closer
    than float32 can tell apart, ``4 √dim 2⁻²⁴`` for unit rows, are equal: whether two equal rows
    tie must not depend on where in a tile they lie. A score that is NaN ranks above the target.

    Args:
      queries: Unit rows ``[queries, dim]``.
      keys: Unit rows ``[keys, dim]`` of the same dtype.
      query_ids: Content ids, int32 ``[queries]`` or uint32 ``[queries, 2]``; −1 is unknown.
      key_ids: Those of the keys.
      weights: Queries of weight 0 don't exist; of pairs, nor do their keys.
      key_weights: The same for the keys, with ids.
      partition: How the matrix is cut.

    Raises:
      ValueError: Ids of one side only; without ids, as many queries as keys are needed; other
        shapes that don't fit.
      TypeError: Ids of two dtypes, int64 ids.
    """
    queries, keys = jnp.asarray(queries), jnp.asarray(keys)
    check_pairs("ranks", queries, queries)
    if keys.ndim != 2 or keys.shape[1] != queries.shape[1] or keys.dtype != queries.dtype:
        raise ValueError(
            "ranks needs queries [queries, dim] and keys [keys, dim] of one dtype, got "
            f"{queries.dtype} {list(queries.shape)} and {keys.dtype} {list(keys.shape)}."
        )
    paired = query_ids is None
    if paired != (key_ids is None):
        raise ValueError("ranks takes ids of both sides, or of none.")
    if paired and (queries.shape != keys.shape or key_weights is not None):
        raise ValueError(
            f"without ids key i is the target of query i, and weights are those of the pairs; got "
            f"{queries.shape[0]} queries and {keys.shape[0]} keys"
            f"{'' if key_weights is None else ', with key_weights'}."
        )
    exists = _existing(as_weights(weights, queries.shape[0]))
    there = _existing(as_weights(key_weights, keys.shape[0], "key_weights"))
    there = exists if paired else there
    epsilon = jnp.finfo(accumulator(queries.dtype)).eps
    same = jnp.asarray(2 * math.sqrt(queries.shape[1]) * epsilon)

    def measure(layout: Layout, rows: Side, columns: Side, same: Array) -> Ranks:
        if not paired:
            rows, columns = (
                s._replace(labels=s.labels._replace(pair=None)) for s in (rows, columns)
            )

        def once(round_: Array | int, state: Any) -> Any:
            """The first round finds the target's score, the second, the same products, its rank."""

            def tile(r: Side, c: Side, state: Any, nothing: Any) -> tuple[Any, Any]:
                best, *counts = state
                scores = _scores(layout, r, c)
                target = masks.positives(r.labels, c.labels)
                best = jnp.maximum(best, _where(target, scores).max(axis=1))
                gap = scores - best[:, None]
                rival = masks.negatives(r.labels, c.labels)
                assert target is not None
                assert rival is not None
                level = jnp.abs(gap) <= same
                found = rival & ~(gap <= same), rival & level, target & level
                counts = [
                    n + jnp.where(round_ == 1, jnp.sum(x, axis=1, dtype=jnp.int32), 0)
                    for n, x in zip(counts, found, strict=True)
                ]
                return (best, *counts), nothing

            return _over_tiles(layout, rows, columns, state, tile)

        size = rows.x.shape[0]
        lowest = jnp.full((size,), -jnp.inf, same.dtype)
        start = layout.own((lowest, *[jnp.zeros((size,), jnp.int32)] * 3))
        return Ranks(*jax.lax.fori_loop(0, 2, once, start)[1:])

    return _measured(
        measure, partition, (queries, query_ids, exists), (keys, key_ids, there), same, Ranks
    )


def recall_at_k(
    queries: Float[Array | np.ndarray, "queries dim"],
    keys: Float[Array | np.ndarray, "keys dim"],
    k: int | tuple[int, ...],
    *,
    query_ids: Integer[Array | np.ndarray, "queries *words"] | None = None,
    key_ids: Integer[Array | np.ndarray, "keys *words"] | None = None,
    weights: Float[Array | np.ndarray, " queries"] | None = None,
    key_weights: Float[Array | np.ndarray, " keys"] | None = None,
    partition: LogitPartition | None = None,
) -> Float[Array, "*ks"]:
    """Share of the queries whose target is among their k best keys, ties broken at random.

    A collapsed model, all of whose scores are equal, scores exactly ``k / keys``. Targets, ties
    and arguments as in :func:`ranks`; ``weights`` also weigh the queries in the mean.

    Returns:
      A scalar for one k, ``[len(k)]`` for several from the same pass; NaN when a query that exists
      has no target.

    Raises:
      ValueError: A k below 1; see :func:`ranks`.
    """
    single = isinstance(k, int | np.integer)
    several = (int(k),) if single else tuple(k)
    if not several or min(several) < 1:
        raise ValueError(f"k = {k}; recall is of at least the first 1.")
    found = ranks(
        queries,
        keys,
        query_ids=query_ids,
        key_ids=key_ids,
        weights=weights,
        key_weights=key_weights,
        partition=partition,
    )
    recalls = jnp.stack([weighted_mean(found.recall(each), _array(weights)) for each in several])
    return recalls[0] if single else recalls


def _array(x: Any) -> Array | None:
    return None if x is None else jnp.asarray(x)


def _existing(weights: Any) -> Bool[Array, " batch"] | None:
    return None if weights is None else jnp.asarray(weights) > 0


def _where(mask: Array | None, scores: Array) -> Array:
    """Scores of the entries in the mask, −inf elsewhere."""
    return scores if mask is None else jnp.where(mask, scores, -jnp.inf)


def _scores(layout: Layout, rows: Side, columns: Side) -> Float[Array, "rows columns"]:
    return dot(rows.x, columns.x, (1, 1), layout.precision)


def _over_tiles(layout: Layout, rows: Side, columns: Side, state: Any, tile: Any) -> Any:
    """State of this device's rows after ``tile`` has seen them with the columns of all devices."""

    def visit(panel: Side, nothing: Any, carry: Any) -> tuple[Any, Any]:
        shape = layout.tile(rows.x, panel.x)
        carry, nothing = walk_tiles(tile, rows, panel, carry, nothing, *shape)
        return nothing, carry

    account = Account(blank=lambda size: (), settle=lambda seen: seen)
    return walk(layout, columns, account, state, visit)[1]


def _measured(
    measure: Callable[[Layout, Side, Side, Array], Any],
    partition: LogitPartition | None,
    rows: tuple[Any, Any, Any],
    columns: tuple[Any, Any, Any],
    constant: Array,
    result: type,
) -> Any:
    """Runs a measure of (rows, ids, exists) against (columns, ids, exists) on every device."""
    layout = resolve(LogitPartition() if partition is None else partition, rows[0], "queries")
    check_divides(layout, columns[0].shape[0], "keys")
    sides = []
    for side, (x, ids, exists) in (("query", rows), ("key", columns)):
        masks.check_ids(f"{side}_ids", ids, x.shape[:1])
        kept = keep_existing(x, exists)
        sides.append(layout.place((kept, _array(ids), exists), layout.cut))
    row_ids, column_ids = rows[1], columns[1]
    if row_ids is not None and column_ids is not None and row_ids.dtype != column_ids.dtype:
        raise TypeError(
            f"query_ids ({row_ids.dtype}) are compared with key_ids ({column_ids.dtype}); give "
            "both of one dtype."
        )
    whole = PartitionSpec()

    def local(rows: tuple[Any, ...], columns: tuple[Any, ...], constant: Array) -> Any:
        r, c = (
            Side(x, Labels(layout.numbers(x.shape[0]), ids, exists))
            for x, ids, exists in (rows, columns)
        )
        return measure(layout, r, c, constant)

    out = result(*[layout.cut] * len(result._fields))
    args = jax.lax.stop_gradient((*sides, layout.place(constant, whole)))
    return layout.run(local, (layout.cut, layout.cut, whole), out, *args)
