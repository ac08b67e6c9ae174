"""Walking over the tiles of a block of the matrix: slices, ragged ends, products."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from contrastive.logits.masks import Labels

Tree = TypeVar("Tree")

# Entries of a tile of float32 logits. 1 MiB stays in a core's cache. Larger tiles add to the
# gradients less often: up to 4 MiB where the embeddings of a device are larger still, so that the
# tile stays small beside them; and up to 16 MiB where one side of the tile was asked for.
TILE_ENTRIES = 2**18
_LARGE_TILE_ENTRIES = 2**20
_LONG_TILE_ENTRIES = 2**22


class Side(NamedTuple):
    """Rows (or columns) of the logits: embeddings, labels, and whatever the reduction needs."""

    x: Array
    labels: Labels
    extra: Any = None


@dataclasses.dataclass(frozen=True)
class Blocks:
    """``size`` rows in ``count`` blocks of ``block`` rows each; the last may overlap its neighbour.

    Blocks are as even as possible. Where they don't divide, the last one starts early so that all
    have one shape, and :meth:`take` marks the rows it shares with its neighbour as absent.
    """

    size: int
    block: int
    count: int

    @classmethod
    def cut(cls, size: int, block: int) -> "Blocks":
        """Even blocks of at most ``block`` rows."""
        count = -(-size // min(block, size))
        return cls(size=size, block=-(-size // count), count=count)

    @property
    def ragged(self) -> bool:
        """Whether the last block overlaps its neighbour."""
        return self.block * self.count != self.size

    def start(self, i: Array | int) -> Array | int:
        """First row of block i."""
        return (
            jnp.minimum(i * self.block, self.size - self.block) if self.ragged else i * self.block
        )

    def get(self, tree: Tree, i: Array | int) -> Tree:
        """Block i of every array."""
        if self.count == 1:
            return tree
        start = self.start(i)
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, self.block), tree)

    def put(self, tree: Tree, i: Array | int, block: Tree) -> Tree:
        """``tree`` with block i replaced."""
        if self.count == 1:
            return block
        start = self.start(i)
        update = lax.dynamic_update_slice_in_dim
        return jax.tree.map(lambda x, new: update(x, new, start, 0), tree, block)

    def take(self, side: Side, i: Array | int) -> Side:
        """Block i of a side; rows that belong to the block before are marked absent."""
        taken = self.get(side, i)
        if not self.ragged:
            return taken
        fresh = self.start(i) + jnp.arange(self.block) >= i * self.block
        exists = taken.labels.exists
        exists = fresh if exists is None else exists & fresh
        return taken._replace(labels=taken.labels._replace(exists=exists))


def tile_entries(rows: int, dim: int) -> int:
    """Entries of a tile where nothing was asked for, beside ``rows`` embeddings."""
    return min(max(TILE_ENTRIES, rows * dim // 4), _LARGE_TILE_ENTRIES)


def tile_shape(
    rows: int, columns: int, dim: int, block_rows: int | None, block_cols: int | None
) -> tuple[int, int]:
    """Rows and columns of a tile of a block of ``rows`` by ``columns`` logits."""
    entries = tile_entries(rows, dim)
    if block_rows is None and block_cols is None:
        block_rows = entries // min(columns, math.isqrt(entries))
    elif block_rows is None or block_cols is None:
        entries = max(entries, _LONG_TILE_ENTRIES)
    if block_rows is None:
        block_rows = entries // min(columns, block_cols or columns)
    block_rows = max(1, min(block_rows, rows))
    if block_cols is None:
        block_cols = entries // block_rows
    return block_rows, max(1, min(block_cols, columns))


def loop(count: int, body: Callable[[Array | int, Tree], Tree], init: Tree) -> Tree:
    """``count`` rounds of ``body``; a single one is not a loop."""
    if count == 1:
        return body(0, init)
    return lax.fori_loop(0, count, body, init)


def walk_tiles(
    tile: Callable[[Side, Side, Any, Any], tuple[Any, Any]],
    rows: Side,
    columns: Side,
    row_state: Any,
    column_state: Any,
    block_rows: int,
    block_cols: int,
) -> tuple[Any, Any]:
    """Calls ``tile(rows, columns, row_state, column_state) -> states`` on every tile.

    The states are trees of arrays with one entry per row and per column; each call gets and
    returns its own rows' and columns' part of them.
    """
    down = Blocks.cut(rows.x.shape[0], block_rows)
    across = Blocks.cut(columns.x.shape[0], block_cols)

    def row_block(i: Array | int, states: tuple[Any, Any]) -> tuple[Any, Any]:
        row_state, column_state = states
        r = down.take(rows, i)

        def column_block(j: Array | int, states: tuple[Any, Any]) -> tuple[Any, Any]:
            r_state, column_state = states
            r_state, c_state = tile(
                r, across.take(columns, j), r_state, across.get(column_state, j)
            )
            return r_state, across.put(column_state, j, c_state)

        r_state, column_state = loop(
            across.count, column_block, (down.get(row_state, i), column_state)
        )
        return down.put(row_state, i, r_state), column_state

    return loop(down.count, row_block, (row_state, column_state))


def accumulator(dtype: Any) -> Any:
    """The dtype that logits and gradients are summed in: float32, or float64 for float64."""
    return jnp.dtype(dtype) if jnp.dtype(dtype).itemsize > 4 else jnp.dtype(jnp.float32)


def dot(
    a: Array, b: Array, contract: tuple[int, int], precision: lax.Precision
) -> Float[Array, "rows columns"]:
    """Product of two matrices over the given dimensions, accumulated in float32 (or float64)."""
    return lax.dot_general(
        a,
        b,
        (((contract[0],), (contract[1],)), ((), ())),
        precision=precision,
        preferred_element_type=accumulator(b.dtype),
    )
