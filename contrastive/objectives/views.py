"""The views of a pair: which entries of a batch they are, and which tower reads them."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Shaped

from contrastive.geometry import normalize
from contrastive.microbatches import encode_rows
from contrastive.towers import Pairs, Role, TwoTower
from contrastive.towers.sharding import rows_like

Batch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class View:
    """One view of each pair.

    Attributes:
      field: Its entry in a batch, ``[batch, ...]``, or ``[batch, k, ...]`` where a pair has k.
      tower: Which tower reads it.
      role: For texts, which half of the pair it is.
      several: Whether a pair may have several.
    """

    field: str
    tower: Literal["image", "text"]
    role: Role = "query"
    several: bool = False


# The two halves of each kind of pair, then what may come with them. The place of a view is part of
# the key of its dropout.
VIEWS: dict[Pairs | Literal["joined"], tuple[View, ...]] = {
    "captions": (View("image", "image"), View("text", "text")),
    "views": (
        View("view_a", "image"),
        View("view_b", "image"),
        View("crops", "image", several=True),
    ),
    "texts": (
        View("query", "text"),
        View("positive", "text", "passage"),
        View("negatives", "text", "passage", several=True),
    ),
    "joined": (View("joined", "text"), View("joined_negatives", "text", several=True)),
}
# How metrics call the ways from one half to the other.
WAYS: dict[Pairs, tuple[str, str]] = {
    "captions": ("image_to_text", "text_to_image"),
    "views": ("a_to_b", "b_to_a"),
    "texts": ("query_to_positive", "positive_to_query"),
}


def encode_view(
    model: TwoTower,
    batch: Batch,
    pairs: Pairs | Literal["joined"],
    place: int,
    key: jax.Array,
    *,
    microbatches: int = 1,
    predict: bool = False,
    unit: bool = True,
) -> Float[Array, "batch *k dim"]:
    """Unit rows of one view, as the loss compares them: behind the head, where there is one.

    The dropout of the view at place n takes the (n + 1)-th key of the stream of ``key``, in every
    chunk: the row's number makes the difference. So two views of the same text differ.

    Args:
      model: The towers.
      batch: Has the view's field.
      pairs: The kind of pairs.
      place: Of the view in :data:`VIEWS`.
      key: Of the step.
      microbatches: Chunks that the tower runs in.
      predict: Whether the predictor follows the head.
      unit: Whether rows are brought to unit length.
    """
    view = VIEWS[pairs][place]
    x = batch[view.field]
    several = x.shape[1] if view.several else 0
    if several:
        x = _merge(x)
        microbatches *= several if microbatches > 1 else 1  # chunks of as many rows
    rows = encode_rows(*_encoder(model, view, place, key), x, microbatches)
    exists = batch.get("weight")
    if several and exists is not None:
        exists = _merge(jnp.broadcast_to(exists[:, None], (len(exists), several)))
    for head in (model.head, model.predictor if predict else None):
        rows = rows if head is None else head(rows, exists)
    rows = normalize(rows) if unit else rows
    return _divide(rows, several) if several else rows


def _encoder(
    model: TwoTower, view: View, place: int, key: jax.Array
) -> tuple[Callable[[Any, Array, Array], Array], Any]:
    graphdef, parameters = nnx.split(model)

    def encode(arrays: Any, x: Array, rows: Array) -> Array:
        parameters, key = arrays
        rngs = nnx.Rngs(dropout=key)
        for _ in range(place):
            rngs.dropout()
        model = nnx.merge(graphdef, parameters)
        options: Any = {"deterministic": False, "rngs": rngs, "rows": rows}
        if view.tower == "image":
            return model.encode_image(x, **options)
        return model.encode_text(x, role=view.role, **options)

    return encode, (parameters, key)


def _merge(x: Shaped[Array, "batch k ..."]) -> Shaped[Array, "rows ..."]:
    """The k views of each pair, one after another."""
    shape = (x.shape[0] * x.shape[1], *x.shape[2:])
    return jax.lax.reshape(x, shape, out_sharding=rows_like(x, len(shape)))


def _divide(x: Shaped[Array, "rows ..."], k: int) -> Shaped[Array, "batch k ..."]:
    shape = (x.shape[0] // k, k, *x.shape[1:])
    return jax.lax.reshape(x, shape, out_sharding=rows_like(x, len(shape)))
