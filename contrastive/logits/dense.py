"""The plainest form: each device's row slice of the logits held whole, differentiated by JAX.

3U operations, any number of derivatives in any mode, and memory that grows with the batch.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from contrastive.logits import masks
from contrastive.logits.masks import Labels
from contrastive.logits.partition import Layout
from contrastive.logits.running import finite
from contrastive.logits.statistics import RowStatistics
from contrastive.logits.tiles import accumulator, dot

Pair = tuple[Labels, Labels]


def replicate(x: Array) -> Array:
    """``x`` whole on every device of its mesh when its type says that it is cut."""
    sharding = jax.typeof(x).sharding
    if all(part is None for part in sharding.spec):
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*[None] * x.ndim)))


def product(rows: Array, columns: Array) -> Array:
    """``rows · columnsᵀ`` accumulated in float32; float32 inputs use the highest precision."""
    full = accumulator(rows.dtype) == rows.dtype
    return dot(rows, columns, (1, 1), lax.Precision.HIGHEST if full else lax.Precision.DEFAULT)


def dense_logits(
    layout: Layout, rows: Array, columns: Array | None, labels: Pair, paired: bool
) -> tuple[Array, Pair]:
    """``rows columnsᵀ`` (no scale yet) and the labels of its rows and columns, placed."""
    columns = rows if columns is None else columns
    if paired:
        size = rows.shape[0]
        labels = (
            labels[0]._replace(pair=jnp.arange(size, dtype=jnp.int32)),
            labels[1]._replace(pair=jnp.arange(size, dtype=jnp.int32)),
        )
    x, row_labels = layout.place((rows, labels[0]), layout.cut)
    y, column_labels = layout.place((columns, labels[1]), PartitionSpec())
    products = layout.place(dot(x, y, (1, 1), layout.precision), layout.cut)
    return products, (row_labels, column_labels)


def sum_exp(logits: Array, mask: Array | None, axis: int) -> Array:
    """``log Σ exp`` over the entries of the mask; -inf and no gradient where there are none."""
    there = logits if mask is None else jnp.where(mask, logits, -jnp.inf)
    level = finite(jax.lax.stop_gradient(there.max(axis)))
    total = jnp.exp(there - jnp.expand_dims(level, axis)).sum(axis)
    empty = total == 0
    return jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1.0, total)) + level)


def describe(logits: Array, mask: Array | None, own: Array | None, axis: int) -> dict[str, Any]:
    """Statistics of the negatives along one axis, without gradients."""
    logits = jax.lax.stop_gradient(logits)
    mask = jnp.broadcast_to(True if mask is None else mask, logits.shape)
    there = jnp.where(mask, logits, -jnp.inf)
    top = there.max(axis)
    along = partial(jnp.sum, axis=axis, dtype=logits.dtype)
    return {
        "max": top,
        "ties": along(mask & (there == jnp.expand_dims(top, axis))),
        "min": jnp.where(mask, logits, jnp.inf).min(axis),
        "sum": along(jnp.where(mask, logits, 0.0)),
        "count": along(mask),
        "positive": None if own is None else along(jnp.where(own, logits, 0.0)),
    }


def dense_logsumexp(
    layout: Layout,
    rows: Array,
    columns: Array | None,
    scale: Array,
    labels: Pair,
    *,
    paired: bool,
    two_way: bool,
    same: bool,
) -> RowStatistics:
    """What :func:`contrastive.logits.logsumexp` computes, in the plainest way."""
    products, sides = dense_logits(layout, rows, columns, labels, paired)
    logits = scale * products
    other, own = masks.negatives(*sides), masks.own_pair(*sides)
    positives = masks.positives(*sides) if same else None

    def along(axis: int) -> RowStatistics:
        result = RowStatistics(
            logsumexp=sum_exp(logits, other, axis), **describe(logits, other, own, axis)
        )
        if positives is not None:
            result = dataclasses.replace(
                result,
                same_logsumexp=sum_exp(logits, positives, axis),
                same_sum=jnp.where(positives, logits, 0.0).sum(axis),
                same_count=positives.sum(axis, dtype=logits.dtype),
            )
        return layout.place(result, layout.cut)

    result = along(1)
    return dataclasses.replace(result, columns=along(0)) if two_way else result
