"""The small layers that towers share: projections, norms, dropout, pooling.

A layer computes in the dtype of its input; parameters are float32. The rule for fully masked rows:
a sequence with nothing to pool pools to zeros, with zero gradient.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Float, Int, Key

from contrastive.errors import SizeError
from contrastive.towers import sharding
from contrastive.towers.sharding import Initializer, parameter, weight

Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
Projection = Literal["linear", "bias", "none"]


def activation(name: Activation) -> Callable[[jax.Array], jax.Array]:
    """The activation called ``name``: exact GELU, its tanh form, or ``x · sigmoid(1.702 x)``."""
    if name == "quick_gelu":  # OpenAI's CLIP weights were trained with it
        return lambda x: x * jax.nn.sigmoid(1.702 * x)
    if name == "gelu" and sharding.is_manual():
        return _gelu
    return functools.partial(jax.nn.gelu, approximate=name == "gelu_tanh")


@jax.custom_jvp
def _gelu(x: jax.Array) -> jax.Array:
    """Exact GELU where JAX's own has no gradient: that of erfc fails under shard_map (0.12.0)."""
    return 0.5 * x * jax.lax.erfc(-x * math.sqrt(0.5))


@_gelu.defjvp
def _gelu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (t,) = primals, tangents
    density = jnp.exp(-0.5 * jnp.square(x)) * (1 / math.sqrt(2 * math.pi))
    return _gelu(x), t * (0.5 * jax.lax.erfc(-x * math.sqrt(0.5)) + x * density)


# --- Initializers -----------------------------------------------------------------------------


def normal(stddev: float) -> Initializer:
    """Normal with this standard deviation."""
    return jax.nn.initializers.normal(stddev)


def uniform(limit: float) -> Initializer:
    """Uniform on ``[-limit, limit)``."""

    def init(key, shape, dtype, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -limit, limit, out_sharding=out_sharding)

    return init


def truncated_normal(stddev: float) -> Initializer:
    """Normal with this standard deviation, drawn again beyond two of them (so that the deviation
    of what is left is 0.88 times as large), as in BERT."""
    return jax.nn.initializers.truncated_normal(stddev)


def constant(value: float) -> Initializer:
    """The same value everywhere; the key is not used."""

    def init(key, shape, dtype, out_sharding=None):
        return jnp.full(shape, value, dtype, out_sharding=out_sharding)

    return init


zeros, ones = constant(0.0), constant(1.0)


# --- Small layers -----------------------------------------------------------------------------


