"""Residual networks: those of He et al. 2016 as torchvision and transformers have them (strides in
the 3 × 3 convolutions), and CLIP's (Radford et al. 2021: three convolutions as stem, averages
before strided convolutions, attention pooling), and SimCLR's for small pictures (Chen et al. 2020,
https://arxiv.org/abs/2002.05709, B.9).

Batch normalisation either takes the statistics of the global batch in training and running ones in
evaluation (:mod:`contrastive.towers.statistics`), or has fixed ones that came with the weights, as
is usual where such a tower is tuned with small batches.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Key

from contrastive.errors import ConfigError, SizeError
from contrastive.towers import layers, sharding
from contrastive.towers.statistics import BatchStatistic, batch_moments, follow


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Settings of :class:`ResNet`."""

    kind: Literal["resnet"] = "resnet"  # which image tower this is
    # plain: He et al., mean pooling. small: the same with a 3 x 3 stem of stride 1 and no pooling
    # behind it, SimCLR's for pictures of 32 pixels. clip: CLIP's
    form: Literal["plain", "small", "clip"] = "plain"
    block: Literal["bottleneck", "basic"] = "bottleneck"  # three or two convolutions
    stem: int = 64  # channels that leave the stem
    widths: tuple[int, ...] = (256, 512, 1024, 2048)  # channels that leave each stage
    depths: tuple[int, ...] = (3, 4, 6, 3)  # blocks of each stage
    first_stride: Literal[1, 2] = 1  # of the first stage
    early_stride: bool = False  # of a bottleneck, in the first convolution instead of the second
    heads: int = 32  # of the attention pooling (clip)
    projection: layers.Projection = "none"  # to the embedding
    epsilon: float = 1e-5  # of every batch normalisation
    # By what it normalises in training. batch: the global batch, in evaluation running statistics.
    # fixed: the statistics that the weights came with, always
    statistics: Literal["fixed", "batch"] = "fixed"
    momentum: float = 0.9  # how much of themselves running statistics keep at each step

    def __post_init__(self):
        path = "config.model.image"
        if not 0.5 <= self.momentum < 1.0:
            raise ConfigError(f"{path}.momentum = {self.momentum} has to be in [0.5, 1).")
        if self.statistics == "fixed" and self.momentum != 0.9:
            raise ConfigError(f"{path}.momentum has no effect with statistics = 'fixed'.")
        if not self.widths or len(self.widths) != len(self.depths):
            raise ConfigError(f"{path}.widths and depths have to list as many stages.")
        if min(*self.widths, *self.depths, self.stem) < 1 or self.epsilon <= 0:
            raise ConfigError(f"{path}: widths, depths, stem and epsilon have to be positive.")
        if self.form == "clip" and (
            self.block != "bottleneck" or self.early_stride or self.first_stride != 1
        ):
            raise ConfigError(f"{path}.form = 'clip' has bottlenecks with strides after them.")
        if self.form == "clip" and self.widths[-1] % self.heads:
            raise ConfigError(f"{path}.heads = {self.heads} does not divide {self.widths[-1]}.")

    @property
    def reduction(self) -> int:
        """Pixels of the picture over places that leave the last stage, along a side."""
        return 4 * self.first_stride * 2 ** (len(self.widths) - 1)

    def stride(self, stage: int, block: int) -> int:
        """Of a block: the first of each stage shrinks the picture, that of the first by
        ``first_stride``."""
        if block:
            return 1
        return 2 if stage else self.first_stride


class Normalisation(nnx.Module):
    """Batch normalisation: ``(x − mean) / sqrt(variance + ε) · scale + bias``, over channels.

    In training with ``statistics="batch"`` mean and variance are those of the global batch, and the
    running ones follow them; else the stored ones, which get no gradient. ``silent``: the scale
    starts at 0.
    """

    def __init__(self, width: int, config: ResNetConfig, *, silent: bool = False, rngs: nnx.Rngs):
        self.epsilon, self.momentum = config.epsilon, config.momentum
        self.of_batch = config.statistics == "batch"
        kind = BatchStatistic if self.of_batch else nnx.Param

        def vector(init: sharding.Initializer, kind: type[nnx.Param] = nnx.Param) -> nnx.Param:
            return sharding.parameter(rngs, (width,), ("embed",), init, kind)

        self.scale = vector(layers.zeros if silent else layers.ones)
        self.bias = vector(layers.zeros)
        self.mean, self.variance = vector(layers.zeros, kind), vector(layers.ones, kind)

    def __call__(
        self, x: Float[Array, "batch height width channels"], *, training: bool = False
    ) -> Float[Array, "batch height width channels"]:
        scale, bias, mean, variance = (
            sharding.weight(p, ("embed",), x, jnp.float32)
            for p in (self.scale, self.bias, self.mean, self.variance)
        )
        if training and self.of_batch:
            first, second, count = batch_moments(x)
            running = mean, variance
            x = follow(x, running, first, second, count, self.momentum)
            mean, variance = first, second
        else:
            mean, variance = lax.stop_gradient(mean), lax.stop_gradient(variance)
        factor = scale * lax.rsqrt(variance + self.epsilon)
        shift = bias - mean * factor
        return (x.astype(jnp.float32) * factor[None, None, None] + shift[None, None, None]).astype(
            x.dtype
        )


