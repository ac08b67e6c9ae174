"""How the matrix of logits is cut over devices and blocks."""

import dataclasses
from typing import Literal

import jax


@dataclasses.dataclass(frozen=True)
class LogitPartition:
    """How the matrix of logits is cut over devices and blocks.

    Attributes:
      mesh: The devices; None is one device (blocks still apply).
      axes: The mesh axes that the batch is cut over, outermost first.
      exchange: ``dense`` holds the matrix whole, ``gather`` one row slice per device with the
        columns gathered, ``ring`` sends one side around.
      block_rows: Rows of a tile; None picks tiles of about 1 MiB.
      block_cols: Columns of a tile; None picks tiles of about 1 MiB.
      precision: Of the matrix products; None is the highest for float32, native for bfloat16.
    """

    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None
    axes: tuple[str, ...] | None = None
    exchange: Literal["dense", "gather", "ring"] = "gather"
    block_rows: int | None = None
    block_cols: int | None = None
    precision: jax.lax.Precision | str | None = None
