"""The towers of a pair, which share one embedding space: an image tower and a text tower, one text
tower or two, or an image tower alone."""

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, UInt8

from contrastive.errors import ConfigError, UserError
from contrastive.losses import pair_features
from contrastive.pairs import TOWERS, Pairs
from contrastive.towers import layers, sharding
from contrastive.towers.bag import BagConfig, BagTower
from contrastive.towers.convnet import ConvTower, ConvTowerConfig
from contrastive.towers.convnext import ConvNeXt, ConvNeXtConfig
from contrastive.towers.encoder import Encoder, EncoderConfig
from contrastive.towers.head import Head, HeadConfig, PredictorConfig
from contrastive.towers.naflex import PLACE, NaFlexConfig, NaFlexTransformer
from contrastive.towers.resnet import ResNet, ResNetConfig
from contrastive.towers.text import TextTransformer, TextTransformerConfig
from contrastive.towers.vit import VisionTransformer, VisionTransformerConfig

Role = Literal["query", "passage"]
"""Which half of a pair of texts a text is."""
ImageConfig: TypeAlias = (
    ConvTowerConfig | VisionTransformerConfig | ResNetConfig | NaFlexConfig | ConvNeXtConfig
)
TextConfig: TypeAlias = TextTransformerConfig | EncoderConfig | BagConfig
ImageTower: TypeAlias = ConvTower | VisionTransformer | ResNet | NaFlexTransformer | ConvNeXt
TextTower: TypeAlias = TextTransformer | Encoder | BagTower


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoTowerConfig:
    """Settings of :class:`TwoTower`."""

    image: ImageConfig | None = dataclasses.field(
        default_factory=ConvTowerConfig
    )  # the image tower; None: there is none (imported encoders of texts)
    text: TextConfig | None = dataclasses.field(
        default_factory=TextTransformerConfig
    )  # the text tower; None: there is none (imported encoders of pictures)
    # Of pairs of texts: one tower reads both, or passages have a tower of their own (with the same
    # settings and other parameters)
    shared: bool = True
    head: HeadConfig = dataclasses.field(
        default_factory=HeadConfig
    )  # behind the towers in training, dropped afterwards
    predictor: PredictorConfig = dataclasses.field(
        default_factory=PredictorConfig
    )  # behind the head of queries, where a momentum encoder makes the keys
    embedding_dim: int = 128  # size of the embeddings
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; parameters: float32
    pixel_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)  # subtracted from pixels in [0, 1]
    pixel_std: tuple[float, float, float] = (0.5, 0.5, 0.5)  # then divided by this

    def __post_init__(self):
        if self.embedding_dim < 1:
            raise ConfigError(f"model.embedding_dim = {self.embedding_dim} has to be at least 1.")
        if min(self.pixel_std) <= 0.0:
            raise ConfigError(f"model.pixel_std = {self.pixel_std} has to be positive.")
        if self.image is None and self.text is None:
            raise ConfigError("model.image and model.text are both None: there is no tower.")
        for name in ("image", "text"):
            flash = getattr(getattr(self, name), "attention", "xla") == "flash"
            if flash and self.dtype == "float32":
                raise ConfigError(
                    f"model.{name}.attention = 'flash' computes in bfloat16; model.dtype is "
                    f"{self.dtype!r}."
                )

    def check_towers(self, pairs: Pairs) -> None:
        """Raises :class:`ConfigError` where a tower is None that this kind of pair needs."""
        for name in TOWERS[pairs]:
            if getattr(self, name) is None:
                raise ConfigError(
                    f"config.model.{name} = None, but config.data.pairs = {pairs!r} needs a tower "
                    "there; an imported model without one is for use, not for this training."
                )

    @property
    def masks_padding(self) -> bool:
        """Whether padding behind a text changes nothing."""
        if isinstance(self.text, TextTransformerConfig):
            return self.text.padding == "masked"
        return self.text is not None

    def check_pairs(self, pairs: Pairs) -> None:
        """Raises :class:`ConfigError` where something is set that this kind of pair has no use
        for."""
        unused = {
            "captions": ("shared", "head", "predictor"),
            "views": ("text", "shared"),
            "texts": ("image", "pixel_mean", "pixel_std"),
        }
        plain = TwoTowerConfig()
        for name in unused[pairs]:
            if getattr(self, name) not in (getattr(plain, name), None):
                raise ConfigError(
                    f"config.model.{name} has no effect with config.data.pairs = {pairs!r}."
                )
        if self.predictor.layers and self.predictor.output:
            raise ConfigError(
                "config.model.predictor.output has to be 0: queries are compared with keys, which "
                "have the size of the head's rows."
            )


