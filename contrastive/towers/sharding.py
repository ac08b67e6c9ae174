"""Parameters that know their logical axes, and how a layer takes a parameter into use.

Every dimension of a parameter has a logical name (:data:`LOGICAL_AXES`). The caller maps names to
mesh axes with rules, under ``nnx.logical_axis_rules(axis_rules(...))``: then a parameter is drawn
where it lives, each device its own part, and ``nnx.get_abstract_model`` reports the same layout.
Without rules everything is replicated, without a mesh the names mean nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import spmd
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
    rngs: nnx.Rngs, shape: Sequence[int], axes: tuple[str | None, ...], init: Initializer
) -> nnx.Param:
    """A float32 parameter that carries its logical axes and is drawn where its rule puts it.

    Args:
      rngs: Streams; one key is taken from ``params``.
      shape: Its shape.
      axes: A logical name, or None, for each dimension.
      init: The initializer.
    """
    if len(axes) != len(shape):
        raise ValueError(f"{len(axes)} axis names {axes} for a parameter of shape {shape}.")
    value = init(rngs.params(), tuple(shape), jnp.float32, _storage_spec(axes))
    # Not Flax's eager sharding: it refuses a named parameter where there is no mesh.
    return nnx.Param(value, out_sharding=axes, eager_sharding=False)


def _storage_spec(axes: tuple[str | None, ...]) -> PartitionSpec | None:
    mesh = jax.sharding.get_abstract_mesh()
    rules = dict(spmd.get_logical_axis_rules())
    if not rules or mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return None
    missing = [name for name in axes if name is not None and name not in rules]
    if missing:
        raise ValueError(f"logical axes {missing} have no rule; see towers.axis_rules.")
    return PartitionSpec(*(None if name is None else rules[name] for name in axes))


def weight(param: nnx.Param, axes: tuple[str | None, ...], like: jax.Array) -> jax.Array:
    """The parameter in the dtype of ``like``, gathered from the devices that hold its parts.

    Only what splits hidden units or heads over axes that do not split the batch stays split. The
    cast comes first, so that bfloat16 compute moves half the bytes.
    """
    value = param[...].astype(like.dtype)
    spec = jax.typeof(value).sharding.spec
    if all(entry is None for entry in spec):
        return value
    busy = set(_flat(batch_spec(like)[0]))
    kept = [
        entry if name in _COMPUTE_AXES and not busy & set(_flat(entry)) else None
        for name, entry in zip(axes[-value.ndim :], spec, strict=True)
    ]
    return jax.sharding.reshard(value, PartitionSpec(*kept))


def _flat(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def batch_spec(x: jax.Array) -> PartitionSpec:
    """The spec of ``x`` with every dimension but the first replicated."""
    spec = jax.typeof(x).sharding.spec
    return PartitionSpec(spec[0] if spec else None, *(None,) * (x.ndim - 1))


def rows_like(x: jax.Array, ndim: int) -> NamedSharding | None:
    """The sharding of an array of ``ndim`` dimensions whose rows lie where the rows of ``x`` lie;
    None where nothing is decided by types (no mesh, or Auto axes)."""
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0], *(None,) * (ndim - 1)))
