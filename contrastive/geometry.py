"""Geometry of embeddings on the unit sphere."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32


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
