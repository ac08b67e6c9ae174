"""How the matrix of logits is cut over devices and blocks."""

import dataclasses
import math
from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from contrastive.logits.tiles import accumulator, tile_shape

if TYPE_CHECKING:
    from contrastive.logits.choose import Candidates

Exchange = Literal["dense", "gather", "ring"]


@dataclasses.dataclass(frozen=True)
class LogitPartition:
    """How the matrix of logits is cut over devices and blocks.

    Attributes:
      mesh: The devices. None reads them from the inputs' types; inputs that are not cut over
        devices mean one device (blocks still apply).
      axes: The mesh axes that the batch is cut over, slowest links first (a ring goes round the
        last axis before it takes a step on the one before). None reads them from the inputs'
        types, else takes all axes of the mesh.
      exchange: How devices see each other's columns. ``dense`` holds each device's whole row slice
        of the matrix and lets JAX differentiate (3U operations, U = 2·b·B·d; no blocks). ``gather``
        holds all columns but only a tile of logits, and recomputes it in the backward pass (4U).
        ``ring`` sends the columns around, so that memory does not grow with the number of devices.
      block_rows: Rows of a tile of logits. None with None for ``block_cols`` picks tiles of about
        1 MiB of float32, and up to 4 MiB where that is small beside a device's embeddings.
      block_cols: Columns of a tile. Where only one of the two is given, the tile is as long the
        other way as there are logits, up to 16 MiB.
      precision: Of the matrix products. None: the highest for float32 inputs (TPU and GPU would
        use bfloat16 or TF32), native products with float32 sums for bfloat16 inputs.

    Raises:
      ValueError: An exchange, block, axis or precision that does not exist.
      TypeError: A block or precision of another type.
    """

    mesh: Mesh | AbstractMesh | None = None
    axes: tuple[str, ...] | str | None = None
    exchange: Exchange | str = "gather"
    block_rows: int | None = None
    block_cols: int | None = None
    precision: lax.Precision | str | None = None

    def __post_init__(self) -> None:
        if self.exchange not in get_args(Exchange):
            raise ValueError(
                f"exchange = {self.exchange!r}; choose one of {', '.join(get_args(Exchange))}."
            )
        for name in ("block_rows", "block_cols"):
            block = getattr(self, name)
            if block is None:
                continue
            if not isinstance(block, Integral):
                raise TypeError(f"{name} = {block!r} is not a whole number.")
            if block < 1:
                raise ValueError(f"{name} = {block}; a tile has at least one, None chooses.")
        if not isinstance(self.precision, lax.Precision | str | None):
            raise TypeError(f"precision = {self.precision!r} is not a jax.lax.Precision or name.")
        if isinstance(self.precision, str):
            object.__setattr__(self, "precision", lax.Precision(self.precision.lower()))
        if self.axes is None:
            return
        axes = (self.axes,) if isinstance(self.axes, str) else tuple(self.axes)
        object.__setattr__(self, "axes", axes)
        if self.mesh is None:
            raise ValueError(f"axes = {axes} are axes of a mesh; give the mesh too, or neither.")
        unknown = [axis for axis in axes if axis not in self.mesh.axis_names]
        if unknown or len(set(axes)) != len(axes):
            raise ValueError(f"axes = {axes} have to be distinct axes of {self.mesh.axis_names}.")

    @classmethod
    def choose(
        cls,
        batch: int,
        dim: int,
        *,
        mesh: Mesh | AbstractMesh | None,
        bytes_limit: int,
        dtype: Any,
    ) -> "tuple[LogitPartition, Candidates]":
        """The partition with the fewest operations whose temporary memory stays within a limit.

        Costs are those of forward and backward of a two-way softmax loss over all axes of the mesh.

        Args:
          batch: Global batch.
          dim: Length of an embedding.
          mesh: The devices; None is one device.
          bytes_limit: Temporary bytes a device may spend on the loss.
          dtype: Of the embeddings.

        Returns:
          The partition, and all candidates: ``print(candidates)`` shows a table of bytes,
          operations and bytes moved.

        Raises:
          ValueError: A batch that doesn't divide over the devices; nothing fits (with the table).
        """
        from contrastive.logits.choose import choose

        return choose(batch, dim, mesh=mesh, bytes_limit=bytes_limit, dtype=dtype)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A partition made definite for given inputs: what the reductions read."""

    mesh: Mesh | AbstractMesh | None
    axes: tuple[str, ...]
    exchange: str
    block_rows: int | None
    block_cols: int | None
    precision: lax.Precision

    @property
    def devices(self) -> int:
        """Number of parts that the batch is cut into."""
        return 1 if self.mesh is None else math.prod(self.mesh.shape[axis] for axis in self.axes)

    @property
    def cut(self) -> PartitionSpec:
        """First dimension cut over the axes."""
        return PartitionSpec(self.axes)

    def tile(self, rows: Array, columns: Array) -> tuple[int, int]:
        """Shape of a tile of the logits of ``rows [n, dim]`` and ``columns [m, dim]``."""
        size, dim = rows.shape
        return tile_shape(size, columns.shape[0], dim, self.block_rows, self.block_cols)

    def place(self, tree: Any, spec: PartitionSpec) -> Any:
        """Every array of ``tree`` with the given sharding."""
        mesh = self.mesh
        if mesh is None:
            return tree
        explicit = any(kind == AxisType.Explicit for kind in mesh.axis_types)

        def move(x: Array) -> Array:
            whole = PartitionSpec(*spec, *[None] * (x.ndim - len(spec)))
            sharding = NamedSharding(mesh, whole)
            if not explicit:
                return lax.with_sharding_constraint(x, sharding)
            typed = jax.typeof(x).sharding
            if typed.mesh.shape == mesh.shape and typed.spec == whole:
                return x
            moved = jax.sharding.reshard(x, sharding)
            if isinstance(mesh, Mesh) and not typed.mesh.shape:
                # From arrays that know of no mesh, jit would compile for their one device:
                # resharding names axes, and only shard_map names the devices.
                return self.run(lambda part: part, (whole,), whole, moved)
            return moved

        return jax.tree.map(move, tree)

    def run(
        self, function: Callable[..., Any], in_specs: tuple[Any, ...], out_specs: Any, *args: Any
    ) -> Any:
        """``function`` on every device's part of ``args``."""
        if self.mesh is None:
            return function(*args)
        mapped = jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True
        )
        return mapped(*args)

    def flatten(self, x: Array | None) -> Array | None:
        """``[n, k, ...]`` as ``[n·k, ...]``, without moving anything between devices."""
        if x is None:
            return None
        return self.run(lambda part: part.reshape(-1, *part.shape[2:]), (self.cut,), self.cut, x)

    def own(self, tree: Any) -> Any:
        """Marks constants as each device's own, as loop carries have to be."""
        if self.mesh is None:
            return tree
        return lax.pcast(tree, self.axes, to="varying")

    def total(self, tree: Any) -> Any:
        """Sums over all parts."""
        return tree if self.mesh is None else lax.psum(tree, self.axes)

    def part(self) -> Array | int:
        """This device's number among the parts."""
        number: Array | int = 0
        if self.mesh is not None:
            for axis in self.axes:
                number = number * self.mesh.shape[axis] + lax.axis_index(axis)
        return number

    def numbers(self, rows: int) -> Int[Array, " rows"]:
        """The place of each of this device's rows in the global batch."""
        return self.part() * rows + jnp.arange(rows, dtype=jnp.int32)