class Dense(nnx.Module):
    """``x · kernel + bias`` over the last axis."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        axes: tuple[str, str],
        init: Initializer,
        bias: Initializer | None = zeros,
        stack: tuple[int, ...] = (),
        rngs: nnx.Rngs,
    ):
        self.axes = axes
        layers = ("layers",) * len(stack)
        self.kernel = parameter(rngs, (*stack, inputs, outputs), (*layers, *axes), init)
        shape, bias_axes = (*stack, outputs), (*layers, axes[1])
        self.bias = None if bias is None else parameter(rngs, shape, bias_axes, bias)

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        kernel = weight(self.kernel, self.axes, x)
        y = jnp.matmul(x, kernel, out_sharding=summed_over(x))
        return y if self.bias is None else add_bias(y, weight(self.bias, self.axes[1:], x))


def summed_over(x: jax.Array, last: int = 1) -> NamedSharding | None:
    """Where a product over the ``last`` dimensions of ``x`` goes: to the rows of ``x``, summed over
    the devices that these dimensions are cut over; None where they are whole."""
    spec = jax.typeof(x).sharding.spec
    if all(entry is None for entry in spec[x.ndim - last :]):
        return None
    return sharding.rows_like(x, x.ndim - last + 1)


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """``y + bias`` over the trailing dimensions."""
    return y + bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)


def projection(kind: Projection, width: int, output: int, *, rngs: nnx.Rngs) -> Dense | None:
    """The last product of a tower, from its width to the shared embedding; None for ``none``.

    Normal with deviation ``width^-½``, as in CLIP.

    Raises:
      SizeError: ``none``, and the two sizes differ.
    """
    if kind == "none":
        if width != output:
            raise SizeError(f"projection = 'none' with width {width} and embedding size {output}.")
        return None
    bias = zeros if kind == "bias" else None
    axes = ("embed", "output")
    return Dense(width, output, axes=axes, init=normal(width**-0.5), bias=bias, rngs=rngs)


class LayerNorm(nnx.Module):
    """``(x − mean) / sqrt(var + epsilon) · scale + bias`` over the last axis, in float32.

    The variance is ``mean((x − mean)²)``, two passes: ``mean(x²) − mean(x)²`` cancels where the
    mean is large. ``axis``: the logical name of the axis.
    """

    def __init__(
        self,
        width: int,
        *,
        epsilon: float,
        bias: bool = True,
        axis: str = "embed",
        stack: tuple[int, ...] = (),
        rngs: nnx.Rngs,
    ):
        self.epsilon, self.axis = epsilon, axis
        axes = ("layers",) * len(stack) + (axis,)
        self.scale = parameter(rngs, (*stack, width), axes, ones)
        self.bias = parameter(rngs, (*stack, width), axes, zeros) if bias else None

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        y = normalize_last(x.astype(jnp.float32), self.epsilon)
        scale = weight(self.scale, (self.axis,), y)
        y = y * scale.reshape((1,) * (y.ndim - 1) + scale.shape)
        if self.bias is not None:
            y = add_bias(y, weight(self.bias, (self.axis,), y))
        return y.astype(x.dtype)


class LayerScale(nnx.Module):
    """``x · scale`` over the last axis; ``first``: what every entry of ``scale`` starts with."""

    def __init__(self, width: int, first: float, stack: tuple[int, ...] = (), *, rngs: nnx.Rngs):
        axes = ("layers",) * len(stack) + ("embed",)
        self.scale = parameter(rngs, (*stack, width), axes, constant(first))

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        scale = weight(self.scale, ("embed",), x)
        return x * scale.reshape((1,) * (x.ndim - 1) + scale.shape)


def normalize_last(x: Float[Array, "... width"], epsilon: float) -> Float[Array, "... width"]:
    """Zero mean and unit variance over the last axis: ``d / sqrt(mean(d²) + epsilon)``."""
    d = x - jnp.mean(x, axis=-1, keepdims=True)
    return d * jax.lax.rsqrt(jnp.mean(jnp.square(d), axis=-1, keepdims=True) + epsilon)


# --- Dropout ----------------------------------------------------------------------------------


def row_keys(
    key: Key[Array, ""], like: Array, rows: Int[Array, "batch"] | None = None
) -> Key[Array, "batch"]:
    """One key for each row of ``like``: ``key`` with the row's number in the global batch folded in
    (default: 0, 1, 2, …).

    What is drawn for a row is then a function of ``key`` and that number, never of the rows beside
    it: it replays exactly in microbatches of any size and on any number of devices.
    """
    numbers = jnp.arange(like.shape[0], dtype=jnp.int32) if rows is None else rows
    layout = sharding.rows_like(like, 1)
    if layout is not None:
        numbers = jax.sharding.reshard(numbers, layout)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(numbers)


def split_row_keys(keys: Key[Array, "batch"], count: int) -> Key[Array, "count batch"]:
    """``count`` independent sets of row keys."""
    return jax.vmap(lambda key: jax.random.split(key, count), out_axes=1)(keys)


def keep_masks(
    x: Float[Array, "batch *rest"], rate: float, keys: Key[Array, "batch"] | None, count: int = 1
) -> list[Bool[Array, "batch *rest"] | None]:
    """``count`` independent dropout masks for ``x``, false with probability ``rate``; None, which
    :func:`drop` understands, where ``keys`` is None or the rate is 0.

    One draw for all of them, since each draw is a large program on CPU.
    """
    if keys is None or rate == 0.0:
        return [None] * count
    shape = (count, *x.shape[1:])
    masks = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate, shape))(keys)
    return [masks[:, i] for i in range(count)]


def drop(
    x: Float[Array, "batch *rest"], rate: float, mask: Bool[Array, "batch *rest"] | None
) -> Float[Array, "batch *rest"]:
    """Zeros where ``mask`` is false, ``x / (1 − rate)`` elsewhere; None changes nothing."""
    return x if mask is None else jnp.where(mask, x / (1.0 - rate), jnp.zeros_like(x))


# --- Pooling ----------------------------------------------------------------------------------


def masked_mean(
    x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"] | None
) -> Float[Array, "batch width"]:
    """Mean over the positions where ``mask`` holds, summed in float32; zeros where none does."""
    if mask is None:
        return jnp.mean(x, axis=1, dtype=jnp.float32).astype(x.dtype)
    kept = jnp.where(mask[..., None], x, jnp.zeros_like(x))
    count = jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.float32)
    total = jnp.sum(kept, axis=1, dtype=jnp.float32)
    return (total / jnp.maximum(count, 1.0)).astype(x.dtype)


def masked_weighted_mean(
    x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"]
) -> Float[Array, "batch width"]:
    """Mean over the positions where ``mask`` holds, position i weighted with i + 1 (Muennighoff
    2022, https://arxiv.org/abs/2202.08904); zeros where none does."""
    weights = jnp.where(mask, jnp.arange(1, mask.shape[1] + 1, dtype=jnp.float32)[None], 0.0)
    kept = jnp.where(mask[..., None], x, jnp.zeros_like(x)).astype(jnp.float32)
    total = jnp.sum(kept * weights[..., None], axis=1)
    return (total / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1.0)).astype(x.dtype)


def masked_max(
    x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"]
) -> Float[Array, "batch width"]:
    """Largest entry over the positions where ``mask`` holds; zeros where none does."""
    lowest = jnp.full_like(x, jnp.finfo(x.dtype).min)
    top = largest(jnp.where(mask[..., None], x, lowest))
    return jnp.where(jnp.any(mask, axis=1, keepdims=True), top, jnp.zeros_like(top))


def largest(x: Float[Array, "batch length width"]) -> Float[Array, "batch width"]:
    """Largest entry over the positions; of equal ones the first has the gradient, as in PyTorch.

    The gradient of ``jnp.max`` looks for the entries that equal the result. Where the compiler
    computes the entries a second time and rounds otherwise, there is none, and it is 0 / 0 (seen on
    CPU, where the mean was asked for beside the maximum).
    """
    where = jnp.argmax(x, axis=1, keepdims=True)
    chosen = jnp.arange(x.shape[1])[None, :, None] == where
    return jnp.sum(jnp.where(chosen, x, jnp.zeros_like(x)), axis=1)


def masked_last(
    x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"]
) -> Float[Array, "batch width"]:
    """The last position where ``mask`` holds; zeros where none does."""
    after = jnp.flip(jnp.cumsum(jnp.flip(mask, 1).astype(jnp.int32), axis=1), 1)
    return select_position(x, mask & (after == 1))


def select_position(
    x: Float[Array, "batch length width"], chosen: Bool[Array, "batch length"]
) -> Float[Array, "batch width"]:
    """The one position of each row where ``chosen`` holds; zeros where none does.

    A sum of one entry: exact, and without a gather, whose sharding would have to be spelled out.
    """
    return jnp.sum(jnp.where(chosen[..., None], x, jnp.zeros_like(x)), axis=1)
