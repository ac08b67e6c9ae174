"""The sigmoid loss of SigLIP."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from contrastive.logits import LogitPartition, RowStatistics
from contrastive.logits.dense import negatives_mask, product, replicate
from contrastive.losses.common import (
    as_scalar,
    check_ids,
    check_pairs,
    keep_existing,
    positive_logits,
    weighted_mean,
    with_positive,
)


def sigmoid_loss(
    images: Float[Array, "batch dim"],
    texts: Float[Array, "batch dim"],
    scale: Float[Array, ""] | float,
    bias: Float[Array, ""] | float,
    *,
    ids: Int[Array, "batch *words"] | None = None,
    weights: Float[Array, " batch"] | None = None,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Float[Array, ""] | tuple[Float[Array, ""], RowStatistics]:
    """SigLIP: every entry of the matrix is a binary decision; the sum divided by the batch."""
    del partition
    check_pairs("sigmoid_loss", images, texts)
    check_ids("ids", ids)
    scale, bias = as_scalar(scale, images), as_scalar(bias, images)
    exists = None if weights is None else weights > 0
    images, texts = keep_existing(images, exists), keep_existing(texts, exists)
    logits = scale * product(images, replicate(texts)) + bias
    mask = negatives_mask(
        *logits.shape,
        paired=True,
        row_ids=ids,
        column_ids=ids,
        row_exists=exists,
        column_exists=exists,
    )
    assert mask is not None
    entries = jnp.where(mask, jax.nn.softplus(logits), 0.0)
    if weights is not None:
        dense = jnp.where(weights > 0, weights, 0.0).astype(logits.dtype)
        entries = entries * ((dense[:, None] + replicate(dense)[None, :]) / 2)
    positive = positive_logits(images, texts, scale) + bias
    rows = entries.sum(1)
    if weights is not None:
        rows = rows / jnp.where(weights > 0, weights, 1.0).astype(logits.dtype)
    loss = weighted_mean(rows + jax.nn.softplus(-positive), weights)
    if not return_statistics:
        return loss
    fixed = jnp.where(mask, logits, 0.0)
    count = mask.astype(logits.dtype)
    top = jnp.where(mask, logits, -jnp.inf)
    columns = RowStatistics(
        logsumexp=None, positive=None, max=top.max(0), sum=fixed.sum(0), count=count.sum(0)
    )
    stats = RowStatistics(
        logsumexp=None,
        positive=None,
        max=top.max(1),
        sum=fixed.sum(1),
        count=count.sum(1),
        columns=columns,
    )
    return loss, with_positive(stats, positive, exists)
