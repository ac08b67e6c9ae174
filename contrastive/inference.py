"""A trained model in use: pictures and texts to unit rows."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Float32, Int32, Shaped
from PIL import Image

from contrastive.building import ModelSettings, initial_towers, judgements
from contrastive.data.config import DataConfig
from contrastive.data.records import SampleError
from contrastive.data.tokenizer import Tokenizer
from contrastive.data.transforms import decode_image, evaluation_image
from contrastive.errors import DataError, UserError
from contrastive.geometry import normalize
from contrastive.mesh import (
    Devices,
    MeshConfig,
    batch_parts,
    batch_sharding,
    make_mesh,
    replicated,
)
from contrastive.objectives import LossConfig
from contrastive.towers import (
    POOLINGS,
    BagConfig,
    MissingTower,
    Role,
    TwoTower,
    TwoTowerConfig,
)
from contrastive.towers.naflex import PLACE

_SHORTEST = 32  # shorter texts are padded to this length, where they may be longer
View: TypeAlias = Literal["image", "judged"] | Role
Picture: TypeAlias = str | os.PathLike | bytes | Image.Image | np.ndarray


class _Settings(NamedTuple):
    """:class:`ModelSettings` of a model that is not quite that of its recipe."""

    data: DataConfig
    model: TwoTowerConfig
    loss: LossConfig
    batch_size: int


class Model:
    """Towers with what they need to read pictures and texts.

    Inputs go through in batches of one fixed size: the last one is padded and the padding dropped,
    so each tower is compiled once. Batches are cut over the devices; where the parameters lie on
    a mesh already (as in training), that mesh is used.

    Args:
      recipe: The settings that the towers were built from.
      towers: The towers.
      tokenizer: Turns texts to ids; None: the model came without one, and takes ids only.
      devices: Where to compute, unless the parameters lie on a mesh; None: where they lie.
      batch_size: Rows that are encoded at a time, rounded up to a multiple of the devices.
      head: Whether the rows of the training head are taken, and not those it was trained on.
      progress: Called after each batch.
    """

    def __init__(
        self,
        recipe: ModelSettings,
        towers: TwoTower,
        tokenizer: Tokenizer | None,
        devices: Devices | None = None,
        *,
        batch_size: int = 256,
        head: bool = False,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.recipe, self.tokenizer, self._progress = recipe, tokenizer, progress
        self._head = towers.head if head else None
        self._log_scale = towers.log_scale[...]
        self._bias = None if towers.bias is None else towers.bias[...]
        self._graphdef, parameters = nnx.split(towers)
        mesh = _mesh_of(parameters)
        if mesh is None:
            mesh = make_mesh(MeshConfig(), _devices_of(parameters) if devices is None else devices)
            parameters = jax.device_put(parameters, replicated(mesh))
        self._mesh, self._parameters = mesh, parameters
        parts = batch_parts(mesh)
        self.batch_size = math.ceil(batch_size / parts) * parts

    @property
    def embedding_dim(self) -> int:
        """Entries of a row."""
        return self.recipe.model.embedding_dim if self._head is None else self._head.outputs

    @property
    def pooler(self) -> str:
        """What makes one row of a text's tokens; ``head`` where the training head follows."""
        if self._head is not None:
            return "head"
        return getattr(self.recipe.model.text, "pooling", "none")

    def pooled(self, pooler: str) -> "Model":
        """The same parameters with another pooling of texts than they were trained with, or
        (``head``) with the head behind the towers that training dropped: rows to compare with.

        Args:
          pooler: ``mean``, ``max``, ``cls``, ``last``, ``weighted_mean``, or ``head``.

        Raises:
          UserError: There is no such pooling, or no head; or the head has batch normalisation,
            which gives no row to a text or picture alone.
        """
        recipe, towers = self.recipe, nnx.merge(self._graphdef, self._parameters)
        if pooler == "head":
            if towers.head is None:
                raise UserError("this model has no head behind its towers: config.model.head.")
            if recipe.model.head.norm == "batch":
                raise UserError(
                    "the head of this model has batch normalisation: its rows depend on the other "
                    "rows of a batch, so a text or picture has none of its own."
                )
        else:
            if pooler not in POOLINGS:
                raise UserError(f"{pooler!r}: choose from {', '.join(POOLINGS)}, head.")
            text = recipe.model.text
            if towers.text is None or text is None or isinstance(text, BagConfig):
                raise UserError(f"this model pools no tokens, so not by {pooler!r}.")
            text = dataclasses.replace(text, pooling=pooler)
            model = dataclasses.replace(recipe.model, text=text)
            recipe = _Settings(recipe.data, model, recipe.loss, recipe.batch_size)
            readers: list[Any] = [towers.text, towers.passage]
            for tower in readers:
                if tower is not None:
                    tower.config = text
        devices = list(self._mesh.devices.flat)
        options = {"batch_size": self.batch_size, "progress": self._progress}
        return Model(recipe, towers, self.tokenizer, devices, head=pooler == "head", **options)

    @property
    def scale(self) -> float:
        """``exp(log_scale)``, what cosines are multiplied with in the loss."""
        return math.exp(float(self._log_scale))

    @property
    def bias(self) -> float | None:
        """The learned logit bias of a sigmoid loss; None where the loss has none."""
        return None if self._bias is None else float(self._bias)

    def encode_image(
        self, images: Picture | Sequence[Picture]
    ) -> Float32[np.ndarray, "images dim"]:
        """Unit rows of pictures, in their order.

        Args:
          images: Paths, encoded bytes, PIL images or uint8 arrays ``[height, width, 3]`` of any
            size; one, or a sequence (a uint8 array ``[n, height, width, 3]`` too). A model of
            pictures of any aspect takes patches ``[n, patches, bytes]`` too.

        Raises:
          MissingTower: The model was trained on texts only.
          DataError: A picture cannot be read; it is named.
          TypeError: Something is not a picture, or an array is not uint8.
        """
        if self.recipe.data.pairs == "texts" or self.recipe.model.image is None:
            raise MissingTower("image")
        data = self.recipe.data
        ready = _ready(images, data)
        several = ready is not None or (isinstance(images, np.ndarray) and images.ndim > 3)
        given: Any = [images] if isinstance(images, Picture) and not several else images

        def read(part: range) -> np.ndarray:
            if ready is not None:
                return ready[part.start : part.stop]
            return np.stack([_read(given[i], data, i) for i in part])

        return self._encode("image", len(given), read)

    def encode_text(
        self, texts: str | Sequence[str] | np.ndarray, *, role: Role = "query"
    ) -> Float32[np.ndarray, "texts dim"]:
        """Unit rows of texts, in their order; token ids with markers and padding are taken too.

        Where padding changes nothing, texts of like lengths go through together and are padded to
        the next power of two only.

        Args:
          texts: One, a sequence or an array of them, or ids ``int [texts, length]``.
          role: Of a model of pairs of texts: whether they are queries or passages. That chooses
            the prefix and, where there are two, the tower.

        Raises:
          MissingTower: There is no text tower.
          UserError: The model reads two texts in one row; or it came without a tokenizer and texts
            are given.
          TypeError: Something is no text, or an array holds neither texts nor ids.
          ValueError: An id is not in the vocabulary, or rows of ids are not of the model's length.
        """
        data = self.recipe.data
        if data.pairs == "views" or self.recipe.model.text is None:
            raise MissingTower("text")
        if data.joined:
            raise UserError(
                "this model reads a query and a passage in one row (config.data.joined) and has no "
                "embedding of one text; judge(queries, passages) scores pairs."
            )
        if isinstance(texts, np.ndarray) and texts.dtype.kind not in "UO":
            ids = self._checked(texts)
            return self._encode(role, len(ids), lambda part: ids[part.start : part.stop])
        given = [texts] if isinstance(texts, str) else list(texts)
        for text in given:
            if not isinstance(text, str):
                raise TypeError(f"{type(text).__name__} is not a text: give strings.")
        prefix = data.query_prefix if role == "query" else data.passage_prefix
        words, tokenizer = [prefix + text for text in given], self.tokenizer
        if tokenizer is None:
            raise UserError(
                "this model came without a tokenizer, so it cannot read texts; give token ids "
                "int32 [texts, length], or put its tokenizer.json beside the weights."
            )
        order = np.arange(len(words))
        most = data.query_length if role == "query" else None
        cuts = tokenizer.length > _SHORTEST and self.recipe.model.masks_padding
        if cuts:
            order = np.argsort([len(text) for text in words], kind="stable")

        def read(part: range) -> np.ndarray:
            ids = tokenizer.encode([words[int(i)] for i in order[part.start : part.stop]], most)
            return ids[:, : _padded_length(ids, tokenizer)] if cuts else ids

        rows = self._encode(role, len(words), read)
        rows[order] = rows.copy()
        return rows

    def judge(
        self, queries: Sequence[str], passages: Sequence[str]
    ) -> Float32[np.ndarray, "pairs judgements"]:
        """What the model says of pairs of texts: logits of ``config.data.fields.labels``, or one
        score, whose sigmoid is the probability that they belong together.

        Args:
          queries: The first text of each pair.
          passages: The second one.

        Raises:
          UserError: The model compares rows and judges no pairs, or came without a tokenizer.
          ValueError: As many passages as queries are expected.
        """
        data, tokenizer, size = self.recipe.data, self.tokenizer, judgements(self.recipe)
        if not size or tokenizer is None:
            raise UserError(
                "this model judges no pairs; train one with config.loss.name = 'classifier' or "
                "'relevance' (configs/sentence_bert.py)."
            )
        if len(queries) != len(passages):
            raise ValueError(f"{len(queries)} queries with {len(passages)} passages.")

        def read(part: range) -> np.ndarray:
            first = [data.query_prefix + queries[i] for i in part]
            second = [data.passage_prefix + passages[i] for i in part]
            if data.joined:
                return tokenizer.encode_joined(first, second).ids[:, None]
            asked = tokenizer.encode(first, data.query_length)
            return np.stack([asked, tokenizer.encode(second)], axis=1)

        return self._encode("judged", len(queries), read, size)

    def _checked(self, ids: np.ndarray) -> Int32[np.ndarray, "texts length"]:
        """Token ids that someone gives, as the tower reads them."""
        if ids.dtype.kind not in "iu" or ids.ndim != 2:
            raise TypeError(
                f"an array {ids.dtype}{list(ids.shape)} holds no texts: strings, or token ids as "
                "whole numbers [texts, length], are expected."
            )
        text, length = self.recipe.model.text, self.recipe.data.text_length
        if text is not None and not self.recipe.model.masks_padding and ids.shape[1] != length:
            raise ValueError(
                f"rows of {ids.shape[1]} ids; this model reads padding, so rows of {length} are "
                "expected, padded as in its training."
            )
        size = 0 if text is None or isinstance(text, BagConfig) else text.vocabulary_size
        size = size or (0 if self.tokenizer is None else self.tokenizer.vocabulary_size)
        if size and ids.size and not 0 <= ids.min() <= ids.max() < size:
            raise ValueError(
                f"token ids from {ids.min()} to {ids.max()}; the vocabulary has 0 … {size - 1}."
            )
        return ids.astype(np.int32)

    def similarity(
        self, a: Float[np.ndarray, "n dim"], b: Float[np.ndarray, "m dim"]
    ) -> Float32[np.ndarray, "n m"]:
        """Cosines of the rows of ``a`` with the rows of ``b``."""
        return np.asarray(normalize(a)) @ np.asarray(normalize(b)).T

    def probability(
        self, a: Float[np.ndarray, "n dim"], b: Float[np.ndarray, "m dim"]
    ) -> Float32[np.ndarray, "n m"]:
        """``sigmoid(scale · cosine + bias)``: how likely each pair belongs together, by itself.

        Raises:
          ValueError: The model has no bias, because its loss was a softmax.
        """
        if self.bias is None:
            raise ValueError(
                "this model has no logit bias, so it gives no probability of a single pair: it was "
                "trained with a softmax loss. Use similarity(), or train with a sigmoid loss."
            )
        logits = self.scale * self.similarity(a, b) + self.bias
        return np.exp(-np.logaddexp(0, -logits)).astype(np.float32)

    def untrained(self, seed: int) -> "Model":
        """The same architecture with fresh parameters: what a number has to beat."""
        if self.tokenizer is None:
            raise UserError(
                "this model came without a tokenizer, so its size before training is not known: "
                "there is no untrained twin to compare it with (--baselines)."
            )
        towers = initial_towers(self.recipe, self.tokenizer, seed)
        devices = list(self._mesh.devices.flat)
        options = {"batch_size": self.batch_size, "progress": self._progress}
        options["head"] = self._head is not None
        return Model(self.recipe, towers, self.tokenizer, devices, **options)

    def _encode(
        self,
        view: View,
        count: int,
        read: Callable[[range], np.ndarray],
        size: int | None = None,
    ) -> np.ndarray:
        rows = np.empty((count, size or self.embedding_dim), np.float32)
        sharding, head = batch_sharding(self._mesh), self._head is not None
        parts = [
            range(start, min(start + self.batch_size, count))
            for start in range(0, count, self.batch_size)
        ]

        def encoded() -> Iterator[tuple[range, jax.Array]]:
            for part in parts:
                padded = _pad(read(part), self.batch_size)
                put = jax.make_array_from_callback(padded.shape, sharding, lambda i, x=padded: x[i])
                yield part, _encode(self._parameters, put, self._graphdef, view, self._mesh, head)

        with jax.set_mesh(self._mesh):
            for part, values in _one_ahead(encoded()):
                rows[part.start : part.stop] = np.asarray(values.addressable_data(0))[: len(part)]
                self._progress()
        return rows


