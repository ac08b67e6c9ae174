"""Parameters that know their logical axes, and how a layer takes a parameter into use.

Every dimension of a parameter has a logical name (:data:`LOGICAL_AXES`). The caller maps names to
mesh axes with rules, under ``nnx.logical_axis_rules(axis_rules(...))``: then a parameter is drawn
where it lives, each device its own part, and ``nnx.get_abstract_model`` reports the same layout.
Without rules everything is replicated, without a mesh the names mean nothing.
"""

import contextvars
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import spmd
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

LOGICAL_AXES = (
    "layers",  # the stacked blocks of a transformer
    "embed",  # the residual stream, or the channels that leave a convolution
    "mlp",  # hidden units of an MLP
    "heads",  # attention heads
    "head_dim",  # entries of one head
    "vocab",  # rows of the token table
    "position",  # rows of a position table
    "patch",  # pixels of a patch
    "channels",  # channels that enter a convolution
    "output",  # the embedding that the towers share
)
"""Every logical axis name that a tower uses."""

# Only these may stay split while a layer computes (tensor parallelism); the rest are storage.
_COMPUTE_AXES = ("mlp", "heads")

Initializer = Callable[..., jax.Array]
"""``(key, shape, dtype, out_sharding) -> array``."""


def axis_rules(
    *rules: tuple[str, str | tuple[str, ...] | None],
) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    """A complete set of rules: the given ones, and replication for every other logical axis.

    Args:
      *rules: ``(logical name, mesh axis, tuple of mesh axes or None)``.

    Raises:
      ValueError: A name is not in :data:`LOGICAL_AXES`, or appears twice.
    """
    given = dict(rules)
    unknown = sorted(set(given) - set(LOGICAL_AXES))
    if unknown:
        raise ValueError(f"logical axes {unknown} are unknown; towers use {LOGICAL_AXES}.")
    if len(given) != len(rules):
        raise ValueError(f"a logical axis has two rules in {rules}.")
    return tuple((name, given.get(name)) for name in LOGICAL_AXES)


def parameter(
    rngs: nnx.Rngs,
    shape: Sequence[int],
    axes: tuple[str | None, ...],
    init: Initializer,
    kind: type[nnx.Param] = nnx.Param,
) -> nnx.Param:
    """A float32 parameter that carries its logical axes and is drawn where its rule puts it.

    Args:
      rngs: Streams; one key is taken from ``params``.
      shape: Its shape.
      axes: A logical name, or None, for each dimension.
      init: The initializer.
      kind: Which kind of parameter.
    """
    if len(axes) != len(shape):
        raise ValueError(f"{len(axes)} axis names {axes} for a parameter of shape {shape}.")
    value = init(rngs.params(), tuple(shape), jnp.float32, _storage_spec(axes))
    # Not Flax's eager sharding: it refuses a named parameter where there is no mesh.
    return kind(value, out_sharding=axes, eager_sharding=False)


def _storage_spec(axes: tuple[str | None, ...]) -> PartitionSpec | None:
    mesh = jax.sharding.get_abstract_mesh()
    rules = dict(spmd.get_logical_axis_rules())
    if not rules or mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return None
    missing = [name for name in axes if name is not None and name not in rules]
    if missing:
        raise ValueError(f"logical axes {missing} have no rule; see towers.axis_rules.")
    return PartitionSpec(*(None if name is None else rules[name] for name in axes))


def weight(
    param: nnx.Param, axes: tuple[str | None, ...], like: jax.Array, dtype: Any = None
) -> jax.Array:
    """The parameter as a layer uses it: cast, and gathered from the devices that hold its parts.

    Hidden units and heads stay cut over mesh axes that do not cut the batch (tensor parallelism).
    The cast comes first, so that bfloat16 compute moves half the bytes.

    Args:
      param: The parameter.
      axes: Its logical axes.
      like: An activation: its rows say how the batch is cut.
      dtype: Of the computation; default: that of ``like``.
    """
    manual = _MANUAL.get()
    if manual is not None:
        return manual.gather(param[...], axes, dtype or like.dtype)
    value = param[...].astype(dtype or like.dtype)
    spec = jax.typeof(value).sharding.spec
    if all(entry is None for entry in spec):
        return value
    busy = set(_flat(jax.typeof(like).sharding.spec[0]))
    kept = [
        entry if name in _COMPUTE_AXES and not busy & set(_flat(entry)) else None
        for name, entry in zip(axes, spec, strict=True)
    ]
    return jax.sharding.reshard(value, PartitionSpec(*kept))


