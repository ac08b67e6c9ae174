"""Device meshes: which axes there are, and which of them the batch and the parameters are cut over.

Axes are Explicit (`jax.sharding.AxisType.Explicit`): every array knows its sharding in its type,
and a missing decision is an error when the step is traced, not silent replication.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive.errors import ConfigError

Devices: TypeAlias = Sequence[Any]  # of jax.Device, a name that exists at run time only

# The batch is cut over these; the order is the order of the axes in the mesh.
BATCH_AXES = ("data", "fsdp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices lie along each axis; -1 takes what is left (at most one axis may say so)."""

    data: int = -1  # replicas: each holds all parameters and a part of the batch
    fsdp: int = 1  # parameters, optimizer state and batch are cut over this axis

    def __post_init__(self) -> None:
        sizes = dataclasses.astuple(self)
        if sum(size == -1 for size in sizes) > 1 or any(size == 0 or size < -1 for size in sizes):
            raise ConfigError(
                f"config.mesh = {dataclasses.asdict(self)}: sizes are positive, and at most one is "
                "-1 (what is left)."
            )


def make_mesh(config: MeshConfig, devices: Devices) -> Mesh:
    """A mesh with Explicit axes over ``devices``.

    Raises:
      ConfigError: The sizes do not multiply to the number of devices.
    """
    sizes = dataclasses.asdict(config)
    fixed = math.prod(size for size in sizes.values() if size != -1)
    shape = [len(devices) // fixed if size == -1 else size for size in sizes.values()]
    if math.prod(shape) != len(devices):
        raise ConfigError(
            f"config.mesh = {sizes} does not fit {len(devices)} devices; the sizes have to "
            f"multiply to {len(devices)}, or one of them has to be -1."
        )
    return Mesh(
        np.array(devices).reshape(shape), tuple(sizes), axis_types=(AxisType.Explicit,) * len(shape)
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The first dimension cut over all batch axes, everything else whole."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch_divides(batch_size: int, mesh: Mesh) -> None:
    """Raises :class:`ConfigError` unless the batch can be cut evenly over the batch axes."""
    parts = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
    if batch_size % parts:
        low, high = batch_size // parts * parts, -(-batch_size // parts) * parts
        choices = f"{high}" if low == 0 else f"{low} or {high}"
        raise ConfigError(
            f"config.batch_size = {batch_size} cannot be cut evenly over {parts} devices "
            f"({dict(mesh.shape)}); {choices} can."
        )


def run_once_options(device: Any) -> dict[str, int] | None:
    """Compiler options for a program that runs once: on CPU, optimising it costs more than it
    saves."""
    return {"xla_backend_optimization_level": 0} if device.platform == "cpu" else None
