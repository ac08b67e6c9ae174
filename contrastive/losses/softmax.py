"""Softmax losses: InfoNCE (one way) and CLIP (two ways)."""

import jax
from jaxtyping import Array, Float, Int

from contrastive.logits import LogitPartition, RowStatistics, logsumexp, merge
from contrastive.losses.common import (
    as_scalar,
    check_ids,
    check_pairs,
    keep_existing,
    positive_logits,
    weighted_mean,
    with_positive,
)


def clip_loss(
    images: Float[Array, "batch dim"],
    texts: Float[Array, "batch dim"],
    scale: Float[Array, ""] | float,
    *,
    ids: Int[Array, "batch *words"] | None = None,
    weights: Float[Array, " batch"] | None = None,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Float[Array, ""] | tuple[Float[Array, ""], RowStatistics]:
    """Symmetric InfoNCE: the mean of image→text and text→image cross-entropies."""
    del partition
    check_pairs("clip_loss", images, texts)
    check_ids("ids", ids)
    scale = as_scalar(scale, images)
    exists = None if weights is None else weights > 0
    images, texts = keep_existing(images, exists), keep_existing(texts, exists)
    stats = logsumexp(
        images,
        texts,
        scale,
        two_way=True,
        row_ids=ids,
        column_ids=ids,
        row_exists=exists,
        column_exists=exists,
    )
    positive = positive_logits(images, texts, scale)
    assert stats.logsumexp is not None
    assert stats.columns is not None
    assert stats.columns.logsumexp is not None
    rows = jax.nn.softplus(stats.logsumexp - positive)
    columns = jax.nn.softplus(stats.columns.logsumexp - positive)
    loss = weighted_mean((rows + columns) / 2, weights)
    return (loss, with_positive(stats, positive, exists)) if return_statistics else loss


def info_nce(
    queries: Float[Array, "batch dim"],
    keys: Float[Array, "batch dim"],
    scale: Float[Array, ""] | float,
    *,
    negatives: Float[Array, "batch k dim"] | Float[Array, "m dim"] | None = None,
    share_negatives: bool = True,
    key_ids: Int[Array, "batch *words"] | None = None,
    negative_ids: Int[Array, "..."] | None = None,
    negative_weights: Float[Array, "..."] | None = None,
    weights: Float[Array, " batch"] | None = None,
    in_batch: bool = True,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Float[Array, ""] | tuple[Float[Array, ""], RowStatistics]:
    """InfoNCE, one way: every query finds its own key among the negatives."""
    del partition
    check_pairs("info_nce", queries, keys)
    check_ids("key_ids", key_ids)
    if negatives is not None and (not in_batch or not share_negatives or negatives.ndim != 2):
        raise ValueError("only a shared pool [m, dim] beside the batch for now.")
    scale = as_scalar(scale, queries)
    exists = None if weights is None else weights > 0
    queries, keys = keep_existing(queries, exists), keep_existing(keys, exists)
    stats = logsumexp(
        queries, keys, scale, row_ids=key_ids, column_ids=key_ids, column_exists=exists
    )
    if negatives is not None:
        pool = None if negative_weights is None else negative_weights > 0
        extra = logsumexp(
            queries,
            keep_existing(negatives, pool),
            scale,
            paired=False,
            row_ids=key_ids,
            column_ids=negative_ids,
            column_exists=pool,
        )
        stats = merge(stats, extra)
    positive = positive_logits(queries, keys, scale)
    assert stats.logsumexp is not None
    loss = weighted_mean(jax.nn.softplus(stats.logsumexp - positive), weights)
    return (loss, with_positive(stats, positive, exists)) if return_statistics else loss
