"""Bidirectional text encoders in the form of BERT and its successors.

* BERT (Devlin et al. 2019): the defaults. Learned positions, token types, LayerNorm after each
  branch has been added, exact GELU, epsilon 1e-12.
* RoBERTa (Liu et al. 2019): ``position_offset=2``, ``token_types=1``, ``epsilon=1e-5``.
* ModernBERT (Warner et al. 2024): ``norm="pre"``, ``positions="rotary"``, ``gated=True``,
  ``bias=False``, ``token_types=0``, ``window=64``, ``init="modernbert"``, ``epsilon=1e-5``.

What follows the pooling (``after_pooling``) are the modules of a sentence-transformers model.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from contrastive.errors import ConfigError
from contrastive.towers import layers, sharding
from contrastive.towers.text import Pooling, pool, table_size, text_mask
from contrastive.towers.transformer import (
    Attention,
    Initialization,
    Mlp,
    TransformerConfig,
    rotary_angles,
    scan_blocks,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """A product after the pooling, with an activation."""

    kind: Literal["dense"] = "dense"
    size: int  # of the rows that leave it
    bias: bool = True
    activation: Literal["tanh", "gelu", "relu", "none"] = "tanh"

    def __post_init__(self):
        if self.size < 1:
            raise ConfigError(f"after_pooling: size = {self.size} has to be at least 1.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNormConfig:
    """A LayerNorm after the pooling."""

    kind: Literal["layer_norm"] = "layer_norm"
    epsilon: float = 1e-5

    def __post_init__(self):
        if self.epsilon <= 0.0:
            raise ConfigError(f"after_pooling: epsilon = {self.epsilon} has to be positive.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """Settings of :class:`Encoder`, with those of every transformer."""

    kind: Literal["encoder"] = "encoder"  # which text tower this is
    epsilon: float = 1e-12  # of every LayerNorm: 1e-12 in BERT, 1e-5 in RoBERTa and ModernBERT
    init: Initialization = "bert"  # whose initialization
    norm: Literal["post", "pre"] = "post"  # LayerNorm after each sum (BERT) or before each branch
    gated: bool = False  # the MLP multiplies with a gate (GeGLU)
    bias: bool = True  # biases in the blocks and in their norms
    positions: Literal["learned", "rotary"] = "learned"
    rotary_base: float = 160_000.0  # of rotary positions, in blocks that see the whole text
    local_rotary_base: float = 10_000.0  # and in those that see a window
    window: int = 0  # tokens to each side that a local block sees; 0: no block is local
    global_every: int = 3  # with a window: blocks 0, n, 2n, … see the whole text
    vocabulary_size: int = 0  # rows of the token table; 0: as many as the tokenizer has tokens
    length: int = 0  # longest text in tokens; 0: the text length of the data
    position_offset: int = 0  # rows of the position table before that of the first token
    token_types: int = 2  # rows of the token type table, of which the first is added; 0: no table
    pooling: Pooling = "mean"  # over the tokens that are not padding
    after_pooling: tuple[DenseConfig | LayerNormConfig, ...] = ()

    path: ClassVar[str] = "config.model.text"

    def __post_init__(self):
        super().__post_init__()
        sizes = ("vocabulary_size", "length", "position_offset", "token_types", "window")
        for name in sizes:
            if getattr(self, name) < 0:
                raise ConfigError(f"{self.path}.{name} = {getattr(self, name)} is negative.")
        if self.global_every < 1 or (self.window and self.global_every == 1):
            raise ConfigError(
                f"{self.path}.global_every = {self.global_every}: with a window of {self.window} "
                "tokens every n-th block sees the whole text, n at least 2."
            )
        if self.layer_scale is not None:
            raise ConfigError(
                f"{self.path}.layer_scale = {self.layer_scale} is for pre-norm towers; "
                "an encoder in the manner of BERT has none."
            )
        if self.positions == "learned":
            return
        if self.position_offset:
            raise ConfigError(
                f"{self.path}.position_offset = {self.position_offset} is of a learned table; "
                "positions are 'rotary'."
            )
        if self.width // self.heads % 2:
            raise ConfigError(
                f"{self.path}.positions = 'rotary' turns pairs of entries; the heads have "
                f"{self.width // self.heads}, an odd number."
            )
        for name in ("rotary_base", "local_rotary_base"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"{self.path}.{name} has to be positive.")


class Encoder(nnx.Module):
    """Tokens ``int32 [batch, length]`` to rows ``[batch, output]``; padding changes nothing, and a
    text without any token is a row of zeros before ``after_pooling`` and the projection.

    A text reaches to its last end token (end tokens inside it separate its parts).

    Args:
      config: Settings.
      length: Longest text of the data.
      vocabulary_size: Number of tokens of the tokenizer.
      pad_id: The token that stands for padding.
      end_id: The token that ends a text; None: there is none.
      output: Size of the rows.
      rngs: Streams; keys come from ``params``.

    Raises:
      SizeError: The configured table is smaller than the data needs, or ``projection="none"`` and
        the last size is not ``output``.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        length: int,
        vocabulary_size: int,
        pad_id: int,
        end_id: int | None = None,
        output: int,
        rngs: nnx.Rngs,
    ):
        self.config, self.pad_id, self.end_id = config, pad_id, end_id
        self.length = table_size("length", config.length, length)
        init = layers.normal(0.02)
        if config.init in ("bert", "modernbert"):
            init = layers.truncated_normal(0.02)

        def table(rows: int, axis: str) -> nnx.Param:
            return sharding.parameter(rngs, (rows, config.width), (axis, "embed"), init)

        rows = table_size("vocabulary_size", config.vocabulary_size, vocabulary_size)
        self.tokens = table(rows, "vocab")
        learned = config.positions == "learned"
        rows = self.length + config.position_offset
        self.positions = table(rows, "position") if learned else None
        self.token_types = table(config.token_types, "position") if config.token_types else None
        self.norm_before = _norm(config, rngs=rngs)
        self.blocks = EncoderBlock(config, stack=(config.depth,), rngs=rngs)
        self.norm = _norm(config, rngs=rngs) if config.norm == "pre" else None
        self.after_pooling = AfterPooling(config.after_pooling, config.width, rngs=rngs)
        size = self.after_pooling.size
        self.projection = layers.projection(config.projection, size, output, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        *,
        dtype: jnp.dtype,
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch output"]:
        """Rows in ``dtype``, the dtype of the computation. ``keys``: one for each row, for
        dropout; None: no dropout."""
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"texts of {tokens.shape[1]} tokens; the tower reads {self.length} at most."
            )
        mask = text_mask(tokens, self.pad_id, self.end_id, until="last")
        x = self.norm_before(self._embed(tokens, dtype))
        if keys is not None:
            first, keys = layers.split_row_keys(keys, 2)
            rate = self.config.dropout
            x = layers.drop(x, rate, *layers.keep_masks(x, rate, first))
        x = self._run(x, mask, keys)
        if self.norm is not None:
            x = self.norm(x)
        x = self.after_pooling(pool(x, mask, self.config.pooling))
        return x if self.projection is None else self.projection(x)

    def _embed(self, tokens: jax.Array, dtype: jnp.dtype) -> jax.Array:
        def used(table: nnx.Param, axis: str) -> jax.Array:
            return sharding.weight(table, (axis, "embed"), tokens, dtype)

        # Out-of-range ids are the tokenizer's fault; clipping keeps the gather free of NaN fills.
        where = sharding.rows_like(tokens, 3)
        x = used(self.tokens, "vocab").at[tokens].get(mode="clip", out_sharding=where)
        if self.token_types is not None:
            x = x + used(self.token_types, "position")[None, :1]
        if self.positions is not None:
            first = self.config.position_offset
            positions = used(self.positions, "position")
            x = x + positions[None, first : first + tokens.shape[1]]
        return x

    def _run(self, x: jax.Array, mask: jax.Array, keys: jax.Array | None) -> jax.Array:
        """The blocks. One that sees a window has another mask and, with rotary positions, another
        base; a scan runs one program, so each block chooses between the two."""
        config, length = self.config, x.shape[1]
        numbers = np.arange(config.depth)
        local = (numbers % config.global_every > 0) & (config.window > 0)
        everything, nearby = mask[:, None], None
        if config.window:
            places = np.arange(length)
            near = np.abs(places[:, None] - places[None]) <= config.window
            nearby, everything = everything & near[None], everything & np.ones_like(near)[None]
        angles_of = self._angles(length)

        def call(block: EncoderBlock, x: jax.Array, own: tuple) -> jax.Array:
            is_first, is_local, keys = own
            seen = everything if nearby is None else jnp.where(is_local, nearby, everything)
            angles = None if angles_of is None else jnp.where(is_local, *angles_of)
            return block(x, mask=seen, angles=angles, is_first=is_first, keys=keys)

        each = None if keys is None else layers.split_row_keys(keys, config.depth)
        own = jnp.asarray(numbers == 0), jnp.asarray(local), each
        return scan_blocks(self.blocks, call, x, own, config.remat, scan=config.scan)

    def _angles(self, length: int) -> tuple[jax.Array, jax.Array] | None:
        """Of rotary positions, in local blocks and in the others; None: positions are learned."""
        config = self.config
        if config.positions == "learned":
            return None
        size = config.width // config.heads
        bases = config.local_rotary_base, config.rotary_base
        return rotary_angles(length, size, bases[0]), rotary_angles(length, size, bases[1])