class TwoTower(nnx.Module):
    """Encodes images and texts to raw rows of one space, and holds the learned logit scale.

    A tower that the pairs do not need is None.

    Args:
      config: Settings.
      pairs: What is read; ``captions``: an image tower and a text tower.
      image_size: Side of the images in pixels.
      text_length: Longest text in tokens.
      vocabulary_size: Number of tokens of the tokenizer.
      pad_id: The token that stands for padding.
      end_id: The token that ends a text; None: there is none.
      scale_init: First value of ``exp(log_scale)``: 1/0.07 in CLIP, 10 in SigLIP.
      bias_init: First value of the logit bias (−10 in SigLIP); None: the loss has no bias.
      judgements: Numbers that a pair of texts is judged by: a logit for each label, or one score;
        0: pairs are compared by their rows alone.
      joined: Whether judged texts are one row of ids.
      rngs: Streams; keys come from ``params``.

    Raises:
      SizeError: A tower does not fit the data's sizes.
      ValueError: The scale is not positive.
    """

    def __init__(
        self,
        config: TwoTowerConfig,
        *,
        pairs: Pairs = "captions",
        image_size: int,
        text_length: int,
        vocabulary_size: int,
        pad_id: int,
        end_id: int | None = None,
        scale_init: float = 1 / 0.07,
        bias_init: float | None = None,
        judgements: int = 0,
        joined: bool = False,
        rngs: nnx.Rngs,
    ):
        if scale_init <= 0.0:
            raise ValueError(f"scale_init = {scale_init} has to be positive.")
        self.config = config
        self.pairs: Pairs = pairs
        output = config.embedding_dim
        sizes = {"length": text_length, "vocabulary_size": vocabulary_size}
        sizes |= {"pad_id": pad_id, "end_id": end_id, "output": output}

        def head(config: HeadConfig, inputs: int) -> Head | None:
            return Head(config, inputs, rngs=rngs) if config.layers else None

        def text() -> TextTower | None:
            return None if config.text is None else text_tower(config.text, **sizes, rngs=rngs)

        def image() -> ImageTower | None:
            size = {"size": image_size, "output": output}
            return None if config.image is None else image_tower(config.image, **size, rngs=rngs)

        self.image = image() if "image" in TOWERS[pairs] else None
        self.text = text() if "text" in TOWERS[pairs] else None
        self.passage = text() if pairs == "texts" and not config.shared else None
        self.head = head(config.head, output)
        self.predictor = head(config.predictor, self.head.outputs if self.head else output)
        self.judgement = None if not judgements else _judgement(output, judgements, joined, rngs)
        self.log_scale = nnx.Param(jnp.float32(math.log(scale_init)))
        self.bias = None if bias_init is None else nnx.Param(jnp.float32(bias_init))

    def encode_image(
        self,
        images: UInt8[Array, "batch size size 3"]
        | Float[Array, "batch size size 3"]
        | UInt8[Array, "batch patches bytes"],
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        rows: Int[Array, "batch"] | None = None,
    ) -> Float[Array, "batch dim"]:
        """Raw float32 rows of images.

        Args:
          images: Pixels, uint8 in 0 … 255 or float in [0, 1]; not yet normalised. For a tower of
            any aspect: patches with their places (:mod:`contrastive.towers.naflex`).
          deterministic: No dropout.
          rngs: Streams; one key is taken from ``dropout``. Needed unless deterministic.
          rows: Number of each row in the global batch, for dropout in microbatches: equal keys and
            row numbers give equal masks. Default: 0, 1, 2, …

        Raises:
          ValueError: Dropout is asked for without ``rngs``, or the images have another size.
          MissingTower: There is no image tower.
        """
        if self.image is None:
            raise MissingTower("image")
        keys = _row_keys(images, deterministic, rngs, rows)
        if isinstance(self.image, NaFlexTransformer):
            return self._encode_patches(self.image, images, keys)
        x = self._normalise(images).astype(self.config.dtype)
        y = sharding.on_rows(self.image, lambda tower, x, keys: tower(x, keys=keys), x, keys)
        return y.astype(jnp.float32)

    def encode_text(
        self,
        tokens: Int[Array, "batch length"],
        *,
        role: Role = "query",
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        rows: Int[Array, "batch"] | None = None,
    ) -> Float[Array, "batch dim"]:
        """Raw float32 rows of texts; arguments as in :meth:`encode_image`. ``role`` chooses the
        tower where passages have their own."""
        tower = self.text if role == "query" or self.passage is None else self.passage
        if tower is None:
            raise MissingTower("text")
        keys = _row_keys(tokens, deterministic, rngs, rows)
        dtype = jnp.dtype(self.config.dtype)

        def encode(tower: TextTower, tokens: jax.Array, keys: jax.Array | None) -> jax.Array:
            return tower(tokens, dtype=dtype, keys=keys)

        return sharding.on_rows(tower, encode, tokens, keys).astype(jnp.float32)

    def judge(
        self, first: Float[Array, "batch *k dim"], second: Float[Array, "batch dim"] | None = None
    ) -> Float[Array, "batch *k judgements"]:
        """Logits of the labels, or a score: of the raw rows of both texts by (u, v, |u − v|), or of
        that of the joined text.

        Raises:
          ValueError: The model was not built to judge.
        """
        if self.judgement is None:
            raise ValueError("this model compares rows; it was not built to judge pairs.")
        return self.judgement(first if second is None else pair_features(first, second))

    def _encode_patches(
        self, tower: NaFlexTransformer, images: jax.Array, keys: jax.Array | None
    ) -> jax.Array:
        pixels, places = images[..., :-PLACE], images[..., -PLACE:].astype(jnp.int32)
        b, n, size = pixels.shape
        four, three = sharding.rows_like(images, 4), sharding.rows_like(images, 3)
        x = self._normalise(jax.lax.reshape(pixels, (b, n, size // 3, 3), out_sharding=four))
        x = jax.lax.reshape(x, (b, n, size), out_sharding=three).astype(self.config.dtype)

        def encode(
            tower: NaFlexTransformer, x: jax.Array, places: jax.Array, keys: jax.Array | None
        ) -> jax.Array:
            return tower(x, places, keys=keys)

        return sharding.on_rows(tower, encode, x, places, keys).astype(jnp.float32)

    def _normalise(self, images: jax.Array) -> jax.Array:
        x = images.astype(jnp.float32)
        if images.dtype == jnp.uint8:
            x = x / 255.0
        mean = jnp.array(self.config.pixel_mean, jnp.float32)
        std = jnp.array(self.config.pixel_std, jnp.float32)
        return (x - mean[None, None, None]) / std[None, None, None]


def _judgement(dim: int, judgements: int, joined: bool, rngs: nnx.Rngs) -> layers.Dense:
    inputs = dim if joined else 3 * dim
    init = layers.normal(inputs**-0.5)
    return layers.Dense(inputs, judgements, axes=("output", "output"), init=init, rngs=rngs)


class MissingTower(UserError):
    """Something is to be encoded that the model has no tower for."""

    def __init__(self, tower: Literal["image", "text"]) -> None:
        others = {"image": "texts", "text": "pictures"}[tower]
        super().__init__(f"this model has no {tower} tower; it encodes {others} only.")


def image_tower(config: ImageConfig, *, size: int, output: int, rngs: nnx.Rngs) -> ImageTower:
    """The tower that the settings are of."""
    if isinstance(config, ConvTowerConfig):
        return ConvTower(config, image_size=size, output=output, rngs=rngs)
    if isinstance(config, NaFlexConfig):
        return NaFlexTransformer(config, output=output, rngs=rngs)
    if isinstance(config, ConvNeXtConfig):
        return ConvNeXt(config, image_size=size, output=output, rngs=rngs)
    if isinstance(config, ResNetConfig):
        return ResNet(config, image_size=size, output=output, rngs=rngs)
    return VisionTransformer(config, image_size=size, output=output, rngs=rngs)


def text_tower(config: TextConfig, **sizes: Any) -> TextTower:
    """The tower that the settings are of."""
    if isinstance(config, BagConfig):
        return BagTower(config, **sizes)
    if isinstance(config, EncoderConfig):
        return Encoder(config, **sizes)
    return TextTransformer(config, **sizes)


def _row_keys(
    x: jax.Array, deterministic: bool, rngs: nnx.Rngs | None, rows: jax.Array | None
) -> jax.Array | None:
    if deterministic:
        return None
    if rngs is None:
        raise ValueError("deterministic=False needs rngs: nnx.Rngs(dropout=key).")
    return layers.row_keys(rngs.dropout(), x, rows)


def parameter_count(
    config: TwoTowerConfig, *, image_size: int, text_length: int, vocabulary_size: int
) -> dict[str, int]:
    """Number of parameters of the ``image`` and the ``text`` tower, and in ``total``, without
    allocating any (the logit bias, which depends on the loss, is not counted)."""
    model = nnx.eval_shape(
        lambda: TwoTower(
            config,
            image_size=image_size,
            text_length=text_length,
            vocabulary_size=vocabulary_size,
            pad_id=0,
            rngs=nnx.Rngs(0),
        )
    )

    def count(module: nnx.Module | None) -> int:
        if module is None:
            return 0
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))

    return {"image": count(model.image), "text": count(model.text), "total": count(model)}
