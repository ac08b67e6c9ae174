"""What one pass over the logits tells about each row."""

import dataclasses
from typing import Any, Optional

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Reductions of each row of the logits over its negatives.

    Only ``logsumexp`` carries a gradient. A row without negatives has ``logsumexp = max = -inf``,
    ``sum = 0``, ``count = 0``.

    Attributes:
      logsumexp: ``log Σ_j exp(s_ij)`` over the negatives; None for the sigmoid loss.
      positive: ``s_ii``; None where rows and columns are not pairs.
      max: The hardest negative's logit.
      sum: ``Σ_j s_ij`` over the negatives.
      count: Number of negatives, as a float.
      exists: 1 for a row that counts, 0 for a padded one.
      columns: The same for the columns, from the same pass; None for one-way losses.
    """

    logsumexp: Float[Array, " batch"] | None
    positive: Float[Array, " batch"] | None
    max: Float[Array, " batch"]
    sum: Float[Array, " batch"]
    count: Float[Array, " batch"]
    exists: Float[Array, " batch"] | None = None
    columns: Optional["RowStatistics"] = None

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        """Children by field name, for `jax.tree_util`."""
        names = [field.name for field in dataclasses.fields(self)]
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names], None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> "RowStatistics":
        """Builds without checks: JAX also fills trees with shapes, shardings and placeholders."""
        del aux
        new = object.__new__(cls)
        for field, child in zip(dataclasses.fields(cls), children, strict=True):
            object.__setattr__(new, field.name, child)
        return new

    def accuracy(self) -> Float[Array, ""]:
        """Share of the rows whose positive beats every negative."""
        if self.positive is None:
            raise ValueError("accuracy needs positives; these rows and columns are not pairs.")
        correct = (self.positive > self.max).astype(self.max.dtype)
        if self.exists is None:
            return correct.mean()
        return jnp.sum(correct * self.exists) / jnp.maximum(self.exists.sum(), 1.0)


def merge(first: RowStatistics, second: RowStatistics) -> RowStatistics:
    """Statistics of the rows over the negatives of both."""
    if first.logsumexp is None or second.logsumexp is None:
        raise ValueError("merge needs logsumexp on both sides.")
    return RowStatistics(
        logsumexp=jnp.logaddexp(first.logsumexp, second.logsumexp),
        positive=first.positive,
        max=jnp.maximum(first.max, second.max),
        sum=first.sum + second.sum,
        count=first.count + second.count,
        exists=first.exists,
        columns=first.columns,
    )
