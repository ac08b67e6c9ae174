"""Triplet loss with a margin on Euclidean distances."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from contrastive.logits import masks
from contrastive.logits.dense import product, replicate
from contrastive.logits.masks import Labels, check_ids
from contrastive.logits.partition import check_global
from contrastive.losses.common import (
    Ids,
    Weights,
    as_weights,
    check_pairs,
    keep_existing,
    weighted_mean,
)

_BLOCK_COLS = 512  # columns of a tile of distances
Mining = Literal["given", "batch_hard", "batch_all"]


def triplet_loss(
    anchors: Float[Array, "batch dim"],
    positives: Float[Array, "batch dim"],
    negatives: Float[Array, "batch dim"] | Float[Array, "batch k dim"] | None = None,
    *,
    margin: float = 1.0,
    mining: Mining = "given",
    ids: Ids | None = None,
    weights: Weights | None = None,
) -> Float[Array, ""]:
    """Each positive closer to its anchor than a negative, by a margin.

    ``l = max(0, ‖a_i − p_i‖ − ‖a_i − n‖ + margin)``, in float32. Rows need not be of unit length.
    Where two points meet the distance has gradient zero. The negatives ``n`` of anchor i:

    * ``"given"``: ``negatives``, one or k for each anchor; the mean over the k.
    * ``"batch_hard"``: the nearest of the other positives.
    * ``"batch_all"``: all other positives; the loss is the mean over the triplets that are not yet
      satisfied, as in Sentence-BERT's library and Hermans et al.'s "batch all, non-zero".

    Mining reads the batch in blocks of columns and never holds all distances. ``"batch_all"`` takes
    distances from inner products, which leaves those below about 1e-3 of the rows' length uncertain
    (they count as zero below 5e-4); the other two take them from differences.

    Args:
      anchors: Rows ``[batch, dim]``; may be cut over devices by rows.
      positives: Rows of the same shape and dtype.
      negatives: ``[batch, dim]`` or ``[batch, k, dim]``, for ``"given"`` only.
      margin: By how much the positive has to be nearer; Sentence-BERT uses 1.
      mining: Where negatives come from.
      ids: Content ids, for mining: a positive with the anchor's own id is not its negative. int32
        ``[batch]`` or uint32 ``[batch, 2]``; −1 is unknown.
      weights: ``[batch]``, ≥ 0; rows of weight 0 don't exist, neither as anchors nor as negatives.

    Returns:
      ``Σ w_i l_i / Σ w_i``; 0 when nothing exists. An anchor without negatives has loss 0.

    Raises:
      ValueError: An unknown mining; shapes that don't fit; a batch without rows; ``negatives``
        with mining or missing without; ``ids`` without mining; a call inside shard_map.
      TypeError: Dtypes that don't fit, int64 ids.

    References:
      Reimers & Gurevych, Sentence-BERT, 2019. Hermans et al., In Defense of the Triplet Loss for
      Person Re-Identification, 2017.
    """
    check_pairs("triplet_loss", anchors, positives)
    check_global(anchors)
    check_ids("ids", ids, anchors.shape[:1])
    ids = None if ids is None else jnp.asarray(ids)
    weights = as_weights(weights, anchors.shape[0])
    if mining not in get_args(Mining):
        raise ValueError(f"mining = {mining!r}; choose one of {', '.join(get_args(Mining))}.")
    if (mining == "given") != (negatives is not None):
        raise ValueError(
            f"triplet_loss takes negatives with mining='given' only; mining is {mining!r} and "
            f"negatives {'are missing' if negatives is None else 'were passed'}."
        )
    exists = jnp.ones(anchors.shape[:1], bool) if weights is None else weights > 0
    anchors = keep_existing(anchors, exists).astype(jnp.float32)
    positives = keep_existing(positives, exists).astype(jnp.float32)
    near = _length(anchors - positives)
    if negatives is not None:
        if ids is not None:
            raise ValueError("triplet_loss uses ids to mine; with mining='given' they do nothing.")
        return weighted_mean(_given(anchors, near, negatives, exists, margin), weights)
    labels = Labels(jnp.arange(anchors.shape[0], dtype=jnp.int32), ids, exists)
    if mining == "batch_hard":
        far = _nearest_other(anchors, positives, labels)
        return weighted_mean(jax.nn.relu(near - far + margin), weights)
    total, count = _all_others(anchors, positives, near, labels, margin)
    if weights is not None:
        some = jnp.where(weights > 0, weights, 0.0).astype(total.dtype)
        total, count = total * some, count * some
    count = count.sum()
    return total.sum() / jnp.where(count > 0, count, 1.0)


def _length(x: Float[Array, "... dim"]) -> Float[Array, "..."]:
    """Euclidean length, with gradient zero at zero."""
    return _root(jnp.sum(x * x, axis=-1))


def _root(squared: Float[Array, "..."], floor: Float[Array, "..."] | None = None) -> Array:
    """Square root; zero with gradient zero at and below the floor."""
    zero = squared <= (0.0 if floor is None else floor)
    root = jnp.sqrt(jnp.where(zero, 1.0, squared))
    return jnp.where(zero, 0.0, root)


def _given(
    anchors: Array, near: Array, negatives: Array, exists: Bool[Array, " batch"], margin: float
) -> Float[Array, " batch"]:
    """Mean loss of each anchor over its own negatives."""
    batch, dim = anchors.shape
    wanted = (batch, *negatives.shape[1:-1], dim)
    if negatives.ndim not in (2, 3) or negatives.shape != wanted or 0 in wanted[1:-1]:
        raise ValueError(
            f"negatives are [batch, dim] or [batch, k, dim] for anchors {anchors.shape}, got "
            f"{negatives.shape}."
        )
    if negatives.ndim == 2:
        negatives = negatives[:, None, :]
    kept = jnp.where(exists[:, None, None], negatives, 0.0)
    far = _length(anchors[:, None, :] - kept.astype(jnp.float32))
    return jnp.mean(jax.nn.relu(near[:, None] - far + margin), axis=1)


def _tiles(positives: Array, labels: Labels) -> tuple[Array, Labels]:
    """All columns and their labels on every device, in blocks; what fills the last is absent."""
    batch = positives.shape[0]
    block = min(_BLOCK_COLS, batch)
    count = -(-batch // block)

    def cut(x: Array) -> Array:
        x = replicate(x)
        x = jnp.pad(x, [(0, count * block - batch)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(count, block, *x.shape[1:])

    return cut(positives), jax.tree.map(cut, labels)


def _squared_distances(
    anchors: Array, labels: Labels, columns: Array, column_labels: Labels
) -> tuple[Array, Array, Array]:
    """Squared distances [batch, block], below which they are rounding, and which are negatives."""
    negative = masks.negatives(labels, column_labels)
    assert negative is not None
    lengths = jnp.sum(anchors**2, axis=1)[:, None] + jnp.sum(columns**2, axis=1)[None, :]
    squared = lengths - 2 * product(anchors, columns)
    return squared, 2.0**-23 * jax.lax.stop_gradient(lengths), negative


def _nearest_other(anchors: Array, positives: Array, labels: Labels) -> Float[Array, " batch"]:
    """Distance of each anchor to the nearest negative among the positives; inf without one."""
    fixed = jax.lax.stop_gradient(anchors)

    def visit(
        best: tuple[Array, Array], tile: tuple[Array, Labels]
    ) -> tuple[tuple[Array, Array], None]:
        squared, _, negative = _squared_distances(fixed, labels, *tile)
        squared = jnp.where(negative, squared, jnp.inf)
        closer = squared.min(axis=1) < best[0]
        assert tile[1].pair is not None
        index = squared.argmin(axis=1).astype(jnp.int32) + tile[1].pair[0]
        return (
            jnp.where(closer, squared.min(axis=1), best[0]),
            jnp.where(closer, index, best[1]),
        ), None

    nothing = fixed[:, 0] * 0
    start = (nothing + jnp.inf, nothing.astype(jnp.int32))
    tiles = _tiles(jax.lax.stop_gradient(positives), labels)
    (squared, index), _ = jax.lax.scan(visit, start, tiles)
    nearest = _take_rows(replicate(positives), index, anchors)
    return jnp.where(jnp.isfinite(squared), _length(anchors - nearest), jnp.inf)


def _take_rows(table: Array, index: Int[Array, " batch"], like: Array) -> Array:
    """Rows of a table that every device holds, cut over devices like ``like``."""
    sharding = jax.typeof(like).sharding
    cut = any(part is not None for part in sharding.spec)
    return table.at[index].get(out_sharding=sharding if cut else None)


def _all_others(
    anchors: Array, positives: Array, near: Array, labels: Labels, margin: float
) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
    """Each anchor's sum of losses over all its negatives, and how many are above zero."""

    @jax.checkpoint
    def visit(
        sums: tuple[Array, Array], tile: tuple[Array, Labels]
    ) -> tuple[tuple[Array, Array], None]:
        squared, floor, negative = _squared_distances(anchors, labels, *tile)
        hinge = jax.nn.relu(near[:, None] - _root(squared, floor) + margin)
        hinge = jnp.where(negative, hinge, 0.0)
        active = jnp.sum(hinge > 0, axis=1).astype(hinge.dtype)
        return (sums[0] + hinge.sum(axis=1), sums[1] + active), None

    start = jnp.zeros_like(near)
    sums, _ = jax.lax.scan(visit, (start, start), _tiles(positives, labels))
    return sums
