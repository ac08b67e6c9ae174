"""Where the right items stand in the ranking of all items, blockwise over both sides.

For every right item of a query two numbers are counted: how many items score higher, and how many
the same (itself included). Every measure of a ranking follows from these two, with equal scores in
random order, so neither the matrix of scores nor a sorted list is ever held.

One pass of matrix products: the score of a right item is known beforehand, in float64, pair by
pair. Items whose float32 score cannot be told from it are scored again in float64, so that ranks
are those of exact arithmetic, whatever the blocks.

Queries are cut over the devices; panels of both sides lie on a device (``PANEL_BYTES`` each), and
one tile of scores beside them.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from contrastive.errors import MeasureError
from contrastive.evaluation.relevance import Relevance
from contrastive.mesh import Devices

# Two float64 scores closer than this are equal: far above float64 rounding, far below float32's.
TIE = 1e-12
# At most so many float64 numbers are held while pairs are scored again.
PAIR_BUDGET = 1 << 20
# Of a tile's entries, the share above which all of it is scored again, instead of pair by pair.
_DENSE = 1 / 64
# Columns of a tile that are scored and compared before the next ones: their scores stay in cache.
_STRIP = 1024
# Embeddings of each side that lie on a device at a time.
PANEL_BYTES = 1 << 25


class Placement(NamedTuple):
    """Where each right item stands: one entry for each pair of the relevance."""

    greater: Int[np.ndarray, "pairs"]  # items that score higher
    level: Int[np.ndarray, "pairs"]  # items that score the same, itself included


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Sizes of everything that is on a device while items are placed."""

    devices: int
    block_rows: int  # of a tile, on each device
    block_cols: int
    strip: int  # columns of a tile that are scored at a time
    panel_rows: int  # queries on each device
    panel_cols: int  # items on each device
    dim: int

    @classmethod
    def of(
        cls,
        queries: int,
        items: int,
        dim: int,
        *,
        devices: int = 1,
        block_rows: int = 1024,
        block_cols: int = 8192,
    ) -> "Shapes":
        """Panels of whole tiles, as large as is needed or as ``PANEL_BYTES`` allow."""
        rows, cols = _even(-(-queries // devices), block_rows), _even(items, block_cols)
        strip = _even(cols, _STRIP)
        cols = -(-cols // strip) * strip
        most = PANEL_BYTES // (4 * dim)

        def panel(count: int, block: int) -> int:
            return block * max(1, min(-(-count // block), most // block))

        return cls(
            devices,
            rows,
            cols,
            strip,
            panel_rows=panel(-(-queries // devices), rows),
            panel_cols=panel(items, cols),
            dim=dim,
        )

    def memory(self) -> Any:
        """The compiler's account of a device's memory for a tile, panels included."""
        mesh = _mesh(jax.devices()[: self.devices])
        cut, whole = (NamedSharding(mesh, PartitionSpec(*p)) for p in (("rows",), ()))
        shape, rows = jax.ShapeDtypeStruct, self.devices * self.panel_rows
        lowered = _program(mesh, self.block_rows, self.block_cols, self.strip).lower(
            shape((rows, self.dim), np.float32, sharding=cut),
            shape((rows, 1), np.float32, sharding=cut),
            shape((self.panel_cols, self.dim), np.float32, sharding=whole),
            *[shape((), np.int32, sharding=whole)] * 3,
            shape((), np.float32, sharding=whole),
        )
        return lowered.compile().memory_analysis()


def _even(count: int, block: int) -> int:
    """Blocks of about one size, so that the last one is not mostly padding."""
    even = -(-count // -(-count // block))
    return min(block, -(-even // 128) * 128) if even > 1024 else even


def place(
    queries: Float[np.ndarray, "queries dim"],
    gallery: Float[np.ndarray, "items dim"],
    relevance: Relevance,
    *,
    excluded: Relevance | None = None,
    block_rows: int = 1024,
    block_cols: int = 8192,
    devices: Devices | None = None,
) -> Placement:
    """Places the right items of every query among all items by inner product.

    Args:
      queries: Rows to rank for, float32, unit length.
      gallery: Rows to be ranked, float32, unit length. Zero rows score 0.
      relevance: The right items; item −1 is one that is not in the gallery and never found.
      excluded: Items that are left out of a query's ranking (the query itself, say).
      block_rows: Queries of a tile, on each device.
      block_cols: Items of a tile. The result depends on neither.
      devices: The queries are cut over them; None: the default device. Devices of several
        processes: all processes have to call with the same arguments, each ranks its part, and all
        get the whole.

    Raises:
      MeasureError: A row is not finite.
    """
    check_finite(queries, gallery)
    devices = jax.local_devices()[:1] if devices is None else list(devices)
    size = max(1.0, _longest(queries) * _longest(gallery))
    exact = _exact_scores(queries, gallery, relevance)
    greater, level = (np.zeros(len(exact), np.int64) for _ in range(2))
    here = [x for x in devices if x.process_index == jax.process_index()]
    for some in _groups(relevance.counts, devices):
        pairs = relevance.of(some)
        found = _place_group(
            queries[some], gallery, relevance.counts[some], exact[pairs],
            (block_rows, block_cols), here, size,
        )  # fmt: skip
        greater[pairs], level[pairs] = found
    greater, level = _together(devices, greater, level)
    if excluded is not None:
        _leave_out(queries, gallery, relevance, excluded, exact, size, greater, level)
    never = relevance.items < 0
    greater[never], level[never] = np.iinfo(np.int64).max // 4, 1
    return Placement(greater, level)


def check_finite(
    queries: np.ndarray,
    gallery: np.ndarray,
    names: tuple[str, str] = ("query", "gallery item"),
) -> None:
    """Raises MeasureError where a row holds something that is no number."""
    for name, x in zip(names, (queries, gallery), strict=True):
        step = max(1, PAIR_BUDGET // max(x.shape[1], 1))
        for start in range(0, len(x), step):
            bad = np.flatnonzero(~np.isfinite(x[start : start + step]).all(axis=1))
            if len(bad):
                raise MeasureError(
                    f"{name} {start + bad[0]} is not finite ({len(bad)} such rows near it): the "
                    "model's embedding of it holds NaN or infinity."
                )


def _longest(rows: np.ndarray) -> float:
    step = max(1, PAIR_BUDGET // max(rows.shape[1], 1))
    parts = (rows[start : start + step] for start in range(0, len(rows), step))
    return math.sqrt(max((float(np.einsum("nd,nd->n", x, x).max()) for x in parts), default=0.0))


def _exact_scores(
    queries: np.ndarray, gallery: np.ndarray, relevance: Relevance
) -> Float[np.ndarray, "pairs"]:
    """Float64 scores of the right items; −inf of those that are not in the gallery."""
    scores = np.full(len(relevance.items), -np.inf)
    there = np.flatnonzero(relevance.items >= 0)
    rows = relevance.rows
    for part, values in _score_pairs(queries, gallery, rows[there], relevance.items[there]):
        scores[there[part]] = values
    return scores


def _score_pairs(
    queries: np.ndarray, items: np.ndarray, rows: np.ndarray, cols: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Float64 scores of the pairs, a bounded number at a time."""
    step = max(PAIR_BUDGET // max(queries.shape[1], 1), 1)
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        left = queries[rows[part]].astype(np.float64)
        yield part, np.einsum("nd,nd->n", left, items[cols[part]].astype(np.float64))


def _groups(counts: np.ndarray, devices: Any) -> Iterator[np.ndarray]:
    """This process's queries, those with about as many right items together.

    Every query of a tile is compared with as many scores as the one with the most.
    """
    processes = sorted({x.process_index for x in devices})
    mine = np.array_split(np.arange(len(counts)), len(processes))
    own = mine[processes.index(jax.process_index())] if len(processes) > 1 else mine[0]
    classes = np.ceil(np.log2(np.maximum(counts[own], 1)))
    for kind in np.unique(classes[counts[own] > 0]):
        yield own[(classes == kind) & (counts[own] > 0)]


def _together(devices: Any, *counted: np.ndarray) -> list[np.ndarray]:
    """The sum over processes; each counted its own queries."""
    if len({x.process_index for x in devices}) == 1:
        return list(counted)
    from jax.experimental import multihost_utils

    # As 32-bit words: without 64-bit mode JAX would wrap int64 without a word.
    parts = [multihost_utils.process_allgather(x.astype(np.int32)) for x in counted]
    return [np.asarray(part).sum(axis=0, dtype=np.int64) for part in parts]


def _mesh(devices: Any) -> Mesh:
    return Mesh(np.array(devices), ("rows",), axis_types=(AxisType.Auto,))


@functools.lru_cache(maxsize=16)
def _program(mesh: Mesh, rows: int, cols: int, strip: int) -> Any:
    """One tile on every device: counts of what is surely above, and what is too close to call."""

    def local(
        panel: Float[Array, "panel_rows dim"],
        wanted: Float[Array, "panel_rows targets"],
        items: Float[Array, "panel_cols dim"],
        i: Int[Array, ""],
        j: Int[Array, ""],
        valid: Int[Array, ""],
        band: Float[Array, ""],
    ) -> tuple[Array, Array, Array]:
        q = jax.lax.dynamic_slice_in_dim(panel, i * rows, rows)
        t = jax.lax.dynamic_slice_in_dim(wanted, i * rows, rows)

        def one(number: Array) -> tuple[Array, Array, Array]:
            first = j * cols + number * strip
            g = jax.lax.dynamic_slice_in_dim(items, first, strip)
            there = (first + jnp.arange(strip, dtype=jnp.int32) < valid)[None, :]
            above, near = _compare(_scores(q, g), t, there, band)
            return above, near, near.any()

        above, near, some = jax.lax.map(one, jnp.arange(cols // strip, dtype=jnp.int32))
        return jnp.sum(above, axis=0, dtype=jnp.int32), near[None], some[None]

    cut, whole = PartitionSpec("rows"), PartitionSpec()
    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(cut, cut, whole, whole, whole, whole, whole),
        out_specs=(cut, cut, cut),
        check_vma=False,  # nothing is differentiated or summed over devices
    )
    return jax.jit(mapped)


def _scores(q: Array, g: Array) -> Float[Array, "rows cols"]:
    return jax.lax.dot_general(
        q,
        g,
        (((1,), (1,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _compare(
    scores: Float[Array, "rows cols"],
    wanted: Float[Array, "rows targets"],
    there: Bool[Array, "1 cols"],
    band: Float[Array, ""],
) -> tuple[Int[Array, "rows targets"], Bool[Array, "rows cols"]]:
    """What is surely above each wanted score, leaving out what is near any of them."""
    few = wanted.shape[1] <= 8  # written out, so that all is one pass over the scores

    def close(k: Any) -> Array:
        return jnp.abs(scores - _column(wanted, k)) <= band

    near = close(0)
    if few:
        for k in range(1, wanted.shape[1]):
            near |= close(k)
    else:
        near = jax.lax.fori_loop(1, wanted.shape[1], lambda k, near: near | close(k), near)
    near &= there
    sure = there & ~near

    def count(k: Any) -> Array:
        return jnp.sum((scores - _column(wanted, k) > band) & sure, axis=1, dtype=jnp.int32)

    if few:
        return jnp.stack([count(k) for k in range(wanted.shape[1])], axis=1), near
    return jax.lax.map(count, jnp.arange(wanted.shape[1])).T, near


def _column(t: Array, k: Any) -> Array:
    return jax.lax.dynamic_slice_in_dim(t, k, 1, axis=1)


def _place_group(
    queries: np.ndarray,
    gallery: np.ndarray,
    counts: np.ndarray,
    exact: np.ndarray,
    blocks: tuple[int, int],
    devices: Any,
    size: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Counts for all pairs of these queries, whose exact scores are given."""
    shapes = Shapes.of(
        len(queries), len(gallery), queries.shape[1],
        devices=len(devices), block_rows=blocks[0], block_cols=blocks[1],
    )  # fmt: skip
    most = int(counts.max())
    slots = np.arange(most)[None, :] < counts[:, None]
    wanted = np.full(slots.shape, np.inf)
    wanted[slots] = exact
    above, level = (np.zeros(slots.shape, np.int64) for _ in range(2))
    mesh = _mesh(devices)
    cut, whole = (NamedSharding(mesh, PartitionSpec(*p)) for p in (("rows",), ()))
    band = np.float32(4 * size * math.sqrt(shapes.dim) * 2.0**-24)
    per_panel = shapes.devices * shapes.panel_rows
    program = _program(mesh, shapes.block_rows, shapes.block_cols, shapes.strip)
    with jax.set_mesh(mesh):
        for start in range(0, len(queries), per_panel):
            part = slice(start, min(start + per_panel, len(queries)))
            panel = jax.device_put(_pad(queries[part], per_panel), cut)
            aims = wanted[part].astype(np.float32)
            aims = jax.device_put(_pad(aims, per_panel, np.inf), cut)
            for first in range(0, len(gallery), shapes.panel_cols):
                items = gallery[first : first + shapes.panel_cols]
                there = jax.device_put(_pad(items, shapes.panel_cols), whole)
                tiles = _Tiles(shapes, queries[part], items, wanted[part], size)
                for i, j in tiles.numbers():
                    at = (np.int32(x) for x in (i, j, len(items)))
                    tiles.add(i, j, program(panel, aims, there, *at, band))
                above[part] += tiles.above
                level[part] += tiles.level
    return above[slots], level[slots]


class _Tiles:
    """The counts of a panel, from the tiles' as they come; one tile runs ahead of the host."""

    def __init__(
        self,
        shapes: Shapes,
        queries: np.ndarray,
        items: np.ndarray,
        wanted: np.ndarray,
        size: float,
    ) -> None:
        self.shapes, self.queries, self.items, self.wanted = shapes, queries, items, wanted
        self.above, self.level = (np.zeros(wanted.shape, np.int64) for _ in range(2))
        self._tie = TIE * size
        self._last = (0, 0)
        self._waiting: tuple[int, int, Any] | None = None

    def numbers(self) -> Iterator[tuple[int, int]]:
        """The tiles that hold something."""
        shapes = self.shapes
        down = min(
            -(-len(self.queries) // shapes.block_rows), shapes.panel_rows // shapes.block_rows
        )
        across = -(-len(self.items) // shapes.block_cols)
        self._last = down - 1, across - 1
        yield from ((i, j) for i in range(down) for j in range(across))

    def add(self, i: int, j: int, counted: Any) -> None:
        """Takes a tile that is being computed, and reads the one before."""
        before, self._waiting = self._waiting, (i, j, counted)
        if before is not None:
            self._read(*before)
        if (i, j) == self._last:
            self._read(i, j, counted)
            self._waiting = None

    def _read(self, i: int, j: int, counted: Any) -> None:
        shapes = self.shapes
        above, near, some = (np.asarray(x) for x in counted)
        for device in range(shapes.devices):
            first = device * shapes.panel_rows + i * shapes.block_rows
            count = min(shapes.block_rows, len(self.queries) - first)
            if count <= 0:
                continue
            rows = slice(first, first + count)
            self.above[rows] += above[device * shapes.block_rows :][:count]
            for number in np.flatnonzero(some[device]):
                start = j * shapes.block_cols + number * shapes.strip
                items = self.items[start : start + shapes.strip]
                self._again(rows, items, near[device, number, :count])

    def _again(self, rows: slice, items: np.ndarray, near: np.ndarray) -> None:
        """Scores what was too close to call in float64."""
        queries, wanted = self.queries[rows], self.wanted[rows]
        r, c = _nonzero(near)
        if len(r) > near.size * _DENSE:
            scores = queries.astype(np.float64) @ items.astype(np.float64).T
            near = near[:, : len(items)]
            for k in range(wanted.shape[1]):
                gap = scores - wanted[:, k, None]
                self.above[rows, k] += np.sum((gap > self._tie) & near, axis=1)
                self.level[rows, k] += np.sum((np.abs(gap) <= self._tie) & near, axis=1)
            return
        for part, scores in _score_pairs(queries, items, r, c):
            some = r[part]
            gap = scores[:, None] - wanted[some]
            starts = np.flatnonzero(np.diff(some, prepend=-1))
            place = rows.start + some[starts]
            count = functools.partial(np.add.reduceat, indices=starts, axis=0, dtype=np.int64)
            self.above[place] += count(gap > self._tie)
            self.level[place] += count(np.abs(gap) <= self._tie)


def _leave_out(
    queries: np.ndarray,
    gallery: np.ndarray,
    relevance: Relevance,
    excluded: Relevance,
    exact: np.ndarray,
    size: float,
    greater: np.ndarray,
    level: np.ndarray,
) -> None:
    """Takes the excluded items out of the counts."""
    scores = _exact_scores(queries, gallery, excluded)
    for row, item, score in zip(excluded.rows, excluded.items, scores, strict=True):
        own = slice(relevance.starts[row], relevance.starts[row + 1])
        if item < 0:
            continue
        greater[own] -= score - exact[own] > TIE * size
        level[own] -= np.abs(score - exact[own]) <= TIE * size


def _nonzero(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``np.nonzero`` of few: eight entries are looked at together."""
    cols = mask.shape[1]
    flat = np.ascontiguousarray(mask).reshape(-1)
    whole = len(flat) // 8 * 8
    words = np.flatnonzero(flat[:whole].view(np.uint64))
    near = (words[:, None] * 8 + np.arange(8)[None, :]).reshape(-1)
    near = np.concatenate([near[flat[near]], whole + np.flatnonzero(flat[whole:])])
    return near // cols, near % cols


def _pad(x: np.ndarray, size: int, fill: float = 0.0) -> np.ndarray:
    if len(x) == size:
        return x
    padding = [(0, size - len(x)), *[(0, 0)] * (x.ndim - 1)]
    return np.pad(x, padding, constant_values=fill)