class Convolution(nnx.Module):
    """A convolution without bias, padded by half its kernel, and its normalisation."""

    AXES = (None, None, "channels", "embed")

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        config: ResNetConfig,
        *,
        stride: int = 1,
        silent: bool = False,
        rngs: nnx.Rngs,
    ):
        self.stride = stride
        init = layers.normal((2 / (size * size * outputs)) ** 0.5)  # He et al. 2015, over outputs
        self.kernel = sharding.parameter(rngs, (size, size, inputs, outputs), self.AXES, init)
        self.norm = Normalisation(outputs, config, silent=silent, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width inputs"], *, training: bool = False
    ) -> Float[Array, "batch height2 width2 outputs"]:
        half = self.kernel.shape[0] // 2
        y = lax.conv_general_dilated(
            x,
            sharding.weight(self.kernel, self.AXES, x),
            (self.stride, self.stride),
            ((half, half), (half, half)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return self.norm(y, training=training)


class ResidualBlock(nnx.Module):
    """``relu(shortcut(x) + branch(x))``; the branch has two or three convolutions. In CLIP's and
    SimCLR's networks it adds nothing at first: its last normalisation starts with a scale of 0
    (Goyal et al. 2017, https://arxiv.org/abs/1706.02677)."""

    def __init__(
        self, config: ResNetConfig, inputs: int, outputs: int, *, stride: int, rngs: nnx.Rngs
    ):
        # CLIP's average pooling stands for the strides.
        self.pool = stride if config.form == "clip" else 1
        stride = 1 if config.form == "clip" else stride
        narrow = outputs // 4 if config.block == "bottleneck" else outputs

        silent = config.form != "plain"

        def convolution(
            i: int, o: int, size: int, stride: int = 1, silent: bool = False
        ) -> Convolution:
            return Convolution(i, o, size, config, stride=stride, silent=silent, rngs=rngs)

        if config.block == "bottleneck":
            first, second = (stride, 1) if config.early_stride else (1, stride)
            branch = [
                convolution(inputs, narrow, 1, first),
                convolution(narrow, narrow, 3, second),
                convolution(narrow, outputs, 1, silent=silent),
            ]
        else:
            branch = [
                convolution(inputs, outputs, 3, stride),
                convolution(outputs, outputs, 3, silent=silent),
            ]
        self.branch = nnx.List(branch)
        same = inputs == outputs and stride == self.pool == 1
        self.shortcut = None if same else convolution(inputs, outputs, 1, stride)

    def __call__(
        self, x: Float[Array, "batch height width inputs"], *, training: bool = False
    ) -> Float[Array, "batch height2 width2 outputs"]:
        y = x
        for i, layer in enumerate(self.branch):
            if i == 2:
                y = average_pool(y, self.pool)
            y = layer(y, training=training)
            if i < len(self.branch) - 1:
                y = jax.nn.relu(y)
        if self.shortcut is not None:
            x = self.shortcut(average_pool(x, self.pool), training=training)
        return jax.nn.relu(x + y)


class GridPool(nnx.Module):
    """CLIP's attention pooling of a grid: the mean attends to itself and to every place, all with
    positions. The projection follows outside."""

    AXES = ("embed", None, "heads", "head_dim")

    def __init__(self, width: int, places: int, heads: int, *, rngs: nnx.Rngs):
        init, size = layers.normal(width**-0.5), width // heads
        table = (places + 1, width)
        self.positions = sharding.parameter(rngs, table, ("position", "embed"), init)
        self.qkv = sharding.parameter(rngs, (width, 3, heads, size), self.AXES, init)
        self.qkv_bias = sharding.parameter(rngs, (3, heads, size), self.AXES[1:], layers.zeros)

    def __call__(self, x: Float[Array, "batch places width"]) -> Float[Array, "batch width"]:
        mean = jnp.mean(x, axis=1, keepdims=True)
        positions = sharding.weight(self.positions, ("position", "embed"), x)
        x = jnp.concatenate([mean, x], axis=1) + positions[None]
        kernel = sharding.weight(self.qkv, self.AXES, x)
        bias = sharding.weight(self.qkv_bias, self.AXES[1:], x)
        q = layers.add_bias(jnp.einsum("bld,dhk->blhk", x[:, :1], kernel[:, 0]), bias[0])
        k, v = (
            layers.add_bias(jnp.einsum("bld,dhk->blhk", x, kernel[:, i]), bias[i]) for i in (1, 2)
        )
        with jax.numpy_dtype_promotion("standard"):  # JAX mixes bfloat16 and float32 inside
            y = jax.nn.dot_product_attention(q, k, v)[:, 0]
        return lax.reshape(y, (y.shape[0], x.shape[2]), out_sharding=sharding.rows_like(y, 2))


class ResNet(nnx.Module):
    """Images ``[batch, size, size, 3]``, normalised, to rows ``[batch, output]``.

    Raises:
      SizeError: CLIP's form for a size of pictures that is no multiple of its reduction, or
        ``projection="none"`` and the last width is not ``output``.
    """

    def __init__(self, config: ResNetConfig, *, image_size: int, output: int, rngs: nnx.Rngs):
        self.config, self.image_size = config, image_size
        stem = config.stem
        half = stem // 2
        sizes = {
            "clip": ((3, half, 3, 2), (half, half, 3, 1), (half, stem, 3, 1)),
            "plain": ((3, stem, 7, 2),),
            "small": ((3, stem, 3, 1),),
        }[config.form]
        convolutions = [Convolution(i, o, n, config, stride=s, rngs=rngs) for i, o, n, s in sizes]
        self.stem = nnx.List(convolutions)
        self.stages = nnx.List([nnx.List(stage) for stage in _stages(config, rngs)])
        width = config.widths[-1]
        self.pool = self._pool(config, image_size, rngs)
        self.projection = layers.projection(config.projection, width, output, rngs=rngs)

    @staticmethod
    def _pool(config: ResNetConfig, image_size: int, rngs: nnx.Rngs) -> GridPool | None:
        if config.form != "clip":
            return None
        if image_size % config.reduction:
            raise SizeError(
                f"data.image_size = {image_size} is no multiple of {config.reduction}, which "
                "attention pooling needs."
            )
        places = (image_size // config.reduction) ** 2
        return GridPool(config.widths[-1], places, config.heads, rngs=rngs)

    def __call__(
        self, images: Float[Array, "batch size size 3"], *, keys: Key[Array, "batch"] | None = None
    ) -> Float[Array, "batch output"]:
        """Rows in the dtype of ``images``. There is no dropout; with ``keys``, which are not used
        otherwise, it is training."""
        x, training = images, keys is not None
        for layer in self.stem:
            x = jax.nn.relu(layer(x, training=training))
        if self.config.form == "clip":
            x = average_pool(x, 2)
        elif self.config.form == "plain":
            x = _largest(x)
        for stage in self.stages:
            for block in stage:
                x = block(x, training=training)
        if self.pool is None:
            x = jnp.mean(x, axis=(1, 2))
        else:
            flat = (x.shape[0], x.shape[1] * x.shape[2], x.shape[3])
            x = self.pool(lax.reshape(x, flat, out_sharding=sharding.rows_like(x, 3)))
        return x if self.projection is None else self.projection(x)


def _stages(config: ResNetConfig, rngs: nnx.Rngs) -> list[list[ResidualBlock]]:
    stages, inputs = [], config.stem
    for i, (outputs, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        stage = []
        for j in range(depth):
            stride = config.stride(i, j)
            stage.append(ResidualBlock(config, inputs, outputs, stride=stride, rngs=rngs))
            inputs = outputs
        stages.append(stage)
    return stages


def average_pool(
    x: Float[Array, "batch height width channels"], size: int
) -> Float[Array, "batch height2 width2 channels"]:
    """Means of squares that do not overlap."""
    if size == 1:
        return x
    window = (1, size, size, 1)
    return lax.reduce_window(x, np.zeros((), x.dtype), lax.add, window, window, "VALID") / (
        size * size
    )


def _largest(x: jax.Array) -> jax.Array:
    """The largest of each 3 × 3 places, every second."""
    lowest = np.array(-np.inf, x.dtype)
    padding = ((0, 0), (1, 1), (1, 1), (0, 0))
    return lax.reduce_window(x, lowest, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
