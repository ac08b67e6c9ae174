"""What all losses share: checks, weights, the positive's logit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from contrastive.logits import LogitPartition, RowStatistics, masks
from contrastive.logits.partition import Layout, resolve
from contrastive.logits.tiles import accumulator

Rows = Float[Array | np.ndarray, "batch dim"]
Scalar = Float[Array | np.ndarray, ""] | float
Ids = Integer[Array | np.ndarray, "batch *words"]
Weights = Float[Array | np.ndarray, " batch"]
Loss = Float[Array, ""] | tuple[Float[Array, ""], RowStatistics]


def check_pairs(name: str, first: Array | np.ndarray, second: Array | np.ndarray) -> None:
    """Raises unless both sides are [batch, dim] of one shape and floating dtype, with rows."""
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(
            f"{name} needs two arrays [batch, dim] of one shape, got {list(first.shape)} and "
            f"{list(second.shape)}."
        )
    if first.dtype != second.dtype:
        raise TypeError(f"{name} needs one dtype, got {first.dtype} and {second.dtype}.")
    if not jnp.issubdtype(first.dtype, jnp.floating):
        raise TypeError(f"{name} needs rows of a floating dtype, got {first.dtype}.")
    if first.shape[0] == 0:
        raise ValueError(f"{name} got {list(first.shape)}: the batch has no rows.")


def as_weights(weights: Any, rows: int, name: str = "weights") -> Array | None:
    """Weights as an array, None as None.

    Raises:
      ValueError: They are not one for each row.
    """
    if weights is None:
        return None
    weights = jnp.asarray(weights)
    if weights.shape != (rows,):
        raise ValueError(f"{name} are {list(weights.shape)}, expected {[rows]}.")
    return weights


def as_scalar(name: str, value: Any, dtype: Any) -> Array:
    """A number as an array of the given dtype.

    Raises:
      ValueError: It is an array with axes: those would be broadcast against the logits.
    """
    scalar = jnp.asarray(value)
    if scalar.shape != ():
        raise ValueError(f"{name} is {list(scalar.shape)}, expected a scalar.")
    return scalar.astype(dtype)


def keep_existing(x: Array, exists: Array | None) -> Array:
    """Zeros (with zero gradient) in place of the rows that don't exist, whatever they hold."""
    if exists is None:
        return x
    return jnp.where(exists.reshape(*exists.shape, *[1] * (x.ndim - exists.ndim)), x, 0)


def weighted_mean(values: Array, weights: Array | None) -> Array:
    """``Σ w l / Σ w``; 0 where all weights are 0; rows of weight 0 may hold anything."""
    if weights is None:
        return values.mean()
    weights = jax.lax.stop_gradient(weights).astype(values.dtype)
    exists = weights > 0
    total = jnp.where(exists, weights, 0.0).sum()
    kept = jnp.where(exists, weights, 0.0) * jnp.where(exists, values, 0.0)
    return kept.sum() / jnp.where(total > 0, total, 1.0)


def cross_entropy(negatives: Array, positive: Array) -> Array:
    """``−log(exp(p) / (exp(p) + exp(n))) = log(1 + exp(n − p))``, exact where n − p is very low.

    With derivatives of any order, at ``n = p`` too, where those of ``|n − p|`` would be wrong.
    """
    return jax.nn.softplus(negatives - positive)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """A checked batch of pairs, placed as the partition says.

    Attributes:
      first: ``[batch, dim]``, zeros in rows that don't exist.
      second: The other side of each pair.
      scale: Scalar of the accumulation dtype.
      positive: ``s_ii``, ``[batch]``.
      ids: Content ids or None.
      weights: Of the accumulation dtype, or None.
      exists: Where the weight is positive, or None.
      layout: The definite layout.
      partition: What the reductions are given.
    """

    first: Array
    second: Array
    scale: Array
    positive: Array
    ids: Array | None
    weights: Array | None
    exists: Array | None
    layout: Layout
    partition: LogitPartition | None

    @classmethod
    def of(
        cls,
        name: str,
        first: Array | np.ndarray,
        second: Array | np.ndarray,
        scale: Any,
        *,
        ids: Any = None,
        weights: Any = None,
        partition: LogitPartition | None = None,
        ids_name: str = "ids",
    ) -> "Pairs":
        """Checks and places what a loss is given.

        Raises:
          ValueError: Shapes that don't fit, a batch that can't be cut evenly.
          TypeError: Dtypes that don't fit; ids that are not int32 or uint32 words.
        """
        x, y = jnp.asarray(first), jnp.asarray(second)
        check_pairs(name, x, y)
        masks.check_ids(ids_name, ids, x.shape[:1])
        weights = as_weights(weights, x.shape[0])
        if x.dtype == jnp.float16:
            # Its range is too small for softmax weights divided by the batch.
            x, y = x.astype(jnp.float32), y.astype(jnp.float32)
        dtype = accumulator(x.dtype)
        if ids is not None:
            ids = jnp.asarray(ids)
        if weights is not None:
            weights = jax.lax.stop_gradient(weights.astype(dtype))
        layout = resolve(partition, x)
        x, y, ids, weights = layout.place((x, y, ids, weights), layout.cut)
        exists = None if weights is None else weights > 0
        x, y = keep_existing(x, exists), keep_existing(y, exists)
        scale = as_scalar("scale", scale, dtype)
        positive = scale * jnp.sum(x.astype(dtype) * y.astype(dtype), axis=-1)
        return cls(x, y, scale, positive, ids, weights, exists, layout, partition)

    def labels(self, *, columns: bool = True) -> dict[str, Any]:
        """What the reductions have to know of rows and columns of this batch."""
        labels = {"row_ids": self.ids, "row_exists": self.exists, "partition": self.partition}
        if columns:
            labels |= {"column_ids": self.ids, "column_exists": self.exists}
        return labels

    def mean(self, values: Array) -> Float[Array, ""]:
        """Mean over the pairs by their weights."""
        return weighted_mean(values, self.weights)

    def finish(self, loss: Array, statistics: RowStatistics | None) -> Loss:
        """The loss; with its statistics, free of gradients, where there are any."""
        if statistics is None:
            return loss
        exists = None if self.exists is None else self.exists.astype(loss.dtype)
        columns = statistics.columns
        if columns is not None:
            columns = dataclasses.replace(columns, exists=exists)
        done = dataclasses.replace(statistics, exists=exists, columns=columns)
        return loss, jax.lax.stop_gradient(done)
