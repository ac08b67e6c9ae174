"""Pre-norm transformer blocks, the stack that runs them, and attention pooling.

A query with nothing to attend to gets zeros from the values, with zero gradient (the output bias
remains): the rule for fully masked rows that :mod:`contrastive.towers.layers` states for pooling.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Key

from contrastive.errors import ConfigError
from contrastive.towers import layers, sharding
from contrastive.towers.attend import LARGEST_HEAD, attend
from contrastive.towers.attend import Kind as Attend
from contrastive.towers.layers import Activation, Dense, LayerNorm, LayerScale
from contrastive.towers.sharding import Initializer, parameter, weight

Initialization = Literal["clip", "siglip", "bert", "modernbert"]
Remat = Literal["none", "dots", "full"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """What every transformer tower has; the towers add their own fields and defaults."""

    width: int = 128  # size of the residual stream
    depth: int = 2  # number of blocks
    heads: int = 4  # attention heads; has to divide the width
    mlp_ratio: float = 4.0  # hidden units of the MLP over the width
    activation: Activation = "gelu"  # of the MLP
    epsilon: float = 1e-5  # of every LayerNorm: 1e-5 in CLIP, 1e-6 in SigLIP
    dropout: float = 0.0  # rate on the embeddings and on what each branch adds
    init: Initialization = "clip"  # whose initialization
    projection: layers.Projection = "linear"  # to the shared embedding; bias: linear with a bias
    remat: Remat = "none"  # what the backward pass computes again
    scan: bool = True  # one program for all blocks; False: each its own, compiled depth times
    # flash: cuDNN's attention on GPUs, which needs model.dtype = "bfloat16" (attend.py)
    attention: Attend = "xla"
    # LayerNorm (without a bias) on each head's queries and keys, as in ViT-22B (Dehghani et al.
    # 2023, https://arxiv.org/abs/2302.05442)
    qk_norm: bool = False
    # First value of a learned factor on each entry that a branch adds, 1e-5 or 1e-6 for deep
    # towers (LayerScale, Touvron et al. 2021, https://arxiv.org/abs/2103.17239); None: there is
    # none
    layer_scale: float | None = None

    path: ClassVar[str] = "config.model"  # how errors call the settings

    def __post_init__(self):
        for name in ("width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{self.path}.{name} = {getattr(self, name)} has to be at least 1."
                )
        if self.width % self.heads:
            raise ConfigError(
                f"{self.path}.heads = {self.heads} does not divide "
                f"{self.path}.width = {self.width}."
            )
        if self.hidden < 1:
            raise ConfigError(
                f"{self.path}.mlp_ratio = {self.mlp_ratio} leaves no hidden unit at width "
                f"{self.width}."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"{self.path}.dropout = {self.dropout} has to be in [0, 1).")
        for name in ("epsilon", "layer_scale"):
            value = getattr(self, name)
            if value is not None and value <= 0.0:
                raise ConfigError(f"{self.path}.{name} = {value} has to be positive.")
        size = self.width // self.heads
        if self.attention == "flash" and (size % 8 or size > LARGEST_HEAD):
            raise ConfigError(
                f"{self.path}.attention = 'flash' takes heads of a multiple of 8 and at most "
                f"{LARGEST_HEAD} entries; width / heads is {size}."
            )

    @property
    def hidden(self) -> int:
        """Hidden units of the MLP."""
        return round(self.width * self.mlp_ratio)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockInit:
    """Initializers of a block's projections."""

    qkv: Initializer
    out: Initializer
    up: Initializer
    down: Initializer
    mlp_bias: Initializer

    @classmethod
    def of(cls, config: TransformerConfig) -> "BlockInit":
        """How a paper's code initialises a block.

        ``clip`` (Radford et al. 2021): normal, ``width^-½`` for queries, keys and values,
        ``(2 width)^-½`` for the first MLP projection, and ``(2 depth width)^-½`` for the two that
        add to the residual stream. ``siglip`` (Zhai et al. 2023, big_vision): Glorot uniform, MLP
        biases normal with deviation 1e-6. ``bert`` (Devlin et al. 2019): normal, 0.02, cut off at
        two deviations. ``modernbert`` (Warner et al. 2024, as released): the same, and
        ``0.02 (2 depth)^-½`` for what adds to the residual stream.
        """
        width = config.width
        if config.init in ("bert", "modernbert"):
            narrow = layers.truncated_normal(0.02)
            residual = layers.truncated_normal(0.02 * (2 * config.depth) ** -0.5)
            last = residual if config.init == "modernbert" else narrow
            return cls(qkv=narrow, out=last, up=narrow, down=last, mlp_bias=layers.zeros)
        if config.init == "clip":
            residual = layers.normal((2 * config.depth * width) ** -0.5)
            return cls(
                qkv=layers.normal(width**-0.5),
                out=residual,
                up=layers.normal((2 * width) ** -0.5),
                down=residual,
                mlp_bias=layers.zeros,
            )
        square = layers.uniform((3 / width) ** 0.5)
        mlp = layers.uniform((6 / (width + config.hidden)) ** 0.5)
        return cls(qkv=square, out=square, up=mlp, down=mlp, mlp_bias=layers.normal(1e-6))


