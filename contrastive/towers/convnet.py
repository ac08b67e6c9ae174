"""Small convolutional image tower: plain stride-2 convolutions, no batch statistics."""

import dataclasses
import itertools
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from contrastive.errors import ConfigError, SizeError
from contrastive.towers import layers, sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvTowerConfig:
    """Settings of :class:`ConvTower`."""

    kind: Literal["conv"] = "conv"  # which image tower this is
    widths: tuple[int, ...] = (48, 96, 160, 256)  # channels of each stage; each halves the size
    # What becomes the row. last: the mean over the last stage. stages: the means and the maxima
    # over every stage but the first, side by side: textures and parts beside the whole.
    pooled: Literal["last", "stages"] = "last"
    projection: Literal["linear", "bias", "none"] = "linear"  # to the embedding; bias: with one
    epsilon: float = 1e-5  # of every LayerNorm

    def __post_init__(self):
        if not self.widths or min(self.widths) < 1:
            raise ConfigError(f"model.image.widths = {self.widths} has to list positive sizes.")
        if self.pooled == "stages" and len(self.widths) < 2:
            raise ConfigError("model.image.pooled = 'stages' needs two stages or more.")
        if self.epsilon <= 0.0:
            raise ConfigError(f"model.image.epsilon = {self.epsilon} has to be positive.")


class ConvTower(nnx.Module):
    """Images ``[batch, size, size, 3]``, normalised, to rows ``[batch, output]``."""

    def __init__(self, config: ConvTowerConfig, *, image_size: int, output: int, rngs: nnx.Rngs):
        if image_size % 2 ** len(config.widths):
            raise SizeError(
                f"data.image_size = {image_size} cannot be halved {len(config.widths)} times, once "
                "for each of model.image.widths."
            )
        self.config, self.image_size = config, image_size
        sizes = itertools.pairwise((3, *config.widths))
        self.stages = nnx.List([Stage(i, o, epsilon=config.epsilon, rngs=rngs) for i, o in sizes])
        width = config.widths[-1] if config.pooled == "last" else 2 * sum(config.widths[1:])
        self.norm = layers.LayerNorm(width, epsilon=config.epsilon, rngs=rngs)
        self.projection = layers.projection(config.projection, width, output, rngs=rngs)

    def __call__(
        self, images: Float[Array, "batch size size 3"], *, keys: Key[Array, "batch"] | None = None
    ) -> Float[Array, "batch output"]:
        """Rows in the dtype of ``images``, the dtype of the computation. There is no
        dropout; ``keys`` is not used."""
        x, maps = images, []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        if self.config.pooled == "last":
            x = _mean(x)
        else:
            x = jnp.concatenate([pool(y) for y in maps[1:] for pool in (_mean, _largest)], axis=1)
        x = self.norm(x)
        return x if self.projection is None else self.projection(x)


def _mean(x: Float[Array, "batch height width channels"]) -> Float[Array, "batch channels"]:
    return jnp.mean(x, axis=(1, 2))


def _largest(x: Float[Array, "batch height width channels"]) -> Float[Array, "batch channels"]:
    batch, height, width, channels = x.shape
    return layers.largest(x.reshape(batch, height * width, channels))


class Stage(nnx.Module):
    """A stride-2 convolution, a norm over channels, ReLU."""

    KERNEL_AXES = (None, None, "channels", "embed")

    def __init__(self, inputs: int, outputs: int, *, epsilon: float, rngs: nnx.Rngs):
        shape, deviation = (3, 3, inputs, outputs), (2 / (9 * inputs)) ** 0.5
        self.kernel = sharding.parameter(rngs, shape, self.KERNEL_AXES, layers.normal(deviation))
        self.norm = layers.LayerNorm(outputs, epsilon=epsilon, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width inputs"]
    ) -> Float[Array, "batch height2 width2 outputs"]:
        kernel = sharding.weight(self.kernel, self.KERNEL_AXES, x)
        x = neighbourhoods(x) @ kernel.reshape(-1, kernel.shape[-1])
        return jax.nn.relu(self.norm(x))


def neighbourhoods(
    x: Float[Array, "batch height width channels"],
) -> Float[Array, "batch height2 width2 channels9"]:
    """The 3 × 3 pixels under a stride-2 kernel with SAME padding, side by side.

    A product with the flattened kernel is then the convolution. On XLA's CPU backend this runs
    forward and backward in about half the time of ``conv_general_dilated``, whose gradients are
    slow there; the result is the same.
    """
    height, width = x.shape[1:3]
    x = jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
    shifts = [x[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifts, axis=-1)
