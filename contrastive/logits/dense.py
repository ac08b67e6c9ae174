"""The plainest form: the whole matrix of logits, differentiated by JAX."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from contrastive.logits.statistics import RowStatistics


def replicate(x: Array) -> Array:
    """``x`` whole on every device of its mesh when its type says that it is cut."""
    sharding = jax.typeof(x).sharding
    if all(part is None for part in sharding.spec):
        return x
    if not all(kind == AxisType.Explicit for kind in sharding.mesh.axis_types):
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*[None] * x.ndim)))


def product(rows: Array, columns: Array) -> Array:
    """``rows · columnsᵀ`` accumulated in float32; float32 inputs use the highest precision."""
    accumulator = jnp.promote_types(rows.dtype, jnp.float32)
    precision = jax.lax.Precision.HIGHEST if rows.dtype != jnp.bfloat16 else None
    return jnp.matmul(rows, columns.T, precision=precision, preferred_element_type=accumulator)


def same_content(row_ids: Array, column_ids: Array) -> Array:
    """Which entries have the same known id, [rows, columns]."""
    if row_ids.ndim == 1:
        return (row_ids[:, None] == column_ids[None, :]) & (row_ids[:, None] != -1)
    unknown = row_ids.dtype.type(-1)
    equal = (row_ids[:, None, :] == column_ids[None, :, :]).all(-1)
    return equal & ~(row_ids == unknown).all(-1)[:, None]


def negatives_mask(
    rows: int,
    columns: int,
    *,
    paired: bool,
    row_ids: Array | None,
    column_ids: Array | None,
    row_exists: Array | None,
    column_exists: Array | None,
) -> Array | None:
    """Which entries are negatives, [rows, columns]; None where all are."""
    masks = []
    if paired:
        masks.append(jnp.arange(rows)[:, None] != jnp.arange(columns)[None, :])
    if row_ids is not None and column_ids is not None:
        masks.append(~same_content(row_ids, replicate(column_ids)))
    if row_exists is not None:
        masks.append(row_exists[:, None])
    if column_exists is not None:
        masks.append(replicate(column_exists)[None, :])
    mask = None
    for m in masks:
        mask = m if mask is None else mask & m
    return mask


def _reduce(logits: Array, mask: Array | None, axis: int) -> RowStatistics:
    if mask is None:
        mask = jnp.ones((1, 1), bool)
    masked = jnp.where(mask, logits, -jnp.inf)
    top = jax.lax.stop_gradient(masked.max(axis))
    safe = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
    shifted = jnp.where(mask, logits - jnp.expand_dims(safe, axis), -jnp.inf)
    total = jnp.exp(shifted).sum(axis)
    empty = total == 0
    value = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, jnp.ones_like(total), total)))
    fixed = jax.lax.stop_gradient(logits)
    return RowStatistics(
        logsumexp=value + safe,
        positive=None,
        max=top,
        sum=jnp.where(mask, fixed, jnp.zeros_like(fixed)).sum(axis),
        count=jnp.broadcast_to(mask, logits.shape).sum(axis).astype(logits.dtype),
    )


def logsumexp(
    rows: Float[Array, "rows dim"],
    columns: Float[Array, "columns dim"],
    scale: Float[Array, ""],
    *,
    two_way: bool = False,
    paired: bool = True,
    row_ids: Int[Array, "rows *words"] | None = None,
    column_ids: Int[Array, "columns *words"] | None = None,
    row_exists: Bool[Array, " rows"] | None = None,
    column_exists: Bool[Array, " columns"] | None = None,
) -> RowStatistics:
    """``n_i = log Σ_j exp(s_ij)`` over the negatives j of row i; ``s = scale · rows columnsᵀ``."""
    logits = scale * product(rows, replicate(columns))
    mask = negatives_mask(
        rows.shape[0],
        columns.shape[0],
        paired=paired,
        row_ids=row_ids,
        column_ids=column_ids,
        row_exists=row_exists,
        column_exists=column_exists,
    )
    stats = _reduce(logits, mask, 1)
    return RowStatistics(
        logsumexp=stats.logsumexp,
        positive=None,
        max=stats.max,
        sum=stats.sum,
        count=stats.count,
        columns=_reduce(logits, mask, 0) if two_way else None,
    )
