"""The sigmoid loss of SigLIP."""

import jax.numpy as jnp

from contrastive.logits import LogitPartition, softplus
from contrastive.losses.common import (
    Ids,
    Loss,
    Pairs,
    Rows,
    Scalar,
    Weights,
    as_scalar,
    cross_entropy,
)


def sigmoid_loss(
    images: Rows,
    texts: Rows,
    scale: Scalar,
    bias: Scalar,
    *,
    ids: Ids | None = None,
    weights: Weights | None = None,
    multi_positive: bool = False,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Loss:
    """SigLIP: every entry of the matrix is a decision of its own.

    ``L = (1/B) Σ_ij log(1 + exp(−z_ij (scale · images_i · texts_j + bias)))``, z = 1 for a row's
    own column, -1 for the others: the sum over all pairs divided by the batch, not by its square.

    Args:
      images: Unit rows ``[batch, dim]``, a global array under jit.
      texts: Row i belongs to row i of the images.
      scale: ``exp(log_scale)``; starts at 10 in the paper.
      bias: Added to every logit; starts at -10 in the paper.
      ids: Content ids, int32 ``[batch]`` or uint32 ``[batch, 2]``. Entries of equal known content
        off the diagonal are left out, or positives with ``multi_positive``.
      weights: ``[batch]``, ≥ 0; an entry weighs ``½ (w_i + w_j)`` where both are positive, else it
        is absent, and the sum is divided by ``Σ w_i``. All zero gives 0.
      multi_positive: z = 1 wherever known ids are equal.
      partition: How the logits are cut over devices and blocks; None reads it from the inputs.
      return_statistics: Also return the :class:`RowStatistics` of images, with those of texts in
        ``columns`` (logits with the bias; no logsumexp).

    Returns:
      A float32 scalar, differentiable (reverse mode, once) in images, texts, scale and bias.

    Raises:
      ValueError: Shapes that don't fit; a batch that can't be cut evenly over the devices;
        ``multi_positive`` without ids.
      TypeError: Dtypes that don't fit, int64 ids.

    References:
      Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023.
    """
    if multi_positive and ids is None:
        raise ValueError("multi_positive=True finds positives by their ids; ids are not given.")
    pairs = Pairs.of(
        "sigmoid_loss", images, texts, scale, ids=ids, weights=weights, partition=partition
    )
    bias = as_scalar("bias", bias, pairs.scale.dtype)
    total, statistics = softplus(
        pairs.first,
        pairs.second,
        pairs.scale,
        bias,
        ids=pairs.ids,
        weights=pairs.weights,
        same=multi_positive,
        statistics=return_statistics,
        partition=partition,
    )
    own = pairs.mean(cross_entropy(jnp.zeros_like(pairs.positive), pairs.positive + bias))
    if pairs.weights is None:
        count = jnp.asarray(float(images.shape[0]), total.dtype)
    else:
        count = jnp.where(pairs.weights > 0, pairs.weights, 0.0).sum()
    return pairs.finish(total / jnp.where(count > 0, count, 1.0) + own, statistics)