def read_picture(
    picture: Picture, data: DataConfig
) -> Shaped[np.ndarray, "size size 3"] | Shaped[np.ndarray, "patches bytes"]:
    """The pixels of one picture as a tower sees them, by the size and the rule of the data.

    Raises:
      SampleError: It cannot be read or decoded.
      TypeError: It is not a picture.
    """
    shape = data.image_size, data.preprocessing, data.resize
    if isinstance(picture, np.ndarray):
        _check_pixels(picture)
        if not picture.size:
            raise SampleError("image without pixels")
        picture = Image.fromarray(picture)
    if isinstance(picture, Image.Image):
        if 0 in picture.size:
            raise SampleError("image without pixels")
        return evaluation_image(picture, *shape)
    if isinstance(picture, str | os.PathLike):
        try:
            picture = pathlib.Path(picture).read_bytes()
        except OSError as error:
            raise SampleError("unreadable file", error.strerror or str(error)) from error
    if not isinstance(picture, bytes):
        raise TypeError(
            f"{type(picture).__name__} is not a picture: give a path, encoded bytes, a PIL image "
            "or a uint8 array."
        )
    return evaluation_image(decode_image(picture), *shape)


def _ready(images: Any, data: DataConfig) -> np.ndarray | None:
    """An array of pictures as the tower takes them; None where it is something else."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        return None
    form: tuple[int, ...] = data.image_size, data.image_size, 3
    if data.preprocessing == "naflex":
        form = data.patches, 3 * data.resize.patch**2 + PLACE
    return images if images.shape[1:] == form else None


def _read(picture: Any, data: DataConfig, index: int) -> np.ndarray:
    try:
        return read_picture(picture, data)
    except SampleError as error:
        name = picture if isinstance(picture, str | os.PathLike) else f"image {index}"
        raise DataError(f"{os.fspath(name)} cannot be read: {error}.") from error


def _check_pixels(array: np.ndarray) -> None:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != 3:
        raise TypeError(
            f"an array {array.dtype}{list(array.shape)} is not a picture: uint8 [height, width, 3] "
            "with values 0 … 255 is expected."
        )


def _padded_length(ids: np.ndarray, tokenizer: Tokenizer) -> int:
    """The power of two that holds the longest text, so that few programs are compiled. A text may
    go on behind an end token inside it: encoders read up to the last one."""
    used = np.flatnonzero((ids != tokenizer.pad_id).any(axis=0))
    longest = max(used.max(initial=-1) + 1, tokenizer.lengths(ids).max(initial=1))
    return max(_SHORTEST, 1 << (int(longest) - 1).bit_length())


def _pad(rows: np.ndarray, size: int) -> np.ndarray:
    return np.pad(rows, [(0, size - len(rows)), *[(0, 0)] * (rows.ndim - 1)])


@partial(jax.jit, static_argnames=("graphdef", "view", "mesh", "head"))
def _encode(
    parameters: Any,  # nnx.State
    rows: Shaped[Array, "batch ..."],
    graphdef: nnx.GraphDef,
    view: View,
    mesh: Mesh,
    head: bool,
) -> Float32[Array, "batch dim"]:
    towers = nnx.merge(graphdef, parameters)
    if view == "judged":
        roles: tuple[Role, ...] = ("query", "passage")[: rows.shape[1]]
        raw = [towers.encode_text(rows[:, i], role=role) for i, role in enumerate(roles)]
        return jax.sharding.reshard(towers.judge(*raw), NamedSharding(mesh, PartitionSpec()))
    raw = towers.encode_image(rows) if view == "image" else towers.encode_text(rows, role=view)
    raw = towers.head(raw) if head else raw
    return jax.sharding.reshard(normalize(raw), NamedSharding(mesh, PartitionSpec()))


def _one_ahead(items: Iterable[Any]) -> Iterator[Any]:
    """Starts the next item before the last one is used: the host reads while devices compute."""
    waiting = None
    for item in items:
        if waiting is not None:
            yield waiting
        waiting = item
    if waiting is not None:
        yield waiting


def _devices_of(parameters: Any) -> Devices:
    found = {device for leaf in jax.tree.leaves(parameters) for device in leaf.devices()}
    return sorted(found, key=lambda device: device.id)


def _mesh_of(parameters: Any) -> Mesh | None:
    shardings = {leaf.sharding for leaf in jax.tree.leaves(parameters)}
    meshes = {s.mesh for s in shardings if isinstance(s, NamedSharding)}
    if len(meshes) == 1 and all(isinstance(s, NamedSharding) for s in shardings):
        mesh = meshes.pop()
        return mesh if isinstance(mesh, Mesh) else None
    return None
