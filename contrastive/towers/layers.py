"""The layers that towers share: projections, norms, attention, blocks, and a stack of blocks.

A layer computes in the dtype of its input; parameters are float32. A row with nothing to attend to
and a sequence with nothing to pool give zeros, with zero gradient: that is the one rule for fully
masked rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from contrastive.towers import sharding
from contrastive.towers.sharding import Initializer, parameter, weight

Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
Initialization = Literal["clip", "siglip"]
Remat = Literal["none", "dots", "full"]


def activation(name: Activation) -> Callable[[jax.Array], jax.Array]:
    """The activation called ``name``: exact GELU, its tanh form, or ``x · sigmoid(1.702 x)``."""
    if name == "quick_gelu":  # OpenAI's CLIP weights were trained with it
        return lambda x: x * jax.nn.sigmoid(1.702 * x)
    return functools.partial(jax.nn.gelu, approximate=name == "gelu_tanh")


# --- Initializers -----------------------------------------------------------------------------


def normal(stddev: float) -> Initializer:
    """Normal with this standard deviation."""
    return jax.nn.initializers.normal(stddev)


def uniform(limit: float) -> Initializer:
    """Uniform on ``[-limit, limit)``."""

    def init(key, shape, dtype, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -limit, limit, out_sharding=out_sharding)

    return init


def constant(value: float) -> Initializer:
    """The same value everywhere; the key is not used."""

    def init(key, shape, dtype, out_sharding=None):
        return jnp.full(shape, value, dtype, out_sharding=out_sharding)

    return init


zeros, ones = constant(0.0), constant(1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockInit:
    """Initializers of a transformer block's projections."""

    qkv: Initializer
    out: Initializer
    up: Initializer
    down: Initializer
    mlp_bias: Initializer

    @classmethod
    def of(cls, name: Initialization, *, width: int, hidden: int, depth: int) -> "BlockInit":
        """How a paper's code initialises a block.

        ``clip`` (Radford et al. 2021): normal, ``width^-½`` for queries, keys and values,
        ``(2 width)^-½`` for the first MLP projection, and what adds to the residual stream scaled
        by ``(2 depth)^-½``. ``siglip`` (Zhai et al. 2023, big_vision): Glorot uniform, MLP biases
        normal with deviation 1e-6.
        """
        if name == "clip":
            residual = normal((width * 2 * depth) ** -0.5)
            return cls(
                qkv=normal(width**-0.5),
                out=residual,
                up=normal((2 * width) ** -0.5),
                down=residual,
                mlp_bias=zeros,
            )
        square, mlp = uniform((3 / width) ** 0.5), uniform((6 / (width + hidden)) ** 0.5)
        return cls(qkv=square, out=square, up=mlp, down=mlp, mlp_bias=normal(1e-6))


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
        y = jnp.matmul(x, kernel, out_sharding=_summed_over(x))
        return y if self.bias is None else _add(y, weight(self.bias, self.axes[1:], x))


def _summed_over(x: jax.Array, last: int = 1):
    """Where a product over split trailing dimensions of ``x`` goes: to the rows, summed."""
    spec = jax.typeof(x).sharding.spec
    if all(entry is None for entry in spec[x.ndim - last :]):
        return None
    return sharding.rows_like(x, x.ndim - last + 1)


def _add(y: jax.Array, bias: jax.Array) -> jax.Array:
    return y + bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)


class LayerNorm(nnx.Module):
    """``(x − mean) / sqrt(var + epsilon) · scale + bias`` over the last axis, in float32.

    The variance is ``mean((x − mean)²)``, two passes: ``mean(x²) − mean(x)²`` cancels where the
    mean is large.
    """

    def __init__(self, width: int, *, epsilon: float, stack: tuple[int, ...] = (), rngs: nnx.Rngs):
        self.epsilon = epsilon
        axes = ("layers",) * len(stack) + ("embed",)
        self.scale = parameter(rngs, (*stack, width), axes, ones)
        self.bias = parameter(rngs, (*stack, width), axes, zeros)

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        y = normalize_last(x.astype(jnp.float32), self.epsilon)
        scale, bias = weight(self.scale, ("embed",), y), weight(self.bias, ("embed",), y)
        return _add(y * scale.reshape((1,) * (y.ndim - 1) + scale.shape), bias).astype(x.dtype)


def normalize_last(x: Float[Array, "... width"], epsilon: float) -> Float[Array, "... width"]:
    """Zero mean and unit variance over the last axis: ``d / sqrt(mean(d²) + epsilon)``."""
    d = x - jnp.mean(x, axis=-1, keepdims=True)
    return d * jax.lax.rsqrt(jnp.mean(jnp.square(d), axis=-1, keepdims=True) + epsilon)


@dataclasses.dataclass(frozen=True)
class Noise:
    """The randomness of one pass: a key, and the number of each row in the global batch.

    A row's dropout is a function of the key and of that number, never of the rows beside it. So
    it replays exactly in microbatches of any size, and on any number of devices.
    """

    key: Key[Array, ""]
    rows: Int[Array, "batch"]

    def fold(self, number: int) -> "Noise":
        """Independent noise for another place in the network."""
        return Noise(jax.random.fold_in(self.key, number), self.rows)


