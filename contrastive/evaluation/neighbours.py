"""The k best items of every query, blockwise over both sides."""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from contrastive.errors import UserError
from contrastive.evaluation.placing import check_finite

Method = Literal["exact", "approx", "faiss"]


class Neighbours(NamedTuple):
    """The best items of every query, the best first."""

    items: Int[np.ndarray, "queries k"]
    scores: Float[np.ndarray, "queries k"]


def neighbours(
    queries: Float[np.ndarray, "queries dim"],
    gallery: Float[np.ndarray, "items dim"],
    k: int,
    *,
    method: Method = "exact",
    recall_target: float = 0.95,
    without_self: bool = False,
    block_rows: int = 1024,
    block_cols: int = 8192,
) -> Neighbours:
    """The ``k`` items with the largest inner product of every query.

    Of equal scores the item of the lowest number comes first (``exact``). One tile of scores and
    the best so far are held.

    Args:
      queries: Rows to search for, float32.
      gallery: Rows to search in, float32.
      k: How many; at most as many as there are items.
      method: ``exact``; ``approx``: ``jax.lax.approx_max_k`` in every tile, which is faster on TPU
        (GPU and CPU compute it exactly); ``faiss``: an inverted file of the extra
        ``contrastive[faiss]``, for CPUs. What the last two miss, :func:`recall_of` measures.
      recall_target: Of ``approx`` the share of the best that a tile should find; of ``faiss`` the
        share of the lists that is searched.
      without_self: Query i is item i, which is no neighbour of itself.
      block_rows: Queries in a tile.
      block_cols: Items in a tile.

    Raises:
      ValueError: ``k`` or ``recall_target`` out of range, or a row that is not finite.
      UserError: ``faiss`` is not installed.
    """
    most = len(gallery) - without_self
    if not 1 <= k <= most:
        raise ValueError(f"k = {k}; there are {most} items to choose from.")
    if not 0 < recall_target <= 1:
        raise ValueError(f"recall_target = {recall_target} has to be above 0, and 1 at most.")
    check_finite(queries, gallery)
    if method == "faiss":
        return _by_faiss(queries, gallery, k, recall_target, without_self)
    rows, cols = min(block_rows, max(len(queries), 1)), min(block_cols, len(gallery))
    target = recall_target if method == "approx" else None
    found, scores = (np.empty((len(queries), k), x) for x in (np.int64, np.float32))
    for start in range(0, len(queries), rows):
        part = slice(start, min(start + rows, len(queries)))
        block = jnp.asarray(_padded(queries[part], rows))
        best = jnp.full((rows, k), -jnp.inf), jnp.full((rows, k), -1, jnp.int32)
        own = jnp.asarray(np.int32(start if without_self else -rows))
        for first in range(0, len(gallery), cols):
            items = gallery[first : first + cols]
            at = (jnp.asarray(np.int32(x)) for x in (first, first + len(items)))
            best = _tile(best, block, jnp.asarray(_padded(items, cols)), *at, own, target)
        count = part.stop - part.start
        scores[part], found[part] = (np.asarray(x)[:count] for x in best)
    return Neighbours(found, scores)


def recall_of(
    found: Neighbours,
    queries: Float[np.ndarray, "queries dim"],
    gallery: Float[np.ndarray, "items dim"],
    *,
    sample: int = 1000,
    without_self: bool = False,
    seed: int = 0,
) -> float:
    """Share of the exact best items that an approximate search found, over a sample of queries.

    An item counts as found if its score is at least that of the exact k-th: which of equal items
    is listed does not matter.
    """
    rows = np.sort(np.random.default_rng(seed).permutation(len(queries))[:sample])
    if not len(rows):
        raise ValueError("there are no queries to measure recall on.")
    k = found.items.shape[1]
    if without_self:  # the numbers of the rows have changed: leave the own item out by hand
        exact = neighbours(queries[rows], gallery, k + 1)
        kept = exact.items != rows[:, None]
        kept[kept.all(axis=1), -1] = False
        last = exact.scores[kept].reshape(len(rows), k)[:, -1:]
    else:
        last = neighbours(queries[rows], gallery, k).scores[:, -1:]
    slack = 4 * np.sqrt(queries.shape[1]) * 2.0**-24
    return float(np.mean(found.scores[rows] >= last - slack))


@functools.partial(jax.jit, static_argnames=("target",))
def _tile(
    best: tuple[Float[Array, "rows k"], Int[Array, "rows k"]],
    queries: Float[Array, "rows dim"],
    items: Float[Array, "cols dim"],
    first: Int[Array, ""],
    end: Int[Array, ""],
    own: Int[Array, ""],
    target: float | None,
) -> tuple[Array, Array]:
    scores = jnp.matmul(queries, items.T, precision=jax.lax.Precision.HIGHEST)
    numbers = first + jnp.arange(items.shape[0], dtype=jnp.int32)
    itself = (own + jnp.arange(queries.shape[0], dtype=jnp.int32))[:, None] == numbers[None, :]
    scores = jnp.where((numbers < end)[None, :] & ~itself, scores, -jnp.inf)
    k = min(best[0].shape[1], items.shape[0])
    if target is None:
        values, places = jax.lax.top_k(scores, k)
    else:
        values, places = jax.lax.approx_max_k(scores, k, recall_target=target)
    # Earlier items stand first, so that of equal scores the lowest number wins.
    merged = jnp.concatenate([best[0], values], axis=1)
    which = jnp.concatenate([best[1], first + places.astype(jnp.int32)], axis=1)
    values, places = jax.lax.top_k(merged, best[0].shape[1])
    return values, jnp.take_along_axis(which, places, axis=1)


def _by_faiss(
    queries: np.ndarray, gallery: np.ndarray, k: int, share: float, without_self: bool
) -> Neighbours:
    """An inverted file: the gallery in about √n lists, of which a share is searched."""
    try:
        import faiss  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            "searching with faiss needs its extra: pip install -e '.[faiss]'."
        ) from error
    lists = max(1, round(len(gallery) ** 0.5))
    index: Any = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(gallery.shape[1]), gallery.shape[1], lists, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.min_points_per_centroid = 1
    index.train(gallery)
    index.add(gallery)
    index.nprobe = max(1, round(share * lists))
    scores, items = index.search(queries, k + without_self)
    if without_self:
        kept = items != np.arange(len(queries))[:, None]
        kept[kept.all(axis=1), -1] = False
        scores, items = (x[kept].reshape(len(queries), k) for x in (scores, items))
    return Neighbours(items, np.where(items < 0, -np.inf, scores).astype(np.float32))


def _padded(x: np.ndarray, size: int) -> np.ndarray:
    return x if len(x) == size else np.pad(x, [(0, size - len(x)), (0, 0)])
