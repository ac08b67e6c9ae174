"""Choosing a partition by what it costs: memory, operations, bytes moved."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from contrastive.logits.partition import LogitPartition
from contrastive.logits.tiles import TILE_ENTRIES, accumulator, tile_entries, tile_shape


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A partition and what forward and backward of a two-way softmax loss cost on each device.

    Attributes:
      partition: The partition.
      bytes: Largest amount of temporary memory, beside embeddings and their gradients.
      flops: Operations of the matrix products.
      bytes_moved: Bytes that each device receives.
      fits: Whether ``bytes`` is within the limit.
    """

    partition: LogitPartition
    bytes: int
    flops: int
    bytes_moved: int
    fits: bool


@dataclasses.dataclass(frozen=True)
class Candidates(Sequence[Candidate]):
    """All partitions that were weighed, fewest operations first; prints as a table."""

    rows: tuple[Candidate, ...]
    chosen: int | None
    title: str

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.rows)

    def __str__(self) -> str:
        lines = [f"{'':2}{'exchange':9}{'tile':>14}{'MiB':>12}{'GFLOP':>12}{'MiB moved':>12}  fits"]
        for number, row in enumerate(self.rows):
            part = row.partition
            tile = "-" if part.exchange == "dense" else f"{part.block_rows}×{part.block_cols}"
            lines.append(
                f"{'→' if number == self.chosen else '':2}{part.exchange:9}{tile:>14}"
                f"{row.bytes / 2**20:>12,.1f}{row.flops / 1e9:>12,.1f}"
                f"{row.bytes_moved / 2**20:>12,.1f}  {'yes' if row.fits else 'no'}"
            )
        return "\n".join([self.title, *lines])


def _tile_work(tile: tuple[int, int], rows: int, columns: int, dim: int, *, halves: bool) -> int:
    """Entries that work on one tile holds: logits and slope, slices of both sides, statistics.

    Numbers of copies as the compiler for CPU needs them for the softmax loss; the sigmoid loss,
    which computes its gradient on the way forward, holds up to half as much again.
    """
    vectors = 4 * (rows + columns)
    if tile != (rows, columns):
        return tile[0] * tile[1] + sum(tile) * dim + vectors
    if halves:  # without loops, work on the two halves of a panel overlaps
        return 3 * tile[0] * tile[1] + sum(tile) * dim + vectors
    return 7 * tile[0] * tile[1] // 5 + vectors


def choose(
    batch: int,
    dim: int,
    *,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None,
    bytes_limit: int,
    dtype: Any,
) -> tuple[LogitPartition, Candidates]:
    """See :meth:`LogitPartition.choose`."""
    devices = 1 if mesh is None else math.prod(mesh.shape.values())
    if batch < 1 or dim < 1 or batch % devices:
        raise ValueError(
            f"batch = {batch}, dim = {dim} on {devices} devices: the batch has to be a positive "
            "multiple of the number of devices, dim positive."
        )
    rows = batch // devices
    size, wide = jnp.dtype(dtype).itemsize, accumulator(dtype).itemsize
    unit = 2 * rows * batch * dim
    embeddings, gradients = rows * dim * size, rows * dim * wide
    away = devices - 1

    def make(exchange: Any, columns: int, held: int, moved: int, entries: int) -> Candidate:
        tile = (None, None)
        if exchange != "dense":
            side = min(math.isqrt(entries), rows)
            tile = tile_shape(rows, columns, dim, side, max(1, entries // side))
            held += wide * _tile_work(tile, rows, columns, dim, halves=exchange == "ring")
        partition = LogitPartition(
            mesh=mesh,
            axes=None if mesh is None else tuple(mesh.axis_names),
            exchange=exchange,
            block_rows=tile[0],
            block_cols=tile[1],
        )
        flops = (3 if exchange == "dense" else 4) * unit
        return Candidate(partition, held, flops, moved, held <= bytes_limit)

    # Embeddings of all devices, where they are not the device's own, and gradients of all columns.
    away_embeddings = devices * embeddings if away else 0
    every = devices * gradients + away_embeddings
    logits = rows * batch * wide
    candidates = [
        make("dense", batch, 3 * logits + every, away * (embeddings + gradients), 0),
    ]
    for entries in (tile_entries(rows, dim), TILE_ENTRIES // 16):
        # One tile is one product, whose results need no account beside it.
        held = away_embeddings if rows * batch <= entries else every
        moved = away * (2 * embeddings + gradients)
        candidates.append(make("gather", batch, held, moved, entries))
        if devices > 1:
            moved = devices * (2 * embeddings + gradients) + gradients
            # The panel here and the one that arrives; the account, half of it twice.
            held = 2 * embeddings + 3 * gradients // 2
            candidates.append(make("ring", -(-rows // 2), held, moved, entries))
    chosen = next((i for i, row in enumerate(candidates) if row.fits), None)
    title = (
        f"batch {batch:,} × {dim} {jnp.dtype(dtype).name} on {devices} devices, limit "
        f"{bytes_limit / 2**20:,.1f} MiB a device"
    )
    table = Candidates(tuple(candidates), chosen, title)
    if chosen is None:
        raise ValueError(f"no partition fits; more devices or a smaller batch will.\n{table}")
    return table[chosen].partition, table
