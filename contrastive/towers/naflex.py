"""Vision transformer for pictures of any aspect, SigLIP 2's NaFlex (Tschannen et al. 2025,
https://arxiv.org/abs/2502.14786): as many patches as fit, in the picture's own proportions, the
rest of the row masked.

A picture is one row of bytes a patch: its pixels ``(row, column, channel)``, then four numbers that
say where it lies: row, column, and how many rows and columns of patches the picture has. Zeros
there mean that there is no patch.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from contrastive.errors import ConfigError
from contrastive.towers import layers, sharding
from contrastive.towers.transformer import AttentionPool, Transformer, TransformerConfig

PLACE = 4
"""Numbers behind the pixels of a patch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NaFlexConfig(TransformerConfig):
    """Settings of :class:`NaFlexTransformer`, with those of every transformer."""

    kind: Literal["naflex"] = "naflex"  # which image tower this is
    depth: int = 4  # number of blocks
    patch_size: int = 16  # side of a patch in pixels
    grid: int = 16  # side of the learned position table, which every picture stretches to its own

    path: ClassVar[str] = "config.model.image"

    def __post_init__(self):
        super().__post_init__()
        for name in ("patch_size", "grid"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{self.path}.{name} = {getattr(self, name)} has to be positive.")


class NaFlexTransformer(nnx.Module):
    """Patches ``[batch, patches, pixels]``, normalised, with their places, to rows
    ``[batch, output]``; pooling is by attention.

    Args:
      config: Settings.
      output: Size of the rows.
      rngs: Streams; keys come from ``params``.

    Raises:
      SizeError: ``projection="none"`` and the width is not ``output``.
    """

    def __init__(self, config: NaFlexConfig, *, output: int, rngs: nnx.Rngs):
        self.config = config
        width, pixels = config.width, 3 * config.patch_size**2
        init = layers.normal(pixels**-0.5)
        self.patches = layers.Dense(pixels, width, axes=("patch", "embed"), init=init, rngs=rngs)
        shape, axes = (config.grid**2, width), ("position", "embed")
        self.positions = sharding.parameter(rngs, shape, axes, layers.normal(width**-0.5))
        self.transformer = Transformer(config, rngs=rngs)
        self.norm = layers.LayerNorm(width, epsilon=config.epsilon, rngs=rngs)
        self.head = AttentionPool(config, rngs=rngs)
        self.projection = layers.projection(config.projection, width, output, rngs=rngs)

    def __call__(
        self,
        patches: Float[Array, "batch patches pixels"],
        places: Int[Array, "batch patches 4"],
        *,
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch output"]:
        """Rows in the dtype of ``patches``. ``keys``: one for each row, for dropout, or None."""
        mask = places[..., 2] > 0
        x = self.patches(patches)
        table = sharding.weight(self.positions, ("position", "embed"), x, jnp.float32)
        x = x + (place_weights(places, self.config.grid) @ table).astype(x.dtype)
        if keys is not None:
            rate = self.config.dropout
            first, keys = layers.split_row_keys(keys, 2)
            x = layers.drop(x, rate, *layers.keep_masks(x, rate, first))
        x = self.transformer(x, mask=mask[:, None], keys=keys)
        x = self.head(self.norm(x), mask=mask)
        return x if self.projection is None else self.projection(x)


def place_weights(
    places: Int[Array, "batch patches 4"], grid: int
) -> Float[Array, "batch patches places"]:
    """How much of each place of a ``grid × grid`` table is in each patch: the table resized to the
    picture's own grid, bilinear with antialias."""
    row, column = (
        _along(places[..., i].astype(jnp.float32), places[..., i + 2].astype(jnp.float32), grid)
        for i in (0, 1)
    )
    both = row[..., :, None] * column[..., None, :]
    shape = (*places.shape[:2], grid * grid)
    return jax.lax.reshape(both, shape, out_sharding=sharding.rows_like(both, 3))


def _along(at: jax.Array, count: jax.Array, grid: int) -> jax.Array:
    scale = grid / jnp.maximum(count, 1.0)
    centre = (at + 0.5) * scale - 0.5
    source = jnp.arange(grid, dtype=jnp.float32)[None, None]
    away = jnp.abs(source - centre[..., None]) / jnp.maximum(scale, 1.0)[..., None]
    weights = jnp.maximum(1.0 - away, 0.0)
    return weights / jnp.sum(weights, axis=-1, keepdims=True)