def _cut_of(x: Array) -> tuple[Mesh | AbstractMesh | None, tuple[str, ...]]:
    """Mesh and axes that the first dimension of ``x`` is cut over, as far as can be known."""
    shardings = [jax.typeof(x).sharding]
    if isinstance(x, jax.Array) and not isinstance(x, Tracer):
        shardings.append(x.sharding)
    for sharding in shardings:
        if not isinstance(sharding, NamedSharding) or not sharding.spec:
            continue
        first = sharding.spec[0]
        if first is not None and first is not PartitionSpec.UNCONSTRAINED:
            return sharding.mesh, (first,) if isinstance(first, str) else tuple(first)
    return None, ()


def is_cut(x: Array) -> bool:
    """Whether the type (or, outside jit, the placement) says that the first dimension is cut."""
    return _cut_of(x)[0] is not None


def check_global(x: Array | np.ndarray) -> None:
    """Raises ValueError inside shard_map, where an array is a device's part of the batch."""
    if any(kind == AxisType.Manual for kind in jax.typeof(x).sharding.mesh.axis_types):
        raise ValueError(
            "Losses take global arrays under jit and cut them themselves; call them outside "
            "shard_map."
        )


def resolve(partition: LogitPartition | None, rows: Array, name: str = "batch") -> Layout:
    """The definite layout for ``rows``.

    Raises:
      ValueError: The rows cannot be cut evenly over the devices, or the call is inside shard_map.
      TypeError: The partition is something else.
    """
    check_global(rows)
    if not isinstance(partition, LogitPartition | None):
        raise TypeError(
            f"partition = {partition!r}; it is a LogitPartition, like "
            'LogitPartition(exchange="ring"), or None.'
        )
    mesh, axes = _cut_of(rows)
    if partition is None:
        partition = LogitPartition(exchange="dense" if mesh is None else "gather")
    if partition.mesh is not None:
        if mesh is None or partition.mesh.shape != mesh.shape:
            axes = ()
        mesh = partition.mesh
        axes = tuple(partition.axes or axes or mesh.axis_names)
    kinds = {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if len(set(kinds.values())) > 1 and any(kinds[a] != AxisType.Explicit for a in axes):
        raise ValueError(
            f"the {name} is cut over axes {axes} of a mesh that mixes {kinds}; make all its axes "
            "Explicit, or all Auto."
        )
    precision = partition.precision
    if precision is None:
        full = accumulator(rows.dtype) == rows.dtype
        precision = lax.Precision.HIGHEST if full else lax.Precision.DEFAULT
    assert isinstance(precision, lax.Precision)
    layout = Layout(
        mesh=mesh,
        axes=axes,
        exchange=partition.exchange,
        block_rows=partition.block_rows,
        block_cols=partition.block_cols,
        precision=precision,
    )
    check_divides(layout, rows.shape[0], name)
    return layout


def check_divides(layout: Layout, rows: int, name: str) -> None:
    """Raises ValueError unless ``rows`` can be cut evenly over the devices."""
    if rows == 0:
        raise ValueError(f"the {name} has no rows.")
    if rows % layout.devices:
        low = rows // layout.devices * layout.devices
        choices = f"{low} or {low + layout.devices}" if low else f"{layout.devices}"
        assert layout.mesh is not None
        raise ValueError(
            f"{name} = {rows} rows cannot be cut evenly over {layout.devices} devices (axes "
            f"{layout.axes} of {dict(layout.mesh.shape)}); {choices} can. Pad, with weight 0 for "
            "the padded rows."
        )
