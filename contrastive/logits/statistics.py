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

    Of the reductions' results only ``logsumexp``, ``same_logsumexp`` and ``same_sum`` carry
    gradients; what the losses return carries none. A row without negatives has
    ``logsumexp = max = -inf``, ``min = inf`` and ``sum = count = 0``. Fields that were not asked
    for are None.

    Attributes:
      logsumexp: ``n_i = log Σ_j exp(s_ij)`` over the negatives; None for the sigmoid loss.
      positive: ``s_ii``, 0 for an absent row; None where rows and columns are not pairs. From the
        same product as its rivals; where these come from several, ``max`` is set to it when the two
        differ by no more than rounding.
      max: The hardest negative's logit.
      ties: How many negatives have that logit.
      min: The easiest negative's logit.
      sum: ``Σ_j s_ij`` over the negatives.
      count: Number of negatives, as a float.
      exists: 1 for a row that counts, 0 for a padded one; None where all count.
      same_logsumexp: ``log Σ_p exp(s_ip)`` over the row's own content (own pair included);
        multi-positive losses only.
      same_sum: ``Σ_p s_ip`` over the same entries.
      same_count: Their number.
      columns: The same for the columns, from the same pass; None for one-way losses.
    """

    logsumexp: Float[Array, " batch"] | None = None
    positive: Float[Array, " batch"] | None = None
    max: Float[Array, " batch"] | None = None
    ties: Float[Array, " batch"] | None = None
    min: Float[Array, " batch"] | None = None
    sum: Float[Array, " batch"] | None = None
    count: Float[Array, " batch"] | None = None
    exists: Float[Array, " batch"] | None = None
    same_logsumexp: Float[Array, " batch"] | None = None
    same_sum: Float[Array, " batch"] | None = None
    same_count: Float[Array, " batch"] | None = None
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

    def correct(self) -> Float[Array, " batch"]:
        """Probability that each row finds its positive first, ties broken at random.

        1 where the positive beats every negative, ``1 / (ties + 1)`` where it equals the hardest
        ones, else 0: a collapsed model scores exactly chance.

        Raises:
          ValueError: Rows and columns are not pairs, or statistics were not asked for.
        """
        if self.positive is None or self.max is None or self.ties is None:
            raise ValueError(
                "accuracy compares each positive with the hardest negative: it needs rows and "
                "columns that are pairs, and return_statistics=True."
            )
        tied = 1.0 / (self.ties + 1.0)
        level = jnp.where(self.positive == self.max, tied, 0.0)
        return jnp.where(self.positive > self.max, 1.0, level)

    def accuracy(self) -> Float[Array, ""]:
        """Share of the existing rows that find their positive first (see :meth:`correct`)."""
        correct = self.correct()
        if self.exists is None:
            return correct.mean()
        kept = jnp.where(self.exists > 0, correct, 0.0)
        return kept.sum() / jnp.maximum(self.exists.sum(), 1.0)


def log_add(a: Array, b: Array) -> Array:
    """``log(exp(a) + exp(b))``; -inf with zero gradient where both are -inf."""
    top = jax.lax.stop_gradient(jnp.maximum(a, b))
    level = jnp.where(top == -jnp.inf, 0.0, top)
    total = jnp.exp(a - level) + jnp.exp(b - level)
    empty = total == 0
    return jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1.0, total)) + level)


def merge(first: RowStatistics, second: RowStatistics) -> RowStatistics:
    """Statistics of the rows over the negatives of both; the rest is the first's.

    Raises:
      ValueError: One side holds no logsumexp.
    """
    if first.logsumexp is None or second.logsumexp is None:
        raise ValueError("merge needs the logsumexp of both sides.")
    joint = dataclasses.replace(first, logsumexp=log_add(first.logsumexp, second.logsumexp))
    seen = [(side.max, side.ties, side.min, side.sum, side.count) for side in (first, second)]
    if any(field is None for side in seen for field in side):
        return dataclasses.replace(joint, max=None, ties=None, min=None, sum=None, count=None)
    (max_a, ties_a, min_a, sum_a, count_a), (max_b, ties_b, min_b, sum_b, count_b) = (
        [field for field in side if field is not None] for side in seen
    )
    top = jnp.maximum(max_a, max_b)
    ties = jnp.where(max_a == top, ties_a, 0.0) + jnp.where(max_b == top, ties_b, 0.0)
    return dataclasses.replace(
        joint,
        max=top,
        ties=ties,
        min=jnp.minimum(min_a, min_b),
        sum=sum_a + sum_b,
        count=count_a + count_b,
    )
