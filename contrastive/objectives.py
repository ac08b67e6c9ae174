"""Objectives: from a model and a batch to a loss and the numbers that people watch.

An objective runs the towers, brings their rows to unit length, reads the scale from the model and
calls a loss by the name in the config. It is a pure function of (model, batch, key).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from contrastive import losses
from contrastive.errors import ConfigError
from contrastive.geometry import normalize
from contrastive.logits import LogitPartition, RowStatistics, masks
from contrastive.mesh import BATCH_AXES, batch_parts
from contrastive.microbatches import encode_rows
from contrastive.temperature import initial_bias, initial_log_scale
from contrastive.towers import TwoTower

Batch = dict[str, jax.Array]
LOSS_SCOPE = "contrastive_loss"
Objective = Callable[[TwoTower, Batch, jax.Array], tuple[Array, dict[str, Array]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Which loss, how its scale starts and is limited, and how the logit matrix is cut."""

    name: Literal["clip", "siglip", "info_nce"] = "clip"
    scale_init: float | None = None  # exp(log_scale) at step 0; None: 1/0.07, or 10 for siglip
    max_scale: float | None = None  # limit of the scale; None: 100, or no limit for siglip
    bias_init: float | Literal["batch_size"] | None = None  # siglip only; None: -10
    mask_duplicates: bool = True  # pairs with equal content ids are not each other's negatives
    drop_duplicates: bool = False  # of pairs with equal content ids only the first is in the loss
    exchange: Literal["dense", "gather", "ring"] | None = None  # None: read from the inputs
    block_rows: int | None = None  # rows of a tile of the logit matrix; None: chosen
    block_cols: int | None = None  # columns of a tile; None: chosen

    def __post_init__(self) -> None:
        if self.bias_init is not None and self.name != "siglip":
            raise ConfigError(
                "config.loss.bias_init is used by 'siglip' only; config.loss.name is "
                f"{self.name!r}."
            )
        if self.exchange in (None, "dense") and (self.block_rows or self.block_cols):
            raise ConfigError(
                "config.loss.block_rows and block_cols cut the logits of exchange = 'gather' or "
                f"'ring'; config.loss.exchange is {self.exchange!r}."
            )
        for name in ("scale_init", "max_scale", "block_rows", "block_cols"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"config.loss.{name} = {value} has to be positive.")
        limit, (start, _) = scale_limit(self), start_values(self, 2)
        if limit is not None and start > limit:
            raise ConfigError(
                f"config.loss.scale_init = {start:g} is above the limit, config.loss.max_scale = "
                f"{limit:g}."
            )


def scale_limit(config: LossConfig) -> float | None:
    """The largest scale: what the config says, else CLIP's 100 for softmax, none for sigmoid."""
    if config.max_scale is not None:
        return config.max_scale
    return None if config.name == "siglip" else 100.0


def start_values(config: LossConfig, batch_size: int) -> tuple[float, float | None]:
    """Scale and bias at step 0; the bias is None for softmax losses."""
    family = "sigmoid" if config.name == "siglip" else "softmax"
    scale = config.scale_init or math.exp(initial_log_scale(family))
    if config.name != "siglip":
        return scale, None
    return scale, initial_bias(
        "sigmoid" if config.bias_init is None else config.bias_init, batch_size
    )


def make_partition(config: LossConfig, mesh: jax.sharding.Mesh) -> LogitPartition | None:
    """How the logits are cut; None lets the loss read it from the inputs' types."""
    if config.exchange is None:
        return None
    cut = batch_parts(mesh) > 1
    return LogitPartition(
        mesh=mesh if cut else None,
        axes=BATCH_AXES if cut else None,
        exchange=config.exchange,
        block_rows=config.block_rows,
        block_cols=config.block_cols,
    )


