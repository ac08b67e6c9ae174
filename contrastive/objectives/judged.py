"""Losses of judged pairs of texts: a label or a score for each, from a layer behind the towers.

``classifier`` is Sentence-BERT's (Reimers & Gurevych 2019): raw rows u and v of the two texts, and
a layer over (u, v, |u − v|). Of joined texts (a cross-encoder) the layer stands on the one row.
``relevance`` scores joined texts: a query with its passage high, with its negatives low.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from contrastive import losses
from contrastive.logits import masks
from contrastive.objectives.config import LOSS_SCOPE, LossConfig
from contrastive.objectives.views import Batch, encode_view
from contrastive.towers import TwoTower


def judged_objective(
    config: LossConfig, *, microbatches: int = 1
) -> Callable[[TwoTower, Batch, jax.Array], tuple[Array, dict[str, Array]]]:
    """The objective for ``classifier`` or ``relevance``; see
    :func:`contrastive.objectives.make_objective`."""

    def objective(
        model: TwoTower, batch: Batch, key: jax.Array
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        kind = "joined" if "joined" in batch else "texts"
        encode = functools.partial(
            encode_view, model, batch, kind, key=key, microbatches=microbatches, unit=False
        )
        weights = batch.get("weight")
        if config.drop_duplicates:
            first = masks.first_of_content(batch["id"]).astype(jnp.float32)
            weights = first if weights is None else first * weights
        if config.name == "classifier":
            logits = model.judge(*(encode(place) for place in range(1 if kind == "joined" else 2)))
            with jax.named_scope(LOSS_SCOPE):
                value = losses.label_loss(logits, batch["label"], weights=weights)
            hit = jnp.argmax(logits, axis=1).astype(jnp.int32) == batch["label"]
            return value, {"accuracy/label": _share(hit, weights)}
        scores = model.judge(encode(0))[:, 0]
        against = model.judge(encode(1))[:, :, 0]
        there = existing_negatives(batch, masked=config.mask_duplicates)
        with jax.named_scope(LOSS_SCOPE):
            value = losses.relevance_loss(scores, against, negative_weights=there, weights=weights)
        best = jnp.where(there > 0, against, -jnp.inf).max(axis=1)
        return value, {"accuracy/relevance": _share(scores > best, weights)}

    return objective


def existing_negatives(batch: Batch, *, masked: bool) -> Float[Array, "batch k"]:
    """1 for the negatives that are there, and (``masked``) are not of the pair's own content."""
    there = batch["negative_weight"] > 0
    if masked:
        own = batch["negative_id"] == batch["id"][:, None]
        own = own if own.ndim == 2 else own.all(-1)
        there &= ~(own & masks.known(batch["id"])[:, None])
    return there.astype(jnp.float32)


def _share(hit: Array, weights: Array | None) -> Float[Array, ""]:
    exists = jnp.ones_like(hit) if weights is None else weights > 0
    count = jnp.maximum(exists.sum(dtype=jnp.float32), 1.0)
    return (hit & exists).sum(dtype=jnp.float32) / count
