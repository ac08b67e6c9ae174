"""Small convolutional image tower: plain 3×3 convolutions, no batch statistics."""

import dataclasses
import itertools
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from contrastive.errors import ConfigError
from contrastive.towers import layers, sharding
from contrastive.towers.layers import LayerNorm

# XLA's CPU convolutions fall to 3 GFLOP/s in the backward pass of a stride-2 convolution of a 4×4
# map; as one matrix product over gathered windows it runs at 70. From 8×8 outputs on, gathering
# costs more than it saves, unless the windows are as small as those of a picture.
_LARGEST_PRODUCT_MAP, _LARGEST_PRODUCT_INPUTS = 4, 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvTowerConfig:
    """Settings of :class:`ConvTower`."""

    kind: Literal["conv"] = "conv"  # which image tower this is
    widths: tuple[int, ...] = (48, 96, 160, 256)  # channels of each stage; each halves the size
    projection: layers.Projection = "linear"  # to the shared embedding; bias: linear with a bias
    epsilon: float = 1e-5  # of every LayerNorm

    def __post_init__(self):
        path = "config.model.image"
        if not self.widths or min(self.widths) < 1:
            raise ConfigError(f"{path}.widths = {self.widths} has to list positive sizes.")
        if self.epsilon <= 0.0:
            raise ConfigError(f"{path}.epsilon = {self.epsilon} has to be positive.")


class ConvTower(nnx.Module):
    """Images ``[batch, size, size, 3]``, normalised, to rows ``[batch, output]``.

    Each stage halves the map: a stride-2 convolution, a LayerNorm over channels, ReLU (GELU costs
    three times as much on CPU). The mean over the last map is normalised and projected.

    Args:
      config: Settings.
      image_size: Side of the images in pixels.
      output: Size of the rows.
      rngs: Streams; keys come from ``params``.

    Raises:
      ValueError: The stages do not divide the image size, or ``projection="none"`` and the last
        width is not ``output``.
    """

    def __init__(self, config: ConvTowerConfig, *, image_size: int, output: int, rngs: nnx.Rngs):
        if image_size % 2 ** len(config.widths):
            raise ValueError(
                f"image_size = {image_size} cannot be halved {len(config.widths)} times, once for "
                f"each of widths = {config.widths}."
            )
        self.image_size = image_size
        sizes = itertools.pairwise((3, *config.widths))
        self.stages = nnx.List([Stage(i, o, epsilon=config.epsilon, rngs=rngs) for i, o in sizes])
        width = config.widths[-1]
        self.norm = LayerNorm(width, epsilon=config.epsilon, rngs=rngs)
        self.projection = layers.projection(config.projection, width, output, rngs=rngs)

    def __call__(
        self, images: Float[Array, "batch size size 3"], *, keys: Key[Array, "batch"] | None = None
    ) -> Float[Array, "batch output"]:
        """Rows in the dtype of ``images``, the dtype of the computation. There is no dropout;
        ``keys`` is not used."""
        if images.shape[1] != self.image_size:
            raise ValueError(
                f"images of {images.shape[1]} pixels; the tower is built for {self.image_size}."
            )
        x = images
        for stage in self.stages:
            x = stage(x)
        x = self.norm(jnp.mean(x, axis=(1, 2), dtype=jnp.float32).astype(x.dtype))
        return x if self.projection is None else self.projection(x)


class Stage(nnx.Module):
    """``relu(norm(convolution(x)))``, 3×3 with stride 2. Kernels start normal with deviation
    ``(2 / (9 inputs))^½`` (He et al. 2015)."""

    KERNEL_AXES = (None, None, "channels", "embed")

    def __init__(self, inputs: int, outputs: int, *, epsilon: float, rngs: nnx.Rngs):
        shape, deviation = (3, 3, inputs, outputs), (2 / (9 * inputs)) ** 0.5
        self.kernel = sharding.parameter(rngs, shape, self.KERNEL_AXES, layers.normal(deviation))
        self.norm = LayerNorm(outputs, epsilon=epsilon, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch size size inputs"]
    ) -> Float[Array, "batch half half outputs"]:
        kernel = sharding.weight(self.kernel, self.KERNEL_AXES, x)
        return jax.nn.relu(self.norm(convolution(x, kernel, 2)))


def convolution(
    x: Float[Array, "batch height width inputs"],
    kernel: Float[Array, "side side inputs outputs"],
    stride: int,
) -> Float[Array, "batch height2 width2 outputs"]:
    """Convolution with zero padding ("SAME"): every ``stride``-th position of the map."""
    new_size = -(-max(x.shape[1:3]) // stride)
    if new_size <= _LARGEST_PRODUCT_MAP or x.shape[3] <= _LARGEST_PRODUCT_INPUTS:
        return windows(x, kernel.shape[0], stride) @ kernel.reshape(-1, kernel.shape[-1])
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def windows(
    x: Float[Array, "batch height width channels"], side: int, stride: int
) -> Float[Array, "batch height2 width2 pixels"]:
    """What a convolution multiplies with its kernel at each position, flattened as ``(row, column,
    channel)``."""
    counts = [-(-n // stride) for n in x.shape[1:3]]
    total = [max((c - 1) * stride + side - n, 0) for c, n in zip(counts, x.shape[1:3], strict=True)]
    x = jnp.pad(x, ((0, 0), *((t // 2, t - t // 2) for t in total), (0, 0)))
    rows, columns = ((c - 1) * stride + 1 for c in counts)
    shifted = [
        x[:, i : i + rows : stride, j : j + columns : stride]
        for i in range(side)
        for j in range(side)
    ]
    return jnp.concatenate(shifted, axis=-1)