def make_objective(
    config: LossConfig, partition: LogitPartition | None = None, *, microbatches: int = 1
) -> Objective:
    """The objective that the config names.

    Args:
      config: Loss, scale and masks.
      partition: How the logits are cut; None: read from the inputs' types.
      microbatches: Chunks that the encoders run in; the loss sees the whole batch
        (:mod:`contrastive.microbatches`).
    """

    def objective(
        model: TwoTower, batch: Batch, key: jax.Array
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        images, texts = (normalize(rows) for rows in _encode(model, batch, key, microbatches))
        scale = jnp.exp(model.log_scale[...])
        ids = batch["id"] if config.mask_duplicates else None
        common: dict[str, Any] = {"partition": partition, "return_statistics": True}
        common["weights"] = batch.get("weight")  # 0 in rows of samples that could not be read
        if config.drop_duplicates:
            first = masks.first_of_content(batch["id"]).astype(jnp.float32)
            common["weights"] = first * batch["weight"] if "weight" in batch else first
        metrics = {"scale": scale, "temperature": 1 / scale}
        if config.name == "siglip":
            assert model.bias is not None
            bias = model.bias[...]
            loss, stats = _in_scope(losses.sigmoid_loss)(
                images, texts, scale, bias, ids=ids, **common
            )
            metrics["bias"] = bias
        elif config.name == "clip":
            bias = jnp.zeros(())
            loss, stats = _in_scope(losses.clip_loss)(images, texts, scale, ids=ids, **common)
        else:
            bias = jnp.zeros(())
            loss, stats = _in_scope(losses.info_nce)(images, texts, scale, key_ids=ids, **common)
        assert isinstance(stats, RowStatistics)
        return loss, metrics | _watch(stats, scale, bias)

    return objective


def _encode(
    model: TwoTower, batch: Batch, key: jax.Array, microbatches: int
) -> tuple[Float[Array, "batch dim"], Float[Array, "batch dim"]]:
    """Raw rows of both views. Dropout's key is the first of the stream for images, the second for
    texts, in every chunk: the row's number makes the difference."""

    graphdef, parameters = nnx.split(model)

    def image(arrays: Any, x: Array, rows: Array) -> Array:
        parameters, key = arrays
        rngs = nnx.Rngs(dropout=key)
        model = nnx.merge(graphdef, parameters)
        return model.encode_image(x, deterministic=False, rngs=rngs, rows=rows)

    def text(arrays: Any, x: Array, rows: Array) -> Array:
        parameters, key = arrays
        rngs = nnx.Rngs(dropout=key)
        rngs.dropout()
        model = nnx.merge(graphdef, parameters)
        return model.encode_text(x, deterministic=False, rngs=rngs, rows=rows)

    return (
        encode_rows(image, (parameters, key), batch["image"], microbatches),
        encode_rows(text, (parameters, key), batch["text"], microbatches),
    )


def _in_scope(loss: Callable[..., Any]) -> Callable[..., Any]:
    """``loss`` under the name by which profiles and plans find its part of the program."""

    def named(*args: Any, **options: Any) -> Any:
        with jax.named_scope(LOSS_SCOPE):
            return loss(*args, **options)

    return named


def _watch(stats: RowStatistics, scale: Array, bias: Array) -> dict[str, Array]:
    """Accuracy in the batch (both ways where both are known) and cosines."""
    cosine = functools.partial(_cosine, scale=scale, bias=bias)
    assert stats.positive is not None
    assert stats.sum is not None
    assert stats.count is not None
    assert stats.max is not None
    assert stats.min is not None
    positive = cosine(stats.positive)
    metrics = {
        "accuracy/image_to_text": stats.accuracy(),
        **_range("positive_cosine", positive, stats.exists),
        "negative_cosine/mean": cosine(stats.sum.sum() / jnp.maximum(stats.count.sum(), 1.0)),
        "negative_cosine/min": cosine(stats.min.min()),
        "negative_cosine/max": cosine(stats.max.max()),
    }
    if stats.columns is not None:
        metrics["accuracy/text_to_image"] = stats.columns.accuracy()
    return metrics


def _range(name: str, values: Array, exists: Array | None) -> dict[str, Array]:
    """Mean and extremes over the rows that exist; 0, 1 and -1 where there are none."""
    if exists is None:
        found = values.mean(), values.min(), values.max()
    else:
        there = exists > 0
        mean = values.sum(where=there) / jnp.maximum(exists.sum(), 1.0)
        found = mean, values.min(where=there, initial=1.0), values.max(where=there, initial=-1.0)
    return {
        f"{name}/{word}": value for word, value in zip(("mean", "min", "max"), found, strict=True)
    }


def _cosine(logits: Array, *, scale: Array, bias: Array) -> Array:
    return (logits - bias) / scale
