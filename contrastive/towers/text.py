"""Transformer text tower: token and position embeddings, blocks, a final norm, pooling, projection.

With ``causal=True, pooling="last", activation="quick_gelu", init="clip"`` it is CLIP's text tower
(Radford et al. 2021); with ``padding="read", pooling="last", init="siglip"`` it is SigLIP's (Zhai
et al. 2023); with ``causal=False, pooling="cls"`` or ``"mean"`` an encoder in the manner of BERT,
pre-norm.
"""

import dataclasses
from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from contrastive.errors import ConfigError, SizeError
from contrastive.towers import layers, sharding
from contrastive.towers.transformer import Transformer, TransformerConfig

Pooling = Literal["mean", "max", "cls", "last", "weighted_mean"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTransformerConfig(TransformerConfig):
    """Settings of :class:`TextTransformer`, with those of every transformer."""

    kind: Literal["transformer"] = "transformer"  # which text tower this is
    vocabulary_size: int = 0  # rows of the token table; 0: as many as the tokenizer has tokens
    length: int = 0  # rows of the position table; 0: the text length of the data
    causal: bool = False  # each token sees only those before it
    pooling: Pooling = "mean"  # over the tokens that are not padding; last: the end-of-text token
    padding: Literal["masked", "read"] = (
        "masked"  # read: padding is a token like any other (SigLIP)
    )

    path: ClassVar[str] = "config.model.text"

    def __post_init__(self):
        super().__post_init__()
        for name in ("vocabulary_size", "length"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{self.path}.{name} = {getattr(self, name)} is negative; 0 takes the data's."
                )


class TextTransformer(nnx.Module):
    """Tokens ``int32 [batch, length]`` to rows ``[batch, output]``; padding that is masked changes
    nothing. A text reaches to its end token, so that the padding's id may be a piece's, too (CLIP
    pads with 0, which is also "!").

    Args:
      config: Settings.
      length: Longest text of the data.
      vocabulary_size: Number of tokens of the tokenizer.
      pad_id: The token that stands for padding.
      end_id: The token that ends a text; None: there is none.
      output: Size of the rows.
      rngs: Streams; keys come from ``params``.

    Raises:
      ValueError: The configured table is smaller than the data needs, or ``projection="none"``
        and the width is not ``output``.
    """

    def __init__(
        self,
        config: TextTransformerConfig,
        *,
        length: int,
        vocabulary_size: int,
        pad_id: int,
        end_id: int | None = None,
        output: int,
        rngs: nnx.Rngs,
    ):
        self.config, self.pad_id, self.end_id = config, pad_id, end_id
        tokens = table_size("vocabulary_size", config.vocabulary_size, vocabulary_size)
        positions = table_size("length", config.length, length)
        # CLIP: deviations .02 and .01; big_vision (SigLIP): width^-½ for both.
        clip = config.init == "clip"
        width, narrow = config.width, config.width**-0.5
        self.tokens = sharding.parameter(
            rngs, (tokens, width), ("vocab", "embed"), layers.normal(0.02 if clip else narrow)
        )
        self.positions = sharding.parameter(
            rngs, (positions, width), ("position", "embed"), layers.normal(0.01 if clip else narrow)
        )
        self.transformer = Transformer(config, rngs=rngs)
        self.norm = layers.LayerNorm(width, epsilon=config.epsilon, rngs=rngs)
        self.projection = layers.projection(config.projection, width, output, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        *,
        dtype: jnp.dtype,
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch output"]:
        """Rows in ``dtype``, the dtype of the computation. ``keys``: one for each row, for
        dropout; None: no dropout."""
        length, longest = tokens.shape[1], self.positions.shape[0]
        if length > longest:
            raise ValueError(f"texts of {length} tokens; the position table has {longest} rows.")
        x = self._embed(tokens, dtype)
        if keys is not None:
            first, keys = layers.split_row_keys(keys, 2)
            x = layers.drop(
                x, self.config.dropout, *layers.keep_masks(x, self.config.dropout, first)
            )
        mask = text_mask(tokens, self.pad_id, self.end_id)
        if self.config.padding == "read":
            mask = jnp.ones_like(mask)
        x = self.transformer(x, mask=mask[:, None], causal=self.config.causal, keys=keys)
        x = pool(self.norm(x), mask, self.config.pooling)
        return x if self.projection is None else self.projection(x)

    def _embed(self, tokens: jax.Array, dtype: jnp.dtype) -> jax.Array:
        table = sharding.weight(self.tokens, ("vocab", "embed"), tokens, dtype)
        positions = sharding.weight(self.positions, ("position", "embed"), tokens, dtype)
        # Out-of-range ids are the tokenizer's fault; clipping keeps the gather free of NaN fills.
        x = table.at[tokens].get(mode="clip", out_sharding=sharding.rows_like(tokens, 3))
        return x + positions[None, : tokens.shape[1]]


def text_mask(
    tokens: Int[Array, "batch length"],
    pad_id: int,
    end_id: int | None,
    *,
    until: Literal["first", "last"] = "first",
) -> Bool[Array, "batch length"]:
    """Which tokens are text: those up to the first (or last) end token; in a row without one, those
    up to the last that is not padding. An end token that is the padding, too, is the first."""
    text = _from_the_right(tokens != pad_id)
    if end_id is None:
        return text
    if until == "last" and end_id != pad_id:
        last = _from_the_right(tokens == end_id)
        return jnp.where(last[:, :1], last, text)
    ends = (tokens == end_id).astype(jnp.int32)
    before = jnp.cumsum(ends, axis=1) - ends == 0  # no end token further left
    return jnp.where(jnp.any(ends > 0, axis=1, keepdims=True), before, text)


def _from_the_right(x: Bool[Array, "batch length"]) -> Bool[Array, "batch length"]:
    """Whether there is a true entry here or further right."""
    return jnp.flip(jnp.cumsum(jnp.flip(x, 1).astype(jnp.int32), axis=1), 1) > 0


def pool(
    x: Float[Array, "batch length width"], mask: Bool[Array, "batch length"], pooling: Pooling
) -> Float[Array, "batch width"]:
    """One row a text, over the positions where ``mask`` holds; zeros where there is none."""
    if pooling == "mean":
        return layers.masked_mean(x, mask)
    if pooling == "weighted_mean":
        return layers.masked_weighted_mean(x, mask)
    if pooling == "max":
        return layers.masked_max(x, mask)
    if pooling == "last":
        return layers.masked_last(x, mask)
    first = jnp.arange(mask.shape[1])[None] == 0
    return layers.select_position(x, mask & first)


def table_size(name: str, configured: int, needed: int) -> int:
    """Rows of the table that ``model.text.NAME`` sizes: as configured, 0: as the data needs."""
    if configured and configured < needed:
        raise SizeError(f"model.text.{name} = {configured} is configured; the data needs {needed}.")
    return configured or needed