@dataclasses.dataclass(frozen=True)
class _Manual:
    """Where each device computes its own rows: what the batch is cut over, and which logical axes
    of the parameters are cut too."""

    batch: tuple[str, ...]
    cut: Mapping[str, tuple[str, ...]]
    summed: bool = False  # whether parameters have come through :func:`summed_once`

    def of(self, value: jax.Array) -> PartitionSpec:
        """How a parameter is cut, without the axes that cut nothing."""
        axes = {axis for parts in self.cut.values() for axis in parts}
        entries = [tuple(a for a in _flat(e) if a in axes) for e in jax.typeof(value).sharding.spec]
        return PartitionSpec(*(entry or None for entry in entries))

    def gather(self, value: jax.Array, axes: tuple[str | None, ...], dtype: Any) -> jax.Array:
        """The whole parameter, from the devices that hold its parts.

        The order makes the gradient: scattered over the devices that share a parameter in the
        dtype of the computation, and only the part that is left is summed over the replicas, in
        float32.
        """
        over = [self.cut.get(name or "", ()) for name in axes]
        replicas = tuple(a for a in self.batch if all(a not in parts for parts in over))
        if replicas and not self.summed:
            value = lax.pcast(value, replicas, to="varying")
        value = value.astype(dtype)
        for dimension, parts in enumerate(over):
            if parts:
                value = _gathered(value, parts, dimension)
        return value


def _gathered(value: jax.Array, parts: tuple[str, ...], dimension: int) -> jax.Array:
    """The parts of the devices one after another along a dimension.

    They come as the first dimension of an array of their own, which costs nothing and decides how
    the gradient goes back: where they come as a part of another dimension, the TPU compiler sums
    the whole over all devices, twice the bytes, unless that dimension happens to lie first.
    """
    first = jnp.moveaxis(value, dimension, 0)
    stacked = lax.all_gather(first, parts)  # [devices, entries, ...]
    return jnp.moveaxis(stacked.reshape(-1, *first.shape[1:]), 0, dimension)


_MANUAL: contextvars.ContextVar[_Manual | None] = contextvars.ContextVar("manual", default=None)


def is_manual() -> bool:
    """Whether a tower runs under ``shard_map``, on one device's rows."""
    return _MANUAL.get() is not None


def batch_axes() -> tuple[str, ...]:
    """The mesh axes that a sum over this device's rows has to be summed over; none outside of
    ``shard_map``, where a sum is that of all rows."""
    manual = _MANUAL.get()
    return () if manual is None else manual.batch


def parts_of_batch() -> int:
    """How many devices each hold a part of the rows that a layer sees."""
    axes = batch_axes()
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in axes)


def on_rows(tower: nnx.Module, call: Callable[..., jax.Array], *rows: jax.Array | None) -> Any:
    """``call(tower, *rows)``, where each device computes its own rows.

    Where parameters are cut over axes that cut the batch too (FSDP), the tower runs under
    ``shard_map``: left to itself, the compiler sums each gradient whole over all devices and cuts
    it afterwards. Otherwise, or with tensor parallelism, it is a plain call.

    Args:
      tower: The module.
      call: From the tower and this device's rows to its rows of the result.
      *rows: Arrays with the batch as first dimension, cut alike, or None.
    """
    graphdef, state = nnx.split(tower)
    manual = None if is_manual() else _manual(state, rows)
    if manual is None or not manual.cut:
        return call(tower, *rows)
    return _mapped(
        manual, lambda state, *rows: call(nnx.merge(graphdef, state), *rows), state, rows
    )