class Attention(nnx.Module):
    """Multi-head attention ``softmax(q·kᵀ/√head_dim)·v`` (Vaswani et al. 2017), to itself or to
    ``context``. Queries, keys and values share one kernel ``[width, 3, heads, head_dim]``.

    ``stack`` is a leading shape of every parameter: ``(depth,)`` makes the parameters of ``depth``
    layers at once, to be sliced by a scan. ``qk_norm``: queries and keys are normalised before
    anything else happens to them.
    """

    QKV_AXES = ("embed", None, "heads", "head_dim")
    OUT_AXES = ("heads", "head_dim", "embed")

    def __init__(
        self,
        config: TransformerConfig,
        *,
        bias: bool = True,
        qk_norm: bool = False,
        stack: tuple[int, ...] = (),
        rngs: nnx.Rngs,
    ):
        init, width, heads = BlockInit.of(config), config.width, config.heads
        self.kind: Attend = config.attention
        size, above = width // heads, ("layers",) * len(stack)
        qkv, out = (*above, *self.QKV_AXES), (*above, *self.OUT_AXES)
        qkv_bias, out_bias = (*above, *self.QKV_AXES[1:]), (*above, "embed")

        def zeros(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> nnx.Param | None:
            return parameter(rngs, shape, axes, layers.zeros) if bias else None

        self.qkv = parameter(rngs, (*stack, width, 3, heads, size), qkv, init.qkv)
        self.qkv_bias = zeros((*stack, 3, heads, size), qkv_bias)
        self.out = parameter(rngs, (*stack, heads, size, width), out, init.out)
        self.out_bias = zeros((*stack, width), out_bias)

        def norm() -> LayerNorm | None:
            options = {"epsilon": config.epsilon, "bias": False, "axis": "head_dim"}
            return LayerNorm(size, **options, stack=stack, rngs=rngs) if qk_norm else None

        self.q_norm, self.k_norm = norm(), norm()

    def __call__(
        self,
        x: Float[Array, "batch queries width"],
        context: Float[Array, "batch keys width"] | None = None,
        *,
        mask: Bool[Array, "batch #queries keys"] | None = None,
        causal: bool = False,
        angles: Float[Array, "queries half"] | None = None,
    ) -> Float[Array, "batch queries width"]:
        """Attends where ``mask`` holds and, if ``causal``, not ahead. ``angles``: by which queries
        and keys are turned (:func:`rotate`)."""
        kernel = weight(self.qkv, self.QKV_AXES, x)
        bias = None if self.qkv_bias is None else weight(self.qkv_bias, self.QKV_AXES[1:], x)
        if context is None:
            q, k, v = _project(x, kernel, bias)
        else:
            (q,) = _project(x, kernel[:, :1], None if bias is None else bias[:1])
            k, v = _project(context, kernel[:, 1:], None if bias is None else bias[1:])
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        y = attend(q, k, v, mask=mask, causal=causal, kind=self.kind)
        if mask is not None:
            reach = mask & jnp.tri(x.shape[1], mask.shape[2], dtype=bool)[None] if causal else mask
            some = jnp.any(reach, axis=-1)[..., None, None]
            y = jnp.where(some, y, jnp.zeros_like(y))
        out = weight(self.out, self.OUT_AXES, x)
        where = layers.summed_over(y, last=2)
        y = jnp.einsum("bqhk,hkd->bqd", y, out, out_sharding=where)
        if self.out_bias is None:
            return y
        return layers.add_bias(y, weight(self.out_bias, ("embed",), x))


def _project(x: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> list[jax.Array]:
    y = jnp.einsum("bld,dnhk->blnhk", x, kernel)
    if bias is not None:
        y = layers.add_bias(y, bias)
    return [y[:, :, i] for i in range(y.shape[2])]


def rotary_angles(length: int, head_dim: int, base: float) -> Float[Array, "length half"]:
    """``position · base^(-2 i / head_dim)`` for i below ``head_dim / 2`` (Su et al. 2021,
    https://arxiv.org/abs/2104.09864)."""
    powers = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.float32(1.0) / np.float32(base) ** powers
    return jnp.arange(length, dtype=jnp.float32)[:, None] * jnp.asarray(frequencies)[None]


def rotate(
    x: Float[Array, "batch length heads head_dim"], angles: Float[Array, "length half"]
) -> Float[Array, "batch length heads head_dim"]:
    """Turns entry i and entry ``i + head_dim / 2`` of each head by the angle i of their position,
    in float32."""
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    half = x.shape[-1] // 2
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class Mlp(nnx.Module):
    """``down(activation(up(x)))``; gated: ``down(activation(up(x)) · gate(x))`` (Shazeer 2020,
    https://arxiv.org/abs/2002.05202)."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        gated: bool = False,
        bias: bool = True,
        stack: tuple[int, ...] = (),
        rngs: nnx.Rngs,
    ):
        init = BlockInit.of(config)
        self.activation: Activation = config.activation

        def into_hidden() -> Dense:
            return Dense(
                config.width,
                config.hidden,
                axes=("embed", "mlp"),
                init=init.up,
                bias=init.mlp_bias if bias else None,
                stack=stack,
                rngs=rngs,
            )

        self.up = into_hidden()
        self.gate = into_hidden() if gated else None
        self.down = Dense(
            config.hidden,
            config.width,
            axes=("mlp", "embed"),
            init=init.down,
            bias=init.mlp_bias if bias else None,
            stack=stack,
            rngs=rngs,
        )

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        y = layers.activation(self.activation)(self.up(x))
        return self.down(y if self.gate is None else y * self.gate(x))


class Block(nnx.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``, with dropout on what each branch adds
    and, with LayerScale, a factor on each of its entries.

    ``keys``: one for each row, from :func:`contrastive.towers.layers.row_keys`; None: no dropout.
    """

    def __init__(self, config: TransformerConfig, *, stack: tuple[int, ...] = (), rngs: nnx.Rngs):
        self.rate = config.dropout
        self.norm1 = LayerNorm(config.width, epsilon=config.epsilon, stack=stack, rngs=rngs)
        self.attention = Attention(config, qk_norm=config.qk_norm, stack=stack, rngs=rngs)
        self.norm2 = LayerNorm(config.width, epsilon=config.epsilon, stack=stack, rngs=rngs)
        self.mlp = Mlp(config, stack=stack, rngs=rngs)
        first = config.layer_scale

        def factor() -> LayerScale | None:
            return None if first is None else LayerScale(config.width, first, stack, rngs=rngs)

        self.after_attention, self.after_mlp = factor(), factor()

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        *,
        mask: Bool[Array, "batch #length keys"] | None = None,
        causal: bool = False,
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch length width"]:
        first, second = layers.keep_masks(x, self.rate, keys, 2)
        y = self.attention(self.norm1(x), mask=mask, causal=causal)
        y = y if self.after_attention is None else self.after_attention(y)
        x = x + layers.drop(y, self.rate, first)
        y = self.mlp(self.norm2(x))
        y = y if self.after_mlp is None else self.after_mlp(y)
        return x + layers.drop(y, self.rate, second)


class Transformer(nnx.Module):
    """``depth`` blocks with stacked parameters, run by one ``lax.scan``: the program has the size
    of one block whatever the depth. With ``scan=False`` they follow one another in it.

    ``remat`` says what the forward pass
    keeps for the backward pass: everything (``none``), the outputs of products with weights
    (``dots``), or only what enters each block (``full``). Parameters that are cut over an axis of
    the batch are gathered block by block; only ``full`` does not keep the gathered copies.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.depth = config.depth
        self.remat: Remat = config.remat
        self.scan = config.scan
        self.blocks = Block(config, stack=(config.depth,), rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        *,
        mask: Bool[Array, "batch #length keys"] | None = None,
        causal: bool = False,
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch length width"]:
        each = None if keys is None else layers.split_row_keys(keys, self.depth)

        def call(block: Block, x: jax.Array, keys: jax.Array | None) -> jax.Array:
            return block(x, mask=mask, causal=causal, keys=keys)

        return scan_blocks(self.blocks, call, x, each, self.remat, scan=self.scan)


def scan_blocks(
    blocks: nnx.Module,
    call: Callable[..., jax.Array],
    x: jax.Array,
    each: Any,
    remat: Remat,
    *,
    scan: bool = True,
) -> jax.Array:
    """``x = call(block, x, own)`` for every block in turn, by one ``lax.scan``.

    Args:
      blocks: One block whose parameters are stacked: ``[depth, ...]``.
      call: Runs a block on ``x``.
      x: What enters the first block.
      each: Arrays ``[depth, ...]``, of which each block gets its own.
      remat: What the backward pass computes again.
      scan: False: a loop that is written out in the program.
    """
    graphdef, stacked = nnx.split(blocks)

    def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        parameters, own = layer
        return call(nnx.merge(graphdef, parameters), x, own), None

    if scan:
        return jax.lax.scan(rematerialised(body, remat), x, (stacked, each))[0]
    body = rematerialised(body, remat, scan=False)
    for i in range(jax.tree.leaves(stacked)[0].shape[0]):
        x, _ = body(x, jax.tree.map(lambda p, i=i: p[i], (stacked, each)))
    return x


def rematerialised(body: Callable, remat: Remat, *, scan: bool = True) -> Callable:
    """``body`` under the rematerialisation policy called ``remat``."""
    if remat == "none":
        return body
    policy = None
    if remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    # Inside a scan no common subexpressions can undo it, and the barrier would cost speed.
    return jax.checkpoint(body, policy=policy, prevent_cse=not scan)


class AttentionPool(nnx.Module):
    """Pooling by attention with a learned query, then ``y + mlp(norm(y))``: the MAP head of SigLIP
    (Zhai et al. 2022, 2023). The order of the positions does not matter."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        shape, axes = (1, config.width), ("position", "embed")
        glorot = layers.uniform((6 / (1 + config.width)) ** 0.5)  # big_vision's
        init = glorot if config.init == "siglip" else layers.normal(config.width**-0.5)
        self.query = parameter(rngs, shape, axes, init)
        self.attention = Attention(config, rngs=rngs)
        self.norm = LayerNorm(config.width, epsilon=config.epsilon, rngs=rngs)
        self.mlp = Mlp(config, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        *,
        mask: Bool[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch width"]:
        query = sharding.repeat_rows(weight(self.query, ("position", "embed"), x), x)
        y = self.attention(query, x, mask=None if mask is None else mask[:, None])
        return (y + self.mlp(self.norm(y)))[:, 0]
