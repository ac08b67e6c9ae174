"""The loss of a batch of pairs, by the name in the config."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from contrastive import losses
from contrastive.geometry import normalize
from contrastive.logits import LogitPartition, RowStatistics, masks
from contrastive.objectives import momentum as momentum_lib
from contrastive.objectives.config import JUDGES, LOSS_SCOPE, LossConfig
from contrastive.objectives.judged import existing_negatives, judged_objective
from contrastive.objectives.views import VIEWS, WAYS, Batch, encode_view
from contrastive.objectives.watch import extremes, watch
from contrastive.towers import Pairs, TwoTower

Objective = Callable[[TwoTower, Batch, jax.Array], tuple[Array, dict[str, Array]]]
Rows = Float[Array, "batch dim"]
# What every loss returns: its value, and statistics where it has them.
Found = tuple[Array, RowStatistics | None]

_BOTH_SIDES: dict[str, Callable[..., Any]] = {
    "clip": losses.clip_loss,
    "nt_xent": losses.nt_xent,
    "gte": losses.gte_loss,
    "decoupled": losses.decoupled_loss,
    "multi_positive": losses.multi_positive_loss,
}


def make_objective(
    config: LossConfig,
    partition: LogitPartition | None = None,
    *,
    pairs: Pairs = "captions",
    microbatches: int = 1,
    momentum: momentum_lib.MomentumConfig | None = None,
) -> Objective:
    """The objective that the config names.

    Of pairs of texts with negatives in the batch these join the passages that a query is told from
    (DPR); of views with small crops, each crop finds both views among those of the batch, and the
    loss is the mean over the views and all crops. Matryoshka (Kusupati et al. 2022,
    https://arxiv.org/abs/2205.13147): ``L(z) + Σ_m w_m L(z[:m] / |z[:m]|)``, from one pass of the
    towers.

    Args:
      config: Loss, scale and masks.
      partition: How the logits are cut; None: read from the inputs' types.
      pairs: What a batch holds.
      microbatches: Chunks that the encoders run in; the loss sees the whole batch
        (:mod:`contrastive.microbatches`).
      momentum: Of a momentum encoder; None or switched off: both views come from the model. With
        one, batches also hold what :meth:`Momentum.keys` adds.
    """
    if config.name in JUDGES:
        return judged_objective(config, microbatches=microbatches)

    def objective(
        model: TwoTower, batch: Batch, key: jax.Array
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        encode = functools.partial(
            encode_view, model, batch, pairs, key=key, microbatches=microbatches
        )
        loss = _Loss(config, partition, model, batch)
        views = VIEWS[pairs]
        against_keys = momentum is not None and momentum.on
        several = len(views) > 2 and views[2].field in batch
        rest = encode(2, predict=against_keys) if several else None
        if momentum is not None and momentum.on:
            (value, stats), crop = _against_keys(momentum, loss, encode, batch)
            value, metrics = _with_crops(value, crop, rest), {}
        else:
            first, second = encode(0), encode(1)
            value, stats = _of_pairs(loss, pairs, first, second, rest)
            cosine = jnp.sum(first * second, axis=1)
            metrics = extremes("positive_cosine", cosine, loss.weights) if stats is None else {}
            if config.matryoshka:
                metrics["loss/whole"] = value
            for dim, weight in config.prefixes():
                shorter = _prefix(first, dim), _prefix(second, dim)
                others = None if rest is None else _prefix(rest, dim)
                metrics[f"loss/{dim}"], _ = _of_pairs(loss, pairs, *shorter, others)
                value = value + weight * metrics[f"loss/{dim}"]
        if stats is not None:
            metrics |= {"scale": loss.scale, "temperature": 1 / loss.scale}
            metrics |= {"bias": loss.bias} if config.name == "siglip" else {}
            metrics |= watch(stats, loss.scale, loss.bias, WAYS[pairs])
        return value, metrics

    return objective


def _of_pairs(loss: "_Loss", pairs: Pairs, first: Rows, second: Rows, rest: Array | None) -> Found:
    """The loss of pairs with what comes with them: negatives of texts, small crops of views."""
    if pairs == "texts":
        return loss.of(first, second, rest)
    value, stats = loss.of(first, second, None)
    return _with_crops(value, functools.partial(_two_ways, loss, first, second), rest), stats


def _prefix(rows: Array, dim: int) -> Array:
    """The first entries of rows, brought to unit length."""
    return normalize(rows[..., :dim])


def _with_crops(value: Array, crop: Callable[[Rows], Array], rest: Array | None) -> Array:
    """The mean of a loss and those of the small crops of each pair."""
    if rest is None:
        return value
    crops = [crop(rest[:, i]) for i in range(rest.shape[1])]
    return (value + sum(crops, jnp.zeros(()))) / (1 + len(crops))


def _two_ways(loss: "_Loss", first: Rows, second: Rows, crop: Rows) -> Array:
    """A small crop among the first views, and among the second."""
    return (loss.one_way(crop, first)[0] + loss.one_way(crop, second)[0]) / 2


def _against_keys(
    momentum: momentum_lib.MomentumConfig,
    loss: "_Loss",
    encode: Callable[..., Rows],
    batch: Batch,
) -> tuple[Found, Callable[[Rows], Array]]:
    """Queries of the model against keys of the momentum encoder; the loss of a small crop."""
    seen = momentum_lib.seen(batch)
    query = encode(0, predict=True)
    if momentum.symmetric:
        assert seen.first is not None
        other = encode(1, predict=True)
        forth, stats = loss.one_way(query, seen.second)
        back, _ = loss.one_way(other, seen.first)
        crop = functools.partial(_two_ways, loss, seen.first, seen.second)
        return ((forth + back) / 2, stats), crop
    queue: dict[str, Any] = {}
    if seen.queue is not None:
        queue = {"negatives": seen.queue.rows, "negative_weights": seen.queue.filled}
        queue |= {"in_batch": False, "key_ids": seen.ids if loss.ids is not None else None}
        queue["negative_ids"] = seen.queue.ids if loss.ids is not None else None
    found = loss.one_way(query, seen.second, **queue)
    return found, lambda crop: loss.one_way(crop, seen.second, **queue)[0]


class _Loss:
    """The loss with all that it takes from the model and the batch beside rows."""

    def __init__(
        self,
        config: LossConfig,
        partition: LogitPartition | None,
        model: TwoTower,
        batch: Batch,
    ) -> None:
        self.config, self.batch = config, batch
        self.scale = jnp.exp(model.log_scale[...])
        self.bias = jnp.zeros(()) if model.bias is None else model.bias[...]
        self.ids = batch["id"] if config.mask_duplicates else None
        self.weights = batch.get("weight")  # 0 in rows of samples that could not be read
        if config.drop_duplicates:
            first = masks.first_of_content(batch["id"]).astype(jnp.float32)
            self.weights = first if self.weights is None else first * self.weights
        self._common: dict[str, Any] = {
            "weights": self.weights,
            "partition": partition,
            "return_statistics": True,
        }

    def of(self, first: Rows, second: Rows, negatives: Float[Array, "batch k dim"] | None) -> Found:
        """The loss of pairs, with the negatives that came with them."""
        name = self.config.name
        if name == "triplet":
            return self._triplet(first, second, negatives), None
        if name == "info_nce":
            return self.one_way(first, second, **self._given(negatives))
        if name == "siglip":
            return _in_scope(losses.sigmoid_loss)(
                first, second, self.scale, self.bias, ids=self.ids, **self._common
            )
        if negatives is None:
            return _in_scope(_BOTH_SIDES[name])(
                first, second, self.scale, ids=self.ids, **self._common
            )
        forth, stats = self.one_way(first, second, **self._given(negatives))
        back, _ = self.one_way(second, first)
        return (forth + back) / 2, stats

    def one_way(self, queries: Rows, keys: Rows, **options: Any) -> Found:
        """InfoNCE of queries among keys."""
        options = {"key_ids": self.ids, **self._common, **options}
        return _in_scope(losses.info_nce)(queries, keys, self.scale, **options)

    def _given(self, negatives: Array | None) -> dict[str, Any]:
        if negatives is None:
            return {}
        return {
            "negatives": negatives,
            "share_negatives": self.config.share_negatives,
            "negative_ids": None if self.ids is None else self.batch["negative_id"],
            "negative_weights": self.batch["negative_weight"],
        }

    def _triplet(self, first: Rows, second: Rows, negatives: Array | None) -> Array:
        config = self.config
        margin = 1.0 if config.margin is None else config.margin
        loss = functools.partial(losses.triplet_loss, margin=margin, weights=self.weights)
        if negatives is None:
            return _in_scope(loss)(first, second, mining=config.mining, ids=self.ids)
        return _in_scope(_given_triplets)(first, second, negatives, self.batch, margin, self)


def _given_triplets(
    first: Rows, second: Rows, negatives: Array, batch: Batch, margin: float, loss: _Loss
) -> Array:
    """Triplets with the negatives that are there and are not of the pair's own content.

    ``triplet_loss`` takes k negatives of every anchor; where a pair has fewer, each is a triplet of
    its own with a weight.
    """
    weights = existing_negatives(batch, masked=loss.ids is not None)
    weights = weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 1.0)
    if loss.weights is not None:
        weights = weights * loss.weights[:, None]
    total, every = jnp.zeros(()), jnp.zeros(())
    for i in range(negatives.shape[1]):
        value = losses.triplet_loss(
            first, second, negatives[:, i], margin=margin, weights=weights[:, i]
        )
        total, every = total + value * weights[:, i].sum(), every + weights[:, i].sum()
    return total / jnp.where(every > 0, every, 1.0)


def _in_scope(loss: Callable[..., Any]) -> Callable[..., Any]:
    """``loss`` under the name by which profiles and plans find its part of the program."""

    def named(*args: Any, **options: Any) -> Any:
        with jax.named_scope(LOSS_SCOPE):
            return loss(*args, **options)

    return named