def summed_once(call: Callable[..., jax.Array], state: Any, *rows: jax.Array | None) -> Any:
    """``call(state, *rows)``, where each device computes its own rows and the gradient of ``state``
    is summed over the replicas once, however often a loop inside ``call`` uses it.

    A plain call where the batch is not cut, and with tensor parallelism.

    Args:
      call: From parameters and this device's rows to its rows of the result; it may run towers.
      state: Parameters, as a tree of NNX Variables, and other arrays.
      *rows: Arrays with the batch as first dimension, cut alike, or None.
    """
    manual = _manual(state, rows)
    if manual is None:
        return call(state, *rows)

    manual = dataclasses.replace(manual, summed=True)
    leaves, tree = jax.tree.flatten(state)
    used = [{axis for entry in manual.of(x) for axis in _flat(entry)} for x in leaves]

    def local(state: Any, *rows: jax.Array | None) -> jax.Array:
        own = [
            lax.pcast(x, tuple(a for a in manual.batch if a not in axes), to="varying")
            if jnp.issubdtype(x.dtype, jnp.floating) and not axes.issuperset(manual.batch)
            else x
            for x, axes in zip(jax.tree.leaves(state), used, strict=True)
        ]
        return call(jax.tree.unflatten(tree, own), *rows)

    return _mapped(manual, local, state, rows)


def _mapped(
    manual: _Manual, call: Callable[..., jax.Array], state: Any, rows: tuple[jax.Array | None, ...]
) -> jax.Array:
    def local(state: Any, *rows: jax.Array | None) -> jax.Array:
        token = _MANUAL.set(manual)
        try:
            return call(state, *rows)
        finally:
            _MANUAL.reset(token)

    # Axes of one device may stand in a type; here they would only make things vary over them.
    state = jax.tree.map(lambda x: jax.sharding.reshard(x, manual.of(x)), state)
    cut = PartitionSpec(manual.batch)
    specs = jax.tree.map(manual.of, state), *(None if x is None else cut for x in rows)
    mapped = jax.shard_map(local, mesh=_rows_sharding(rows).mesh, in_specs=specs, out_specs=cut)
    return mapped(state, *rows)


def _rows_sharding(rows: tuple[jax.Array | None, ...]) -> Any:
    return jax.typeof(next(x for x in rows if x is not None)).sharding


def _manual(state: Any, rows: tuple[jax.Array | None, ...]) -> _Manual | None:
    """How the rows and the parameters are cut; None where the rows are whole, types do not say, or
    parameters are cut over other axes than the rows."""
    sharding = _rows_sharding(rows)
    mesh = sharding.mesh
    if mesh.empty or AxisType.Explicit not in mesh.axis_types or not sharding.spec:
        return None
    batch = _flat(sharding.spec[0])
    if {axis for axis, size in mesh.shape.items() if size > 1} - set(batch):
        return None
    if math.prod(mesh.shape[axis] for axis in batch) == 1:
        return None
    cut: dict[str, tuple[str, ...]] = {}
    for leaf in jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
        if not isinstance(leaf, nnx.Variable):
            continue
        axes = leaf.get_metadata().get("out_sharding") or ()
        entries = jax.typeof(leaf[...]).sharding.spec
        for name, entry in zip(axes, entries, strict=False):
            if name is not None and any(mesh.shape[a] > 1 for a in _flat(entry)):
                cut[name] = _flat(entry)
    if not {a for parts in cut.values() for a in parts} <= set(batch):
        return None
    return _Manual(batch, cut)


def _flat(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def rows_like(x: jax.Array, ndim: int) -> NamedSharding | None:
    """The sharding of an array of ``ndim`` dimensions whose rows lie where the rows of ``x`` lie;
    None where nothing is decided by types (no mesh, or Auto axes)."""
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0], *(None,) * (ndim - 1)))


def repeat_rows(table: jax.Array, like: jax.Array) -> jax.Array:
    """``table [n, width]`` once for each row of ``like``: ``[batch, n, width]``."""
    shape = (like.shape[0], *table.shape)
    return jnp.broadcast_to(table[None], shape, out_sharding=rows_like(like, 3))
