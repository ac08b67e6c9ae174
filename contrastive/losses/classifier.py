"""Losses of judged pairs: each by itself, with a layer of its own, nothing across the batch."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from contrastive.logits.dense import product
from contrastive.losses.common import (
    Weights,
    as_weights,
    check_pairs,
    cross_entropy,
    keep_existing,
    weighted_mean,
)


def pair_features(
    first: Float[Array, "batch dim"], second: Float[Array, "batch dim"]
) -> Float[Array, "batch features"]:
    """``(u, v, |u − v|)`` side by side, ``[batch, 3·dim]``."""
    return jnp.concatenate([first, second, jnp.abs(first - second)], axis=1)


def classifier_loss(
    first: Float[Array, "batch dim"],
    second: Float[Array, "batch dim"],
    kernel: Float[Array, "features classes"],
    labels: Int[Array, " batch"],
    *,
    bias: Float[Array, " classes"] | None = None,
    weights: Weights | None = None,
) -> Float[Array, ""]:
    """Cross-entropy of ``softmax((u, v, |u − v|) · kernel + bias)`` against a label for each pair.

    The objective that Sentence-BERT was trained with on natural-language inference (entailment,
    neutral, contradiction). It compares nothing across the batch, so it takes no partition: rows
    may be cut over devices in any way.

    Args:
      first: u, ``[batch, dim]``.
      second: v, of the same shape and dtype.
      kernel: ``[3·dim, classes]``, for u, v and ``|u − v|`` in this order.
      labels: int, 0 ≤ label < classes; any other label of an existing row makes the loss NaN.
      bias: ``[classes]``.
      weights: ``[batch]``, ≥ 0; rows of weight 0 don't exist, whatever they hold.

    Returns:
      ``Σ w_i l_i / Σ w_i`` in float32; 0 when all weights are 0.

    Raises:
      ValueError: Shapes that don't fit; a batch without rows.
      TypeError: Dtypes that don't fit.

    References:
      Reimers & Gurevych, Sentence-BERT, 2019.
    """
    check_pairs("classifier_loss", first, second)
    batch, dim = first.shape
    if kernel.ndim != 2 or kernel.shape[0] != 3 * dim or kernel.shape[1] == 0:
        raise ValueError(
            f"classifier_loss needs two arrays [batch, dim] and a kernel [3·dim, classes], got "
            f"{first.shape}, {second.shape} and {kernel.shape}."
        )
    classes = kernel.shape[1]
    if labels.shape != (batch,) or (bias is not None and bias.shape != (classes,)):
        raise ValueError(
            f"labels are {list(labels.shape)}, expected {[batch]}"
            f"{'' if bias is None else f'; bias is {list(bias.shape)}, expected {[classes]}'}."
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"labels need an integer dtype, got {labels.dtype}.")
    weights = as_weights(weights, batch)
    exists = None if weights is None else weights > 0
    first, second = (keep_existing(x, exists).astype(jnp.float32) for x in (first, second))
    logits = product(pair_features(first, second), kernel.astype(jnp.float32).T)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)[None, :]
    return label_loss(logits, labels, weights=weights)


def label_loss(
    logits: Float[Array, "batch classes"],
    labels: Int[Array, " batch"],
    *,
    weights: Weights | None = None,
) -> Float[Array, ""]:
    """Cross-entropy of ``softmax(logits)`` against a label for each pair: ``−log p_label``, exact
    where it is small.

    Args:
      logits: ``[batch, classes]``.
      labels: int, 0 ≤ label < classes; any other label of an existing row makes the loss NaN.
      weights: ``[batch]``, ≥ 0; rows of weight 0 don't exist, whatever they hold.

    Returns:
      ``Σ w_i l_i / Σ w_i`` in float32; 0 when all weights are 0.
    """
    weights = as_weights(weights, logits.shape[0])
    logits = keep_existing(logits, None if weights is None else weights > 0).astype(jnp.float32)
    own = labels[:, None] == jnp.arange(logits.shape[1], dtype=labels.dtype)[None, :]
    target = jnp.sum(jnp.where(own, logits, 0.0), axis=1)
    others = jax.nn.logsumexp(jnp.where(own, -jnp.inf, logits), axis=1)
    losses = jnp.where(own.any(axis=1), cross_entropy(others, target), jnp.nan)
    return weighted_mean(losses, weights)


def relevance_loss(
    positives: Float[Array, " batch"],
    negatives: Float[Array, "batch k"],
    *,
    negative_weights: Float[Array, "batch k"] | None = None,
    weights: Weights | None = None,
) -> Float[Array, ""]:
    """Binary cross-entropy of scores: ``l_i = −log σ(s_i) − Σ_j v_ij log σ(−s_ij) / Σ_j v_ij``.

    What a cross-encoder learns from a query with its passage and k that are not its own: the
    sigmoid of a score is then a probability, which means the same for every query.

    Args:
      positives: Scores ``s_i`` of the pairs.
      negatives: Scores ``s_ij`` of each query with its negatives.
      negative_weights: ``v ≥ 0``, 0 where there is none; None: all are 1.
      weights: ``[batch]``, ≥ 0; rows of weight 0 don't exist, whatever they hold.

    Returns:
      ``Σ w_i l_i / Σ w_i`` in float32; 0 when all weights are 0.

    References:
      Nogueira & Cho, Passage Re-ranking with BERT, 2019.
    """
    weights = as_weights(weights, positives.shape[0])
    exists = None if weights is None else weights > 0
    positives = keep_existing(positives, exists).astype(jnp.float32)
    v = jnp.ones_like(negatives) if negative_weights is None else negative_weights
    v = keep_existing(v, exists).astype(jnp.float32)
    scores = jnp.where(v > 0, negatives.astype(jnp.float32), 0.0)
    total = v.sum(axis=1)
    against = (v * jax.nn.softplus(scores)).sum(axis=1) / jnp.where(total > 0, total, 1.0)
    return weighted_mean(jax.nn.softplus(-positives) + against, weights)
