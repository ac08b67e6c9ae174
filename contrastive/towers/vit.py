"""Vision transformer (Dosovitskiy et al. 2021) as CLIP and SigLIP use it."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from contrastive.errors import ConfigError, SizeError
from contrastive.towers import layers, sharding
from contrastive.towers.positions import sine_positions
from contrastive.towers.transformer import AttentionPool, Transformer, TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionTransformerConfig(TransformerConfig):
    """Settings of :class:`VisionTransformer`, with those of every transformer."""

    kind: Literal["vit"] = "vit"  # which image tower this is
    depth: int = 4  # number of blocks
    patch_size: int = 8  # side of a patch in pixels; has to divide the image size
    pooling: Literal["mean", "cls", "map"] = "mean"  # map: attention with a learned query (SigLIP)
    pre_norm: bool = False  # a LayerNorm before the first block, as CLIP has
    patch_bias: bool = True  # a bias on the patch projection; CLIP has none
    positions: Literal["learned", "sine"] = "learned"  # sine: of both coordinates, fixed (MoCo v3)
    # Learned tokens beside the patches, which no pooling sees: places for what concerns the whole
    # picture (Darcet et al. 2024, https://arxiv.org/abs/2309.16588; 4 there)
    registers: int = 0
    # Share of the patches that a training step sees, others for each image and step: FLIP (Li et
    # al. 2023), 0.5 or 0.25 there. Evaluation sees all.
    keep_patches: float = 1.0

    path: ClassVar[str] = "config.model.image"

    def __post_init__(self):
        super().__post_init__()
        if self.patch_size < 1:
            raise ConfigError(f"{self.path}.patch_size = {self.patch_size} has to be at least 1.")
        if self.registers < 0:
            raise ConfigError(f"{self.path}.registers = {self.registers} cannot be negative.")
        if self.positions == "sine" and self.width % 4:
            raise ConfigError(
                f"{self.path}.positions = 'sine' needs a width that is a multiple of 4, not "
                f"{self.width}."
            )
        if not 0 < self.keep_patches <= 1:
            raise ConfigError(
                f"{self.path}.keep_patches = {self.keep_patches} has to be above 0 and at most 1."
            )


class VisionTransformer(nnx.Module):
    """Images ``[batch, size, size, 3]``, normalised, to rows ``[batch, output]``.

    Args:
      config: Settings.
      image_size: Side of the images in pixels.
      output: Size of the rows.
      rngs: Streams; keys come from ``params``.

    Raises:
      SizeError: The patch size does not divide the image size, or ``projection="none"`` and the
        width is not ``output``.
    """

    def __init__(
        self, config: VisionTransformerConfig, *, image_size: int, output: int, rngs: nnx.Rngs
    ):
        if image_size % config.patch_size:
            raise SizeError(
                f"model.image.patch_size = {config.patch_size} does not divide image_size = "
                f"{image_size}."
            )
        self.config, self.image_size = config, image_size
        width, pixels = config.width, 3 * config.patch_size**2
        narrow = layers.normal(width**-0.5)
        clip = config.init == "clip"
        self.patches = layers.Dense(
            pixels,
            width,
            axes=("patch", "embed"),
            # PyTorch's convolutions, which CLIP leaves as they are, and Flax's
            init=layers.uniform(pixels**-0.5) if clip else layers.normal(pixels**-0.5),
            bias=layers.zeros if config.patch_bias else None,
            rngs=rngs,
        )

        def table(rows: int, init: sharding.Initializer = narrow) -> nnx.Param:
            return sharding.parameter(rngs, (rows, width), ("position", "embed"), init)

        def norm() -> layers.LayerNorm:
            return layers.LayerNorm(width, epsilon=config.epsilon, rngs=rngs)

        classes = 1 if config.pooling == "cls" else 0
        self.class_token = table(1, narrow if clip else layers.zeros) if classes else None
        self.side = image_size // config.patch_size
        learned = config.positions == "learned"
        self.positions = table(self.side**2 + classes) if learned else None
        self.registers = table(config.registers, layers.normal(1e-6)) if config.registers else None
        self.norm_before = norm() if config.pre_norm else None
        self.transformer = Transformer(config, rngs=rngs)
        self.norm = norm()
        self.head = AttentionPool(config, rngs=rngs) if config.pooling == "map" else None
        self.projection = layers.projection(config.projection, width, output, rngs=rngs)

    def __call__(
        self, images: Float[Array, "batch size size 3"], *, keys: Key[Array, "batch"] | None = None
    ) -> Float[Array, "batch output"]:
        """Rows in the dtype of ``images``, the dtype of the computation. ``keys``: one for
        each row, for dropout and the choice of patches; None: no dropout, and all patches."""
        if images.shape[1:3] != (self.image_size, self.image_size):
            raise ValueError(
                f"images of {images.shape[1:3]} pixels; the tower is built for {self.image_size}."
            )
        x = self._embed(patchify(images, self.config.patch_size), keys)
        if keys is not None:
            first, keys = layers.split_row_keys(keys, 2)
            x = layers.drop(
                x, self.config.dropout, *layers.keep_masks(x, self.config.dropout, first)
            )
        if self.norm_before is not None:
            x = self.norm_before(x)
        x = self.transformer(x, keys=keys)
        if self.registers is not None:
            x = x[:, : x.shape[1] - self.config.registers]
        x = self._pool(self.norm(x))
        return x if self.projection is None else self.projection(x)

    def _embed(self, patches: jax.Array, keys: jax.Array | None) -> jax.Array:
        """Patches to width, with their positions, behind the class token and before registers."""
        count = kept_patches(patches.shape[1], self.config.keep_patches)
        chosen = None
        if keys is not None and count < patches.shape[1]:
            chosen = choose_patches(patches, count, jax.vmap(_patch_key)(keys))
            patches = take_patches(patches, chosen)
        x = self.patches(patches)
        first, positions = self._positions(x)
        if chosen is not None:
            where = sharding.rows_like(chosen, 3)
            x = x + positions.at[chosen].get(mode="clip", out_sharding=where)
        else:
            x = x + positions[None]

        def used(table: nnx.Param) -> jax.Array:
            return sharding.weight(table, ("position", "embed"), x)

        if self.class_token is not None:
            token = used(self.class_token)
            token = token if first is None else token + first
            x = jnp.concatenate([sharding.repeat_rows(token, x), x], axis=1)
        if self.registers is not None:
            x = jnp.concatenate([x, sharding.repeat_rows(used(self.registers), x)], axis=1)
        return x

    def _positions(self, x: jax.Array) -> tuple[jax.Array | None, jax.Array]:
        """Of the class token (None: it has none) and of the patches."""
        if self.positions is None:
            fixed = sine_positions(self.side, self.side, self.config.width)
            return None, jnp.asarray(fixed, x.dtype)
        table = sharding.weight(self.positions, ("position", "embed"), x)
        first = table.shape[0] - self.side**2
        return table[:first] if first else None, table[first:]

    def _pool(self, x: jax.Array) -> jax.Array:
        if self.head is not None:
            return self.head(x)
        return x[:, 0] if self.class_token is not None else layers.masked_mean(x, None)


def kept_patches(patches: int, share: float) -> int:
    """How many patches a training step sees: their share, rounded, and at least one."""
    return max(round(patches * share), 1)


def _patch_key(key: jax.Array) -> jax.Array:
    """Apart from the keys that dropout splits off."""
    return jax.random.fold_in(key, 0x466C6970)


def choose_patches(
    patches: Float[Array, "batch patches width"], count: int, keys: Key[Array, "batch"]
) -> Int[Array, "batch count"]:
    """``count`` different patches of each image, drawn evenly from its key, in their order."""

    def choose(key: jax.Array) -> jax.Array:
        return jnp.sort(jnp.argsort(jax.random.uniform(key, (patches.shape[1],)))[:count])

    return jax.vmap(choose)(keys)


def take_patches(
    x: Float[Array, "batch patches width"], chosen: Int[Array, "batch count"]
) -> Float[Array, "batch count width"]:
    """The chosen rows of each image."""
    return jax.vmap(lambda rows, numbers: rows[numbers])(x, chosen)


def patchify(
    images: Float[Array, "batch height width channels"], size: int
) -> Float[Array, "batch patches pixels"]:
    """Non-overlapping squares of ``size`` pixels in row-major order, each flattened as
    ``(row, column, channel)``: a convolution with stride ``size`` is then one product."""
    b, h, w, c = images.shape
    rows, columns = h // size, w // size
    six, three = sharding.rows_like(images, 6), sharding.rows_like(images, 3)
    x = jax.lax.reshape(images, (b, rows, size, columns, size, c), out_sharding=six)
    x = x.transpose(0, 1, 3, 2, 4, 5)
    return jax.lax.reshape(x, (b, rows * columns, size * size * c), out_sharding=three)
