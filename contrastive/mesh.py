"""Device meshes: which axes there are, and which of them the batch and the parameters are cut over.

Axes are Explicit (`jax.sharding.AxisType.Explicit`): every array knows its sharding in its type,
and a missing decision is an error when the step is traced, not silent replication.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive.errors import ConfigError

Devices: TypeAlias = Sequence[Any]  # of jax.Device, a name that exists at run time only

# The batch is cut over these; the order is the order of the axes in the mesh, slow links first.
BATCH_AXES = ("slice", "data", "fsdp")

# Where the logical axes of parameters go; see contrastive.towers.LOGICAL_AXES. All others are
# whole. Optimizer moments and moving averages lie where their parameters lie.
PARAMETER_RULES = (("embed", "fsdp"), ("mlp", "tensor"), ("heads", "tensor"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices lie along each axis; -1 takes what is left (at most one axis may say so)."""

    slice: int = 1  # TPU slices, or groups of nodes, with slow links between them: replicas
    data: int = -1  # replicas: each holds all parameters and a part of the batch
    fsdp: int = 1  # parameters, optimizer state and batch are cut over this axis
    tensor: int = 1  # hidden units and heads are cut over this axis, the batch is not

    def __post_init__(self) -> None:
        sizes = dataclasses.astuple(self)
        if sum(size == -1 for size in sizes) > 1 or any(size == 0 or size < -1 for size in sizes):
            raise ConfigError(
                f"config.mesh = {dataclasses.asdict(self)}: sizes are positive, and at most one is "
                "-1 (what is left)."
            )


def make_mesh(config: MeshConfig, devices: Devices) -> Mesh:
    """A mesh with Explicit axes over ``devices``.

    On TPU the inner axes follow the links of the torus, and ``slice`` follows the slices. Elsewhere
    devices are taken in their order, which groups them by process.

    Raises:
      ConfigError: The sizes do not multiply to the number of devices, or ``slice`` is not the
        number of TPU slices.
    """
    sizes = _sizes(config, len(devices))
    return Mesh(
        _arranged(list(sizes.values()), devices),
        tuple(sizes),
        axis_types=(AxisType.Explicit,) * len(sizes),
    )


def check_devices(config: MeshConfig, batch_size: int, count: int) -> None:
    """Raises :class:`ConfigError` unless so many devices make the mesh and share the batch evenly;
    needs no devices."""
    sizes = _sizes(config, count)
    check_batch_divides(batch_size, AbstractMesh(tuple(sizes.values()), tuple(sizes)))


def _sizes(config: MeshConfig, count: int) -> dict[str, int]:
    """How many of ``count`` devices lie along each axis."""
    given = dataclasses.asdict(config)
    fixed = math.prod(size for size in given.values() if size != -1)
    sizes = {axis: count // fixed if size == -1 else size for axis, size in given.items()}
    if math.prod(sizes.values()) != count:
        raise ConfigError(
            f"config.mesh = {given} does not fit {count} devices: the sizes have to multiply to "
            f"{count}, where -1 stands for whatever is left and the others divide {count}."
        )
    return sizes


def _arranged(shape: list[int], devices: Devices) -> np.ndarray:
    if devices[0].platform != "tpu":
        return np.array(devices).reshape(shape)
    groups: dict[int, list[Any]] = {}
    for device in devices:
        groups.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if len(groups) != shape[0]:
        raise ConfigError(
            f"config.mesh.slice = {shape[0]}, but the devices lie in {len(groups)} TPU slice(s); "
            f"set config.mesh.slice={len(groups)}."
        )
    options = {"allow_split_physical_axes": True}
    inner = [
        mesh_utils.create_device_mesh(shape[1:], group, **options)
        for _, group in sorted(groups.items())
    ]
    return np.stack(inner)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The first dimension cut over all batch axes, everything else whole."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_parts(mesh: Mesh | AbstractMesh) -> int:
    """Into how many parts the batch is cut."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_batch_divides(batch_size: int, mesh: Mesh | AbstractMesh) -> None:
    """Raises :class:`ConfigError` unless the batch can be cut evenly over the batch axes."""
    parts = batch_parts(mesh)
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
