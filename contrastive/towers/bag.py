"""Bag-of-tokens text tower: weighted token embeddings, summed, and an MLP on the sum.

With random embeddings and the right weights this is a random projection of TF-IDF, which already
finds most paraphrases that share words; learned embeddings bring words together that mean the same
(fastText: Joulin et al. 2016, https://arxiv.org/abs/1607.01759). It is the tower for many short
texts on a small machine: no product of it grows with the length of the text.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from contrastive.errors import ConfigError, SizeError
from contrastive.towers import layers, sharding
from contrastive.towers.text import text_mask

_PRIME = 0x9E3779B1  # Knuth's multiplicative hash


@dataclasses.dataclass(frozen=True, kw_only=True)
class BagConfig:
    """Settings of :class:`BagTower`."""

    kind: Literal["bag"] = "bag"  # which text tower this is
    width: int = 256  # of the token embeddings
    bigrams: int = 0  # rows of a hashed table for two tokens in a row; 0: none
    hidden: int = 512  # units of the MLP behind the sum; 0: no MLP
    dropout: float = 0.0  # share of a training text's tokens (and bigrams) that are left out
    projection: Literal["linear", "bias", "none"] = "none"  # to the embedding; none: width is it
    epsilon: float = 1e-5  # of the LayerNorm before the MLP

    path: ClassVar[str] = "config.model.text"

    def __post_init__(self):
        for name, least in (("width", 1), ("bigrams", 0), ("hidden", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"{self.path}.{name} = {getattr(self, name)} has to be at least {least}."
                )
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(
                f"{self.path}.dropout = {self.dropout} has to be at least 0 and below 1."
            )
        if self.epsilon <= 0.0:
            raise ConfigError(f"{self.path}.epsilon = {self.epsilon} has to be positive.")


class BagTower(nnx.Module):
    """Tokens ``int32 [batch, length]`` to rows ``[batch, output]``; their order matters only where
    bigrams are counted.

    ``x = n^-½ Σ_t w[t] · E[t]``, then ``x + MLP(norm(x))``, then the projection: n tokens, E the
    table, w a learned weight for each token that starts at 1 (``exp`` of the parameter).

    Args:
      config: Settings.
      length: Longest text of the data; any is read.
      vocabulary_size: Number of tokens of the tokenizer.
      pad_id: The token that stands for padding.
      end_id: The token that ends a text; None: there is none.
      output: Size of the rows.
      rngs: Streams; keys come from ``params``.

    Raises:
      SizeError: ``projection="none"`` and the width is not ``output``.
    """

    def __init__(
        self,
        config: BagConfig,
        *,
        length: int,
        vocabulary_size: int,
        pad_id: int,
        end_id: int | None = None,
        output: int,
        rngs: nnx.Rngs,
    ):
        if length < 1:
            raise SizeError(f"texts of {length} tokens have none.")
        self.config, self.pad_id, self.end_id = config, pad_id, end_id
        width, normal = config.width, layers.normal(config.width**-0.5)
        self.tokens = sharding.parameter(rngs, (vocabulary_size, width), ("vocab", "embed"), normal)
        self.token_bias = sharding.parameter(rngs, (vocabulary_size,), ("vocab",), layers.zeros)
        if config.bigrams:
            shape = config.bigrams, width
            self.bigrams = sharding.parameter(rngs, shape, ("vocab", "embed"), normal)
            self.bigram_bias = sharding.parameter(rngs, shape[:1], ("vocab",), layers.zeros)
        self.mlp = None if not config.hidden else Residual(config, rngs=rngs)
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
        there = text_mask(tokens, self.pad_id, self.end_id)
        x, count = self._sum(self.tokens, self.token_bias, tokens, there, dtype, keys)
        if self.config.bigrams:
            pairs = hashed_bigrams(tokens, self.config.bigrams)
            both = there[:, :-1] & there[:, 1:]
            keys = None if keys is None else jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
            more, number = self._sum(self.bigrams, self.bigram_bias, pairs, both, dtype, keys)
            x, count = x + more, count + number
        x = x * jax.lax.rsqrt(jnp.maximum(count, 1.0)).astype(dtype)[:, None]
        x = x if self.mlp is None else self.mlp(x)
        return x if self.projection is None else self.projection(x)

    def _sum(
        self,
        table: nnx.Param,
        bias: nnx.Param,
        tokens: jax.Array,
        there: jax.Array,
        dtype: jnp.dtype,
        keys: jax.Array | None,
    ) -> tuple[Float[Array, "batch width"], Float[Array, "batch"]]:
        """Weighted embeddings added up, and how many there are."""
        (kept,) = layers.keep_masks(there.astype(dtype), self.config.dropout, keys)
        there = there if kept is None else there & kept
        rows = sharding.weight(table, ("vocab", "embed"), tokens, dtype)
        weights = sharding.weight(bias, ("vocab",), tokens, dtype)
        found = rows.at[tokens].get(mode="clip", out_sharding=sharding.rows_like(tokens, 3))
        weight = weights.at[tokens].get(mode="clip", out_sharding=sharding.rows_like(tokens, 2))
        weight = jnp.where(there, jnp.exp(weight), jnp.zeros_like(weight))
        total = jnp.einsum("bl,blw->bw", weight, found, out_sharding=sharding.rows_like(tokens, 2))
        return total, jnp.sum(there, axis=1, dtype=jnp.float32)


class Residual(nnx.Module):
    """``x + MLP(norm(x))``; the second product starts at zero, so it is x at first."""

    def __init__(self, config: BagConfig, *, rngs: nnx.Rngs):
        width, hidden = config.width, config.hidden
        self.norm = layers.LayerNorm(width, epsilon=config.epsilon, rngs=rngs)
        init = layers.normal(width**-0.5)
        self.rise = layers.Dense(width, hidden, axes=("embed", "mlp"), init=init, rngs=rngs)
        self.fall = layers.Dense(hidden, width, axes=("mlp", "embed"), init=layers.zeros, rngs=rngs)

    def __call__(self, x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
        return x + self.fall(layers.activation("gelu")(self.rise(self.norm(x))))


def hashed_bigrams(tokens: Int[Array, "batch length"], rows: int) -> Int[Array, "batch length1"]:
    """A row of a table for each two tokens in a row: ``(a · p + b) · p mod 2^32``, its high bits
    spread over the rows."""
    a, b = (x.astype(jnp.uint32) for x in (tokens[:, :-1], tokens[:, 1:]))
    prime = jnp.uint32(_PRIME)
    mixed = (a * prime + b + jnp.uint32(1)) * prime
    return ((mixed >> jnp.uint32(8)) % jnp.uint32(rows)).astype(jnp.int32)
