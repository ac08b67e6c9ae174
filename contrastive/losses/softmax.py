"""Softmax losses: each row finds its own column among the negatives.

All are ``log(1 + exp(n_i − s_ii))`` with ``n_i`` the logsumexp over the negatives: subtracting the
positive from a logsumexp that holds it would cancel to nothing on well aligned pairs.
"""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Integer

from contrastive.logits import LogitPartition, RowStatistics, logsumexp, masks, merge
from contrastive.logits.dense import describe, sum_exp
from contrastive.losses.common import (
    Ids,
    Loss,
    Pairs,
    Rows,
    Scalar,
    Weights,
    cross_entropy,
    keep_existing,
)


def clip_loss(
    images: Rows,
    texts: Rows,
    scale: Scalar,
    *,
    ids: Ids | None = None,
    weights: Weights | None = None,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Loss:
    """CLIP: every image finds its text and every text its image among the batch.

    ``L = ½ mean_i [logsumexp_j s_ij − s_ii] + ½ mean_j [logsumexp_i s_ij − s_jj]`` with
    ``s_ij = scale · images_i · texts_j``. Both directions come from one product.

    Args:
      images: Unit rows ``[batch, dim]``, a global array under jit.
      texts: Row i belongs to row i of the images.
      scale: ``exp(log_scale) = 1 / temperature``.
      ids: Content ids, int32 ``[batch]`` or uint32 ``[batch, 2]`` (64-bit words). Pairs with equal
        ids are no negatives of each other; -1 equals nothing.
      weights: ``[batch]``, ≥ 0; ``Σ w_i l_i / Σ w_i``. Pairs of weight 0 don't exist, neither as
        rows nor as columns, and may hold anything. All zero gives 0.
      partition: How the logits are cut over devices and blocks; None reads it from the inputs.
      return_statistics: Also return the :class:`RowStatistics` of images, with those of texts in
        ``columns``.

    Returns:
      A float32 scalar, differentiable (reverse mode, once) in images, texts and scale.

    Raises:
      ValueError: Shapes that don't fit; a batch that can't be cut evenly over the devices.
      TypeError: Dtypes that don't fit, int64 ids.

    References:
      Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021.
    """
    pairs = Pairs.of(
        "clip_loss", images, texts, scale, ids=ids, weights=weights, partition=partition
    )
    rows = _across(pairs, return_statistics)
    loss = pairs.mean(_both_ways(rows, pairs.positive))
    return pairs.finish(loss, rows if return_statistics else None)


def _across(
    pairs: Pairs, statistics: bool, *, two_way: bool = True, same: bool = False
) -> RowStatistics:
    """The rows of one side (and, both ways, those of the other) among the other side's."""
    return logsumexp(
        pairs.first,
        pairs.second,
        pairs.scale,
        two_way=two_way,
        same=same,
        statistics=statistics,
        **pairs.labels(),
    )


def _joined(pairs: Pairs, *sides: RowStatistics) -> RowStatistics:
    """Statistics over negatives that come from several products, or not from the positive's.

    Products of equal rows differ in their rounding, so a hardest negative that float32 can't tell
    from the positive is put at the positive: a collapsed model would not score chance otherwise.
    """
    rounding = 2 * math.sqrt(pairs.first.shape[1]) * jnp.finfo(pairs.scale.dtype).eps
    tolerance = rounding * jnp.abs(pairs.scale)
    level = []
    for side in sides:
        if side.max is not None:
            tied = jnp.abs(side.max - pairs.positive) <= tolerance
            top = jnp.where(tied, pairs.positive, side.max)
            side = dataclasses.replace(side, max=top)
        level.append(dataclasses.replace(side, positive=pairs.positive))
    return functools.reduce(merge, level)


def _both_ways(rows: RowStatistics, positive: Array) -> Array:
    assert rows.logsumexp is not None
    assert rows.columns is not None
    assert rows.columns.logsumexp is not None
    forth = cross_entropy(rows.logsumexp, positive)
    return (forth + cross_entropy(rows.columns.logsumexp, positive)) / 2


def info_nce(
    queries: Rows,
    keys: Rows,
    scale: Scalar,
    *,
    negatives: Float[Array | np.ndarray, "batch k dim"]
    | Float[Array | np.ndarray, "m dim"]
    | None = None,
    share_negatives: bool = True,
    key_ids: Ids | None = None,
    negative_ids: Integer[Array | np.ndarray, "..."] | None = None,
    negative_weights: Float[Array | np.ndarray, "..."] | None = None,
    weights: Weights | None = None,
    in_batch: bool = True,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Loss:
    """InfoNCE, one way: every query finds its own key.

    ``L = mean_i [log(exp(s_ii) + Σ_n exp(s_in)) − s_ii]`` over the negatives n of query i: the keys
    of other queries (``in_batch``) and the given negatives. This is also MoCo's loss (negatives: a
    queue ``[m, dim]``, ``in_batch=False``), DPR's (negatives: hard passages ``[batch, k, dim]``)
    and SimCSE's (keys: the same sentences under other dropout, scale 20; contradictions as
    negatives).

    Args:
      queries: Unit rows ``[batch, dim]``, a global array under jit.
      keys: Row i belongs to row i of the queries.
      scale: ``1 / temperature``.
      negatives: ``[batch, k, dim]``, k for each query and cut over devices like these, or
        ``[m, dim]``, a pool or queue that belongs to nobody, cut or whole on every device.
      share_negatives: Whether the k negatives of one query are negatives of all.
      key_ids: Content ids of the keys, int32 ``[batch]`` or uint32 ``[batch, 2]``; a candidate with
        the id of the query's own key is left out (the own key never is); -1 equals nothing.
      negative_ids: Content ids of the negatives, one for each.
      negative_weights: One for each negative; 0 where it is absent (fewer than k, a queue not yet
        full). Absent negatives may hold anything. Other values count as present.
      weights: ``[batch]``, ≥ 0; ``Σ w_i l_i / Σ w_i``. Pairs of weight 0 don't exist, nor do their
        own k negatives. All zero gives 0.
      in_batch: Whether keys of other queries are negatives.
      partition: How the logits are cut over devices and blocks; None reads it from the inputs.
      return_statistics: Also return the :class:`RowStatistics` of the queries.

    Returns:
      A float32 scalar, differentiable (reverse mode, once) in queries, keys, negatives and scale.

    Raises:
      ValueError: Shapes that don't fit; a batch that can't be cut evenly over the devices; no
        negatives at all; a pool that is not shared; options of negatives that aren't given.
      TypeError: Dtypes that don't fit, int64 ids.

    References:
      van den Oord et al., Representation Learning with Contrastive Predictive Coding, 2018.
      Karpukhin et al., Dense Passage Retrieval, 2020. He et al., Momentum Contrast, 2020.
      Gao et al., SimCSE, 2021.
    """
    pairs = Pairs.of(
        "info_nce",
        queries,
        keys,
        scale,
        ids=key_ids,
        weights=weights,
        partition=partition,
        ids_name="key_ids",
    )
    parts = []
    if in_batch:
        parts.append(_across(pairs, return_statistics, two_way=False))
    if negatives is not None:
        negatives = jnp.asarray(negatives)
        given = _Negatives.of(pairs, negatives, share_negatives, negative_ids, negative_weights)
        parts.append(given.reduce(pairs, return_statistics))
    elif not in_batch or not share_negatives or not (negative_ids is negative_weights is None):
        raise ValueError(
            "negatives = None: in_batch=False leaves no negatives at all, and share_negatives, "
            "negative_ids and negative_weights say something about negatives."
        )
    rows = parts[0] if negatives is None else _joined(pairs, *parts)
    assert rows.logsumexp is not None
    loss = pairs.mean(cross_entropy(rows.logsumexp, pairs.positive))
    return pairs.finish(loss, rows if return_statistics else None)


@dataclasses.dataclass(frozen=True)
class _Negatives:
    """Checked negatives: ``[batch, k, dim]``, or ``[m, dim]``."""

    x: Array
    ids: Array | None
    exists: Array | None
    shared: bool

    @classmethod
    def of(
        cls,
        pairs: Pairs,
        x: Array,
        shared: bool,
        ids: Array | np.ndarray | None,
        weights: Array | np.ndarray | None,
    ) -> "_Negatives":
        batch, dim = pairs.first.shape
        owned = x.ndim == 3
        if x.ndim not in (2, 3) or x.shape[-1] != dim or (owned and x.shape[0] != batch):
            raise ValueError(
                f"negatives are {list(x.shape)}, expected [{batch}, k, {dim}] or [m, {dim}]."
            )
        if 0 in x.shape[:-1]:
            raise ValueError(f"negatives are {list(x.shape)}: none at all; None says so.")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"negatives need a floating dtype, got {x.dtype}.")
        if not owned and not shared:
            raise ValueError(
                f"negatives {list(x.shape)} are a pool that belongs to no query; "
                "share_negatives=False needs negatives [batch, k, dim]."
            )
        masks.check_ids("negative_ids", ids, x.shape[:-1])
        if ids is not None and (pairs.ids is None or pairs.ids.dtype != ids.dtype):
            mine = None if pairs.ids is None else pairs.ids.dtype
            raise TypeError(
                f"negative_ids ({ids.dtype}) are compared with key_ids ({mine}); give both, of one "
                "dtype."
            )
        exists = None
        if weights is not None:
            if weights.shape != x.shape[:-1]:
                raise ValueError(
                    f"negative_weights are {list(weights.shape)}, expected {list(x.shape[:-1])}."
                )
            exists = jnp.asarray(weights) > 0
        known = None if ids is None else jnp.asarray(ids)
        if owned:
            x, known, exists = pairs.layout.place((x, known, exists), pairs.layout.cut)
            if pairs.exists is not None:
                mine = jnp.broadcast_to(pairs.exists[:, None], x.shape[:2])
                exists = mine if exists is None else mine & exists
        return cls(keep_existing(x.astype(pairs.first.dtype), exists), known, exists, shared)

    def reduce(self, pairs: Pairs, statistics: bool) -> RowStatistics:
        """The queries' logsumexp over these negatives."""
        if not self.shared:
            return self._own(pairs, statistics)
        x, ids, exists = self.x, self.ids, self.exists
        if x.ndim == 3:
            flat = pairs.layout.flatten
            x, ids, exists = flat(x), flat(ids), flat(exists)
        return logsumexp(
            pairs.first,
            x,
            pairs.scale,
            paired=False,
            column_ids=ids,
            column_exists=exists,
            statistics=statistics,
            **pairs.labels(columns=False),
        )

    def _own(self, pairs: Pairs, statistics: bool) -> RowStatistics:
        """Each query against its own k only: ``[batch, k]`` logits, next to nothing."""
        products = lax.dot_general(
            pairs.first,
            self.x,
            (((1,), (2,)), ((0,), (0,))),
            precision=pairs.layout.precision,
            preferred_element_type=pairs.scale.dtype,
        )
        logits, mask = pairs.scale * products, self.exists
        if self.ids is not None and pairs.ids is not None:
            equal = self.ids == pairs.ids[:, None]
            if self.ids.ndim == 3:
                equal = equal.all(-1)
            other = ~(equal & masks.known(pairs.ids)[:, None])
            mask = other if mask is None else mask & other
        result = RowStatistics(logsumexp=sum_exp(logits, mask, 1))
        if not statistics:
            return result
        return dataclasses.replace(result, **describe(logits, mask, None, 1))


def nt_xent(
    view_a: Rows,
    view_b: Rows,
    scale: Scalar,
    *,
    ids: Ids | None = None,
    weights: Weights | None = None,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Loss:
    """NT-Xent (SimCLR): each of the 2B views finds its other view among all views but itself.

    ``L = (1 / 2B) Σ_v [log Σ_{u ≠ v} exp(s_vu) − s_v,other(v)]``. The products of views of one side
    with each other are symmetric, which their backward pass uses: 10U operations in place of the
    16U that the stacked 2B × 2B matrix would take.

    Args:
      view_a: Unit rows ``[batch, dim]``, a global array under jit.
      view_b: Row i is the other view of row i.
      scale: ``1 / temperature``.
      ids: Content ids as in :func:`clip_loss`; views of equal content are no negatives.
      weights: ``[batch]``, ≥ 0, as in :func:`clip_loss`.
      partition: How the logits are cut over devices and blocks; None reads it from the inputs.
      return_statistics: Also return the :class:`RowStatistics` of the first views, with those of
        the second in ``columns``.

    Returns:
      A float32 scalar, differentiable (reverse mode, once) in both views and scale.

    Raises:
      ValueError: Shapes that don't fit; a batch that can't be cut evenly over the devices.
      TypeError: Dtypes that don't fit, int64 ids.

    References:
      Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020.
    """
    pairs = Pairs.of(
        "nt_xent", view_a, view_b, scale, ids=ids, weights=weights, partition=partition
    )
    across, first, second = _all_sides(pairs, return_statistics)
    assert across.columns is not None
    columns = _joined(pairs, across.columns, second)
    rows = dataclasses.replace(_joined(pairs, across, first), columns=columns)
    loss = pairs.mean(_both_ways(rows, pairs.positive))
    return pairs.finish(loss, rows if return_statistics else None)


def _all_sides(
    pairs: Pairs, statistics: bool
) -> tuple[RowStatistics, RowStatistics, RowStatistics]:
    """Across the two sides (both ways), and within the first and the second side."""
    across = _across(pairs, statistics)
    within = [
        logsumexp(x, None, pairs.scale, statistics=statistics, **pairs.labels(columns=False))
        for x in (pairs.first, pairs.second)
    ]
    return across, within[0], within[1]


def gte_loss(
    queries: Rows,
    keys: Rows,
    scale: Scalar,
    *,
    ids: Ids | None = None,
    weights: Weights | None = None,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Loss:
    """GTE's improved contrastive loss: one denominator over both directions and both sides.

    ``L = mean_i [log Z_i − s_ii]``, ``Z_i = exp(s_ii) + Σ_{j ≠ i} [exp(q_i·k_j) + exp(q_j·k_i) +
    exp(q_i·q_j) + exp(k_i·k_j)]`` (each product times the scale): the positive counts once.

    Args:
      queries: Unit rows ``[batch, dim]``, a global array under jit.
      keys: Row i belongs to row i of the queries.
      scale: ``1 / temperature``; .01 is the temperature in the paper.
      ids: Content ids as in :func:`clip_loss`; pairs of equal content are no negatives.
      weights: ``[batch]``, ≥ 0, as in :func:`clip_loss`.
      partition: How the logits are cut over devices and blocks; None reads it from the inputs.
      return_statistics: Also return the :class:`RowStatistics` of the joint denominators.

    Returns:
      A float32 scalar, differentiable (reverse mode, once) in queries, keys and scale.

    Raises:
      ValueError: Shapes that don't fit; a batch that can't be cut evenly over the devices.
      TypeError: Dtypes that don't fit, int64 ids.

    References:
      Li et al., Towards General Text Embeddings with Multi-stage Contrastive Learning, 2023.
    """
    pairs = Pairs.of(
        "gte_loss", queries, keys, scale, ids=ids, weights=weights, partition=partition
    )
    across, first, second = _all_sides(pairs, return_statistics)
    assert across.columns is not None
    rows = _joined(pairs, across, across.columns, first, second)
    rows = dataclasses.replace(rows, columns=None)
    assert rows.logsumexp is not None
    loss = pairs.mean(cross_entropy(rows.logsumexp, pairs.positive))
    return pairs.finish(loss, rows if return_statistics else None)


def decoupled_loss(
    images: Rows,
    texts: Rows,
    scale: Scalar,
    *,
    ids: Ids | None = None,
    weights: Weights | None = None,
    two_way: bool = True,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Loss:
    """Decoupled contrastive loss: the positive is left out of the denominator.

    ``L = mean_i [log Σ_{j ≠ i} exp(s_ij) − s_ii]``, averaged with the columns' when ``two_way``.
    A row whose every negative is masked out has no denominator: it adds nothing and is not counted.

    Args:
      images: Unit rows ``[batch, dim]``, a global array under jit.
      texts: Row i belongs to row i of the images.
      scale: ``1 / temperature``.
      ids: Content ids as in :func:`clip_loss`.
      weights: ``[batch]``, ≥ 0, as in :func:`clip_loss`.
      two_way: Whether columns count too.
      partition: How the logits are cut over devices and blocks; None reads it from the inputs.
      return_statistics: Also return the :class:`RowStatistics`.

    Returns:
      A float32 scalar, differentiable (reverse mode, once) in images, texts and scale.

    Raises:
      ValueError: A batch of one pair; shapes that don't fit; a batch that can't be cut evenly.
      TypeError: Dtypes that don't fit, int64 ids.

    References:
      Yeh et al., Decoupled Contrastive Learning, 2022.
    """
    pairs = Pairs.of(
        "decoupled_loss", images, texts, scale, ids=ids, weights=weights, partition=partition
    )
    if images.shape[0] == 1:
        raise ValueError(
            "decoupled_loss leaves the positive out of the denominator: a batch of 1 pair leaves "
            "nothing in it."
        )
    rows = _across(pairs, return_statistics, two_way=two_way)
    loss = _decoupled(pairs, rows)
    if rows.columns is not None:
        loss = (loss + _decoupled(pairs, rows.columns)) / 2
    return pairs.finish(loss, rows if return_statistics else None)


def _decoupled(pairs: Pairs, side: RowStatistics) -> Array:
    assert side.logsumexp is not None
    has = side.logsumexp > -jnp.inf
    gap = jnp.where(has, side.logsumexp, 0.0) - pairs.positive
    weights = jnp.ones_like(gap) if pairs.weights is None else pairs.weights
    return dataclasses.replace(pairs, weights=jnp.where(has, weights, 0.0)).mean(gap)


def multi_positive_loss(
    images: Rows,
    texts: Rows,
    scale: Scalar,
    *,
    ids: Ids,
    weights: Weights | None = None,
    two_way: bool = True,
    partition: LogitPartition | None = None,
    return_statistics: bool = False,
) -> Loss:
    """Softmax with several positives a row (SupCon, the mean outside the logarithm).

    ``l_i = mean_{p ∈ P(i)} [logsumexp_j s_ij − s_ip]``; P(i) is the own pair and every column of
    the row's known id. Averaged with the columns' when ``two_way``. For the sigmoid form see
    :func:`sigmoid_loss` with ``multi_positive=True``.

    Args:
      images: Unit rows ``[batch, dim]``, a global array under jit.
      texts: Row i belongs to row i of the images.
      scale: ``1 / temperature``.
      ids: Content ids, int32 ``[batch]`` or uint32 ``[batch, 2]``: equal known ids are positives.
      weights: ``[batch]``, ≥ 0, as in :func:`clip_loss`.
      two_way: Whether columns count too.
      partition: How the logits are cut over devices and blocks; None reads it from the inputs.
      return_statistics: Also return the :class:`RowStatistics`.

    Returns:
      A float32 scalar, differentiable (reverse mode, once) in images, texts and scale.

    Raises:
      ValueError: Shapes that don't fit; a batch that can't be cut evenly over the devices.
      TypeError: Dtypes that don't fit, int64 ids.

    References:
      Khosla et al., Supervised Contrastive Learning, 2020.
    """
    pairs = Pairs.of(
        "multi_positive_loss", images, texts, scale, ids=ids, weights=weights, partition=partition
    )
    rows = _across(pairs, return_statistics, two_way=two_way, same=True)
    values = _multi_positive(rows)
    if rows.columns is not None:
        values = (values + _multi_positive(rows.columns)) / 2
    return pairs.finish(pairs.mean(values), rows if return_statistics else None)


def _multi_positive(side: RowStatistics) -> Array:
    """``logsumexp over all − mean of the positives``, in two parts that don't cancel.

    Against the negatives: ``log(1 + exp(n − p))`` with p the logsumexp of the positives; among the
    positives: p less their mean, which is 0 for one and at least ``log |P|`` for more.
    """
    assert side.logsumexp is not None
    assert side.same_logsumexp is not None
    assert side.same_sum is not None
    assert side.same_count is not None
    there = side.same_count > 0
    level = jnp.where(there, side.same_logsumexp, 0.0)
    mean = side.same_sum / jnp.maximum(side.same_count, 1.0)
    return jnp.where(there, cross_entropy(side.logsumexp, level) + level - mean, 0.0)