class EncoderBlock(nnx.Module):
    """``norm(x + attention(x))``, then ``norm(x + mlp(x))``; with ``norm="pre"`` ``x +
    attention(norm(x))``, then ``x + mlp(norm(x))``, where the first block has no norm before its
    attention: what enters it is normalised already (its rows of ``norm1`` are not used)."""

    def __init__(self, config: EncoderConfig, *, stack: tuple[int, ...] = (), rngs: nnx.Rngs):
        self.rate, self.order = config.dropout, config.norm
        options = {"bias": config.bias, "stack": stack, "rngs": rngs}
        self.attention = Attention(config, qk_norm=config.qk_norm, **options)
        self.norm1 = _norm(config, stack=stack, rngs=rngs)
        self.mlp = Mlp(config, gated=config.gated, **options)
        self.norm2 = _norm(config, stack=stack, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        *,
        mask: Bool[Array, "batch #length length"],
        angles: Float[Array, "length half"] | None,
        is_first: Bool[Array, ""],
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch length width"]:
        """``keys``: one for each row, for dropout; None: no dropout."""
        first, second = layers.keep_masks(x, self.rate, keys, 2)
        if self.order == "post":
            y = self.attention(x, mask=mask, angles=angles)
            x = self.norm1(x + layers.drop(y, self.rate, first))
            return self.norm2(x + layers.drop(self.mlp(x), self.rate, second))
        y = jnp.where(is_first, x, self.norm1(x))
        y = self.attention(y, mask=mask, angles=angles)
        x = x + layers.drop(y, self.rate, first)
        return x + layers.drop(self.mlp(self.norm2(x)), self.rate, second)


class AfterPooling(nnx.Module):
    """The modules that rows pass after the pooling, in order."""

    def __init__(
        self, configs: tuple[DenseConfig | LayerNormConfig, ...], width: int, *, rngs: nnx.Rngs
    ):
        self.configs, self.size = configs, width
        modules = []
        for config in configs:
            if isinstance(config, LayerNormConfig):
                modules.append(layers.LayerNorm(self.size, epsilon=config.epsilon, rngs=rngs))
                continue
            dense = layers.Dense(
                self.size,
                config.size,
                axes=("embed", "output"),
                init=layers.normal(self.size**-0.5),
                bias=layers.zeros if config.bias else None,
                rngs=rngs,
            )
            modules.append(dense)
            self.size = config.size
        self.layers = nnx.List(modules)

    def __call__(self, x: Float[Array, "batch width"]) -> Float[Array, "batch size"]:
        for config, module in zip(self.configs, self.layers, strict=True):
            x = module(x)
            if isinstance(config, DenseConfig):
                x = _activate(config.activation, x)
        return x


def _activate(name: str, x: jax.Array) -> jax.Array:
    if name == "none":
        return x
    return layers.activation("gelu")(x) if name == "gelu" else getattr(jax.nn, name)(x)


def _norm(
    config: EncoderConfig, *, stack: tuple[int, ...] = (), rngs: nnx.Rngs
) -> layers.LayerNorm:
    options = {"epsilon": config.epsilon, "bias": config.bias, "stack": stack}
    return layers.LayerNorm(config.width, **options, rngs=rngs)