def dropout(
    x: Float[Array, "batch *rest"], rate: float, noise: Noise | None
) -> Float[Array, "batch *rest"]:
    """Zeroes entries with probability ``rate`` and scales the rest by ``1/(1 − rate)``.

    Does nothing where ``noise`` is None or the rate is 0.
    """
    if noise is None or rate == 0.0:
        return x
    key, keep = noise.key, 1.0 - rate

    def mask_row(row):
        return jax.random.bernoulli(jax.random.fold_in(key, row), keep, x.shape[1:])

    mask = jax.vmap(mask_row)(noise.rows)
    return jnp.where(mask, x / keep, jnp.zeros_like(x))


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


def masked_max(
    x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"]
) -> Float[Array, "batch width"]:
    """Largest entry over the positions where ``mask`` holds; zeros where none does."""
    lowest = jnp.full_like(x, jnp.finfo(x.dtype).min)
    top = jnp.max(jnp.where(mask[..., None], x, lowest), axis=1)
    return jnp.where(jnp.any(mask, axis=1, keepdims=True), top, jnp.zeros_like(top))


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


# --- Transformer ------------------------------------------------------------------------------


class Attention(nnx.Module):
    """Multi-head attention ``softmax(q·kᵀ/√head_dim)·v`` (Vaswani et al. 2017), to itself or to
    ``context``. Queries, keys and values share one kernel ``[width, 3, heads, head_dim]``."""

    QKV_AXES = ("embed", None, "heads", "head_dim")
    OUT_AXES = ("heads", "head_dim", "embed")

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        init: BlockInit,
        stack: tuple[int, ...] = (),
        rngs: nnx.Rngs,
    ):
        size = width // heads
        layers = ("layers",) * len(stack)
        qkv, out = (*layers, *self.QKV_AXES), (*layers, *self.OUT_AXES)
        self.qkv = parameter(rngs, (*stack, width, 3, heads, size), qkv, init.qkv)
        self.qkv_bias = parameter(rngs, (*stack, 3, heads, size), (*layers, *qkv[-3:]), zeros)
        self.out = parameter(rngs, (*stack, heads, size, width), out, init.out)
        self.out_bias = parameter(rngs, (*stack, width), (*layers, "embed"), zeros)

    def __call__(
        self,
        x: Float[Array, "batch queries width"],
        context: Float[Array, "batch keys width"] | None = None,
        *,
        mask: Bool[Array, "batch #queries keys"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "batch queries width"]:
        """Attends where ``mask`` holds (and not ahead, if ``causal``); a query that may attend
        nowhere gets zeros from the values (the output bias remains)."""
        kernel = weight(self.qkv, self.QKV_AXES, x)
        bias = weight(self.qkv_bias, self.QKV_AXES[1:], x)
        if context is None:
            q, k, v = _thirds(_project(x, kernel, bias), 3)
        else:
            (q,) = _thirds(_project(x, kernel[:, :1], bias[:1]), 1)
            k, v = _thirds(_project(context, kernel[:, 1:], bias[1:]), 2)
        heads = jax.nn.dot_product_attention(
            q, k, v, mask=None if mask is None else mask[:, None], is_causal=causal
        )
        if mask is not None:
            reach = jnp.any(_reachable(mask, x.shape[1], causal), axis=-1)
            heads = jnp.where(reach[..., None, None], heads, jnp.zeros_like(heads))
        out = weight(self.out, self.OUT_AXES, x)
        y = jnp.einsum("bqhk,hkd->bqd", heads, out, out_sharding=_summed_over(heads, 2))
        return _add(y, weight(self.out_bias, self.OUT_AXES[2:], x))


def _project(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    return _add(jnp.einsum("bld,dnhk->blnhk", x, kernel), bias)


def _thirds(y: jax.Array, count: int) -> list[jax.Array]:
    return [y[:, :, i] for i in range(count)]


def _reachable(mask: jax.Array, queries: int, causal: bool) -> jax.Array:
    if not causal:
        return mask
    return mask & jnp.tri(queries, mask.shape[-1], dtype=bool)[None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """What a stack of transformer blocks is made of."""

    width: int
    depth: int
    heads: int
    hidden: int
    activation: Activation
    epsilon: float
    dropout: float
    init: Initialization
    remat: Remat


class Block(nnx.Module):
    """Pre-norm block: ``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, settings: BlockSettings, *, stack: tuple[int, ...] = (), rngs: nnx.Rngs):
        s = self.settings = settings
        init = BlockInit.of(s.init, width=s.width, hidden=s.hidden, depth=s.depth)
        self.norm1 = LayerNorm(s.width, epsilon=s.epsilon, stack=stack, rngs=rngs)
        self.attention = Attention(s.width, s.heads, init=init, stack=stack, rngs=rngs)
        self.norm2 = LayerNorm(s.width, epsilon=s.epsilon, stack=stack, rngs=rngs)
        self.mlp = Mlp(s.width, s.hidden, s.activation, init=init, stack=stack, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        *,
        mask: Bool[Array, "batch #length keys"] | None = None,
        causal: bool = False,
        noise: Noise | None = None,
    ) -> Float[Array, "batch length width"]:
        rate = self.settings.dropout
        y = self.attention(self.norm1(x), mask=mask, causal=causal)
        x = x + dropout(y, rate, noise and noise.fold(0))
        y = self.mlp(self.norm2(x))
        return x + dropout(y, rate, noise and noise.fold(1))


class Mlp(nnx.Module):
    """``down(activation(up(x)))``."""

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: Activation,
        *,
        init: BlockInit,
        stack: tuple[int, ...] = (),
        rngs: nnx.Rngs,
    ):
        self.activation: Activation = activation
        self.up = Dense(
            width,
            hidden,
            axes=("embed", "mlp"),
            init=init.up,
            bias=init.mlp_bias,
            stack=stack,
            rngs=rngs,
        )
        self.down = Dense(
            hidden,
            width,
            axes=("mlp", "embed"),
            init=init.down,
            bias=init.mlp_bias,
            stack=stack,
            rngs=rngs,
        )

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        return self.down(activation(self.activation)(self.up(x)))


class Transformer(nnx.Module):
    """``depth`` blocks with stacked parameters, run by one ``lax.scan``.

    The program has the size of one block whatever the depth. ``remat`` says what the forward pass
    keeps for the backward pass: everything (``none``), the outputs of products with weights
    (``dots``), or only what enters each block (``full``).
    """

    def __init__(self, settings: BlockSettings, *, rngs: nnx.Rngs):
        self.settings = settings
        self.blocks = Block(settings, stack=(settings.depth,), rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        *,
        mask: Bool[Array, "batch #length keys"] | None = None,
        causal: bool = False,
        noise: Noise | None = None,
    ) -> Float[Array, "batch length width"]:
        graphdef, stacked = nnx.split(self.blocks)
        keys = None if noise is None else jax.random.split(noise.key, self.settings.depth)

        def body(x, layer):
            params, key = layer
            here = None if noise is None else Noise(key, noise.rows)
            block = nnx.merge(graphdef, params)
            return block(x, mask=mask, causal=causal, noise=here), None

        x, _ = jax.lax.scan(rematerialised(body, self.settings.remat), x, (stacked, keys))
        return x


class AttentionPool(nnx.Module):
    """Pooling by attention with a learned query, then ``y + mlp(norm(y))``: the MAP head of SigLIP
    (Zhai et al. 2022, 2023). The order of the positions does not matter."""

    def __init__(self, settings: BlockSettings, *, rngs: nnx.Rngs):
        s = settings
        init = BlockInit.of(s.init, width=s.width, hidden=s.hidden, depth=s.depth)
        self.query = parameter(rngs, (1, s.width), ("position", "embed"), normal(s.width**-0.5))
        self.attention = Attention(s.width, s.heads, init=init, rngs=rngs)
        self.norm = LayerNorm(s.width, epsilon=s.epsilon, rngs=rngs)
        self.mlp = Mlp(s.width, s.hidden, s.activation, init=init, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        *,
        mask: Bool[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch width"]:
        query = weight(self.query, ("position", "embed"), x)
        query = jnp.broadcast_to(
            query[None], (x.shape[0], *query.shape), out_sharding=sharding.rows_like(x, 3)
        )
        y = self.attention(query, x, mask=None if mask is None else mask[:, None])
        return (y + self.mlp(self.norm(y)))[:, 0]


def projection(
    kind: Literal["linear", "bias", "none"], width: int, output: int, *, rngs: nnx.Rngs
) -> Dense | None:
    """The last product of a tower, from its width to the shared embedding; None for ``none``.

    Normal with deviation ``width^-½``, as in CLIP.

    Raises:
      ValueError: ``none``, and the two sizes differ.
    """
    if kind == "none":
        if width != output:
            raise ValueError(f"projection = 'none' with width {width} and embedding size {output}.")
        return None
    bias = zeros if kind == "bias" else None
    axes = ("embed", "output")
    return Dense(width, output, axes=axes, init=normal(width**-0.5), bias=bias, rngs=rngs)


def rematerialised(body: Callable, remat: Remat) -> Callable:
    """``body`` under the rematerialisation policy called ``remat``, for use inside a scan."""
    if remat == "none":
        return body
    policy = None
    if remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    # Inside a scan there is nothing to keep apart, and the barrier would cost speed.
    return jax.checkpoint(body, policy=policy, prevent_cse=False)


def row_numbers(x: jax.Array, rows: Sequence[int] | jax.Array | None) -> jax.Array:
    """``rows``, or ``0 … batch − 1``, laid out like the rows of ``x``."""
    numbers = jnp.arange(x.shape[0], dtype=jnp.int32) if rows is None else jnp.asarray(rows)
    layout = sharding.rows_like(x, 1)
    return numbers if layout is None else jax.sharding.reshard(numbers, layout)
