"""The numbers that people watch beside the loss."""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from contrastive.logits import RowStatistics


def watch(
    stats: RowStatistics,
    scale: Float[Array, ""],
    bias: Float[Array, ""],
    ways: tuple[str, str],
) -> dict[str, Array]:
    """Accuracy in the batch (both ways where both are known) and cosines.

    Args:
      stats: Of the loss.
      scale, bias: What turned cosines into logits.
      ways: How the two directions are called.
    """
    cosine = functools.partial(_cosine, scale=scale, bias=bias)
    assert stats.positive is not None
    assert stats.sum is not None
    assert stats.count is not None
    assert stats.max is not None
    assert stats.min is not None
    positive = cosine(stats.positive)
    there = stats.count.sum() > 0  # else there is no negative at all, as in an empty queue
    metrics = {
        f"accuracy/{ways[0]}": stats.accuracy(),
        **extremes("positive_cosine", positive, stats.exists),
        "negative_cosine/mean": cosine(stats.sum.sum() / jnp.maximum(stats.count.sum(), 1.0)),
        "negative_cosine/min": jnp.where(there, cosine(stats.min.min()), 1.0),
        "negative_cosine/max": jnp.where(there, cosine(stats.max.max()), -1.0),
    }
    if stats.columns is not None:
        metrics[f"accuracy/{ways[1]}"] = stats.columns.accuracy()
    return metrics


def extremes(name: str, values: Array, exists: Any) -> dict[str, Array]:
    """Mean and extremes over the rows that exist; 0, 1 and -1 where there are none."""
    if exists is None:
        found = values.mean(), values.min(), values.max()
    else:
        there = exists > 0
        mean = values.sum(where=there) / jnp.maximum(there.sum(dtype=values.dtype), 1.0)
        found = mean, values.min(where=there, initial=1.0), values.max(where=there, initial=-1.0)
    return {
        f"{name}/{word}": value for word, value in zip(("mean", "min", "max"), found, strict=True)
    }


def _cosine(logits: Array, *, scale: Array, bias: Array) -> Array:
    return (logits - bias) / scale
