"""What all losses share: checks, weights, the positive's logit."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array

from contrastive.logits import RowStatistics


def as_scalar(value: Array | float, like: Array) -> Array:
    """``value`` as a scalar of the accumulation dtype of ``like``."""
    return jnp.asarray(value).astype(jnp.promote_types(like.dtype, jnp.float32))


def check_pairs(name: str, first: Array, second: Array) -> None:
    """Raises unless both sides are [batch, dim] of one shape and dtype."""
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(
            f"{name} needs two arrays [batch, dim] of one shape, got {first.shape} and "
            f"{second.shape}."
        )
    if first.dtype != second.dtype:
        raise TypeError(f"{name} needs one dtype, got {first.dtype} and {second.dtype}.")


def check_ids(name: str, ids: Array | None) -> None:
    """Raises unless ids are int32 [batch] or uint32 [batch, 2]."""
    if ids is None:
        return
    if (ids.ndim, str(ids.dtype)) in ((1, "int32"), (2, "uint32")):
        return
    raise TypeError(
        f"{name} has dtype {ids.dtype} and shape {ids.shape}; content ids are int32 [batch], or "
        "64-bit ids as uint32 [batch, 2]."
    )


def keep_existing(x: Array, exists: Array | None) -> Array:
    """Zeros (with zero gradient) in place of the rows that don't exist, whatever they hold."""
    return x if exists is None else jnp.where(exists[:, None], x, jnp.zeros_like(x))


def positive_logits(first: Array, second: Array, scale: Array) -> Array:
    """``scale · a_i·b_i``, [batch]."""
    dtype = scale.dtype
    return scale * jnp.sum(first.astype(dtype) * second.astype(dtype), axis=-1)


def weighted_mean(values: Array, weights: Array | None) -> Array:
    """``Σ w l / Σ w``; 0 where all weights are 0; rows of weight 0 may hold anything."""
    if weights is None:
        return values.mean()
    weights = weights.astype(values.dtype)
    total = weights.sum()
    kept = jnp.where(weights > 0, weights * jnp.where(weights > 0, values, 0.0), 0.0)
    return kept.sum() / jnp.where(total > 0, total, 1.0)


def with_positive(stats: RowStatistics, positive: Array, exists: Array | None) -> RowStatistics:
    """The statistics, without gradients, with the positives in them."""
    columns = stats.columns
    if columns is not None:
        columns = with_positive(columns, positive, exists)
    kept = None if exists is None else exists.astype(positive.dtype)
    return jax.lax.stop_gradient(
        dataclasses.replace(stats, positive=positive, exists=kept, columns=columns)
    )
