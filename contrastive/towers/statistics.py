"""Batch normalisation over the global batch, and the running statistics that evaluation takes.

In training each channel is normalised by its mean and variance over all rows and places of the
batch, on however many devices it lies (synchronised, as in SimCLR). The running statistics are
parameters of the kind :class:`BatchStatistic`. They leave the step the way gradients do: what comes
out in the place of their gradient is how far they have to move,

    (1 − momentum) · (running − batch),

through scans, rematerialisation and ``shard_map`` alike. :func:`taken_out` takes it out of the
gradient before an optimizer sees it, :func:`moved` moves them. A tower that reads several views in
a step moves them by the sum.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from contrastive.towers import sharding


class BatchStatistic(nnx.Param):
    """A running mean or variance, which no gradient reaches."""


def batch_moments(
    x: Float[Array, "batch height width channels"],
) -> tuple[Float[Array, "channels"], Float[Array, "channels"], int]:
    """Mean and variance of each channel over the global batch, in float32, and over how many
    numbers they were taken. The variance is that of two passes, ``mean((x − mean)²)``."""
    axes = sharding.batch_axes()
    count = math.prod(x.shape[:3]) * sharding.parts_of_batch()

    def mean(y: jax.Array) -> jax.Array:
        total = jnp.sum(y, axis=(0, 1, 2), dtype=jnp.float32)
        return (lax.psum(total, axes) if axes else total) / count

    first = mean(x)
    return first, mean(jnp.square(x.astype(jnp.float32) - first[None, None, None])), count


def follow(
    y: jax.Array,
    running: tuple[jax.Array, jax.Array],
    mean: Float[Array, "channels"],
    variance: Float[Array, "channels"],
    count: int,
    momentum: float,
) -> jax.Array:
    """``y``; on the way back the running mean and variance get how far they have to move. The
    variance that they follow is the unbiased one, as in PyTorch."""
    unbiased = variance * (count / max(count - 1, 1))
    # Under shard_map every device adds its part to the gradient of a parameter.
    share = (1.0 - momentum) / sharding.parts_of_batch()
    return _follow(share, y, running, lax.stop_gradient((mean, unbiased)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _follow(share: float, y: jax.Array, running: Any, batch: Any) -> jax.Array:
    return y


def _forward(share: float, y: jax.Array, running: Any, batch: Any) -> tuple[jax.Array, Any]:
    return y, (running, batch)


def _backward(share: float, kept: Any, g: jax.Array) -> tuple[jax.Array, Any, Any]:
    running, batch = kept
    moves = jax.tree.map(lambda r, b: share * (r - b), running, batch)
    return g, moves, jax.tree.map(jnp.zeros_like, batch)


_follow.defvjp(_forward, _backward)


def taken_out(gradient: Any) -> tuple[Any, Any]:
    """The gradient with zeros in the places of running statistics, and what was there: how far they
    have to move, with zeros elsewhere. The same tree and None where there are none."""
    if not any(map(_is_statistic, jax.tree.leaves(gradient, is_leaf=_is_variable))):
        return gradient, None

    def only(wanted: bool) -> Any:
        return jax.tree.map(
            lambda v: v if _is_statistic(v) == wanted else jax.tree.map(jnp.zeros_like, v),
            gradient,
            is_leaf=_is_variable,
        )

    return only(False), only(True)


def moved(parameters: Any, moves: Any) -> Any:
    """The parameters with the running statistics where they belong after the step."""
    return parameters if moves is None else jax.tree.map(jnp.subtract, parameters, moves)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


def _is_statistic(leaf: Any) -> bool:
    return isinstance(leaf, BatchStatistic)
