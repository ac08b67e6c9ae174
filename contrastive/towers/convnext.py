"""ConvNeXt (Liu et al. 2022, https://arxiv.org/abs/2201.03545): patches of 4 pixels, four stages of
blocks with a depthwise 7 × 7 convolution and an MLP, mean pooling, LayerNorm."""

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
from contrastive.towers.transformer import Remat, scan_blocks

_WINDOW = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvNeXtConfig:
    """Settings of :class:`ConvNeXt`; the defaults are those of ConvNeXt-T."""

    kind: Literal["convnext"] = "convnext"  # which image tower this is
    widths: tuple[int, ...] = (96, 192, 384, 768)  # channels of each stage
    depths: tuple[int, ...] = (3, 3, 9, 3)  # blocks of each stage
    patch_size: int = 4  # pixels a side that become one place of the first stage
    activation: layers.Activation = "gelu"  # of the MLPs
    layer_scale: float | None = 1e-6  # first factor on what a block adds; None: there is none
    # Share of a batch whose last block is left out in training (stochastic depth, Huang et al.
    # 2016); that of the blocks before grows from 0
    drop_path: float = 0.0
    projection: layers.Projection = "linear"  # to the embedding; bias: with one
    epsilon: float = 1e-6  # of every LayerNorm but the last
    last_epsilon: float = 1e-6  # of the last LayerNorm, behind the pooling
    remat: Remat = "none"  # what the backward pass computes again

    def __post_init__(self):
        path = "config.model.image"
        if not self.widths or len(self.widths) != len(self.depths):
            raise ConfigError(f"{path}.widths and depths have to list as many stages.")
        for name in ("patch_size", "epsilon", "last_epsilon", "layer_scale"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{path}.{name} = {value} has to be positive.")
        if min(*self.widths, *self.depths) < 1:
            raise ConfigError(f"{path}: widths and depths have to be positive.")
        if not 0.0 <= self.drop_path < 1.0:
            raise ConfigError(f"{path}.drop_path = {self.drop_path} has to be in [0, 1).")

    @property
    def reduction(self) -> int:
        """Pixels of the picture over places of the last stage, along a side."""
        return self.patch_size * 2 ** (len(self.widths) - 1)


class ConvNeXt(nnx.Module):
    """Images ``[batch, size, size, 3]``, normalised, to rows ``[batch, output]``; pixels that fill
    no whole patch are not seen.

    Args:
      config: Settings.
      image_size: Side of the images in pixels.
      output: Size of the rows.
      rngs: Streams; keys come from ``params``.

    Raises:
      SizeError: The pictures are too small for the stages, or ``projection="none"`` and the last
        width is not ``output``.
    """

    def __init__(self, config: ConvNeXtConfig, *, image_size: int, output: int, rngs: nnx.Rngs):
        if image_size < config.reduction:
            raise SizeError(
                f"data.image_size = {image_size} leaves nothing for the last stage, which sees one "
                f"place of {config.reduction} pixels."
            )
        self.config = config
        rates = np.linspace(0.0, config.drop_path, sum(config.depths), dtype=np.float32)
        self.patches = Shrinking(3, config.widths[0], config.patch_size, rngs=rngs)
        self.norm_before = _norm(config.widths[0], config, rngs=rngs)
        stages, inputs, first = [], config.widths[0], 0
        for i, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
            own = tuple(float(rate) for rate in rates[first : first + depth])
            stages.append(Stage(config, inputs if i else None, width, own, rngs=rngs))
            inputs, first = width, first + depth
        self.stages = nnx.List(stages)
        self.norm = layers.LayerNorm(inputs, epsilon=config.last_epsilon, rngs=rngs)
        self.projection = layers.projection(config.projection, inputs, output, rngs=rngs)

    def __call__(
        self, images: Float[Array, "batch size size 3"], *, keys: Key[Array, "batch"] | None = None
    ) -> Float[Array, "batch output"]:
        """Rows in the dtype of ``images``, the dtype of the computation. ``keys``: one for each
        row, for stochastic depth; None: every block counts."""
        x = self.norm_before(self.patches(images))
        each = None if keys is None else layers.split_row_keys(keys, len(self.stages))
        for i, stage in enumerate(self.stages):
            x = stage(x, None if each is None else each[i])
        x = self.norm(jnp.mean(x, axis=(1, 2), dtype=jnp.float32).astype(x.dtype))
        return x if self.projection is None else self.projection(x)


def _norm(
    width: int, config: ConvNeXtConfig, stack: tuple[int, ...] = (), *, rngs: nnx.Rngs
) -> layers.LayerNorm:
    return layers.LayerNorm(width, epsilon=config.epsilon, stack=stack, rngs=rngs)


class Shrinking(nnx.Module):
    """A convolution whose windows do not overlap, with a bias."""

    AXES = (None, None, "channels", "embed")

    def __init__(self, inputs: int, outputs: int, size: int, *, rngs: nnx.Rngs):
        self.size = size
        shape, init = (size, size, inputs, outputs), layers.truncated_normal(0.02)
        self.kernel = sharding.parameter(rngs, shape, self.AXES, init)
        self.bias = sharding.parameter(rngs, (outputs,), ("embed",), layers.zeros)

    def __call__(
        self, x: Float[Array, "batch height width inputs"]
    ) -> Float[Array, "batch height2 width2 outputs"]:
        y = lax.conv_general_dilated(
            x,
            sharding.weight(self.kernel, self.AXES, x),
            (self.size, self.size),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return layers.add_bias(y, sharding.weight(self.bias, ("embed",), x))


class Stage(nnx.Module):
    """A norm and a convolution that halves the picture (not in the first stage, whose ``inputs`` is
    None), then the blocks, run by a scan; ``rates``: how often each is left out."""

    def __init__(
        self,
        config: ConvNeXtConfig,
        inputs: int | None,
        width: int,
        rates: tuple[float, ...],
        *,
        rngs: nnx.Rngs,
    ):
        self.remat: Remat = config.remat
        self.rates = rates
        self.norm = None if inputs is None else _norm(inputs, config, rngs=rngs)
        self.shrinking = None if inputs is None else Shrinking(inputs, width, 2, rngs=rngs)
        self.blocks = Block(config, width, (len(rates),), rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width inputs"], keys: Key[Array, "batch"] | None
    ) -> Float[Array, "batch height2 width2 outputs"]:
        if self.norm is not None and self.shrinking is not None:
            x = self.shrinking(self.norm(x))
        rates = jnp.asarray(self.rates, jnp.float32)
        drops = keys is not None and any(self.rates)
        each = layers.split_row_keys(keys, len(self.rates)) if keys is not None and drops else None

        def call(block: Block, x: jax.Array, own: tuple) -> jax.Array:
            return block(x, *own)

        return scan_blocks(self.blocks, call, x, (rates, each), self.remat)


class Block(nnx.Module):
    """``x + scale · down(activation(up(norm(depthwise(x)))))``."""

    AXES = (None, None, None, "embed")

    def __init__(
        self, config: ConvNeXtConfig, width: int, stack: tuple[int, ...], *, rngs: nnx.Rngs
    ):
        init, above = layers.truncated_normal(0.02), ("layers",)
        self.activation: layers.Activation = config.activation
        shape = (*stack, _WINDOW, _WINDOW, 1, width)
        self.depthwise = sharding.parameter(rngs, shape, (*above, *self.AXES), init)
        axes = (*above, "embed")
        self.depthwise_bias = sharding.parameter(rngs, (*stack, width), axes, layers.zeros)
        self.norm = _norm(width, config, stack, rngs=rngs)

        def dense(inputs: int, outputs: int, axes: tuple[str, str]) -> layers.Dense:
            return layers.Dense(inputs, outputs, axes=axes, init=init, stack=stack, rngs=rngs)

        self.up = dense(width, 4 * width, ("embed", "mlp"))
        self.down = dense(4 * width, width, ("mlp", "embed"))
        first = config.layer_scale
        self.after = None if first is None else layers.LayerScale(width, first, stack, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch height width channels"],
        rate: Float[Array, ""],
        keys: Key[Array, "batch"] | None,
    ) -> Float[Array, "batch height width channels"]:
        y = lax.conv_general_dilated(
            x,
            sharding.weight(self.depthwise, self.AXES, x),
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=x.shape[-1],
        )
        y = self.norm(layers.add_bias(y, sharding.weight(self.depthwise_bias, ("embed",), x)))
        y = self.down(layers.activation(self.activation)(self.up(y)))
        if self.after is not None:
            y = self.after(y)
        if keys is not None:
            stays = jax.vmap(lambda key: jax.random.uniform(key) >= rate)(keys)[:, None, None, None]
            y = jnp.where(stays, y / (1.0 - rate).astype(y.dtype), jnp.zeros_like(y))
        return x + y
