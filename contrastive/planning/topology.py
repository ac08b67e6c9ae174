"""Names of machines that a plan can be made for, and their devices: described, not present."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from contrastive.errors import ConfigError, first_line
from contrastive.planning import gpu
from contrastive.planning.chips import CHIPS, Chip
from contrastive.planning.quiet import silenced

FORMS = "v5e:16x16, v5p:8x8x8, v5e:16x16*2 (two slices), h100:8x8 (nodes x GPUs) or cpu:8"
_MOST = 65_536  # devices that are described in reasonable time and memory: more than anyone has
_MOST_CPU = 1024  # these are threads of this process


@dataclasses.dataclass(frozen=True)
class Topology:
    """A machine: its devices, in order, and what each of them can do.

    Attributes:
      name: As given.
      chip: None for CPU devices, of which nothing is known.
      devices: For :func:`contrastive.mesh.make_mesh`.
      capacity_bytes: Memory a device may use.
      unit: Devices that share fast links.
    """

    name: str
    chip: Chip | None
    devices: list[Any]
    capacity_bytes: int
    unit: int


def find_topology(name: str) -> Topology:
    """The machine that ``name`` describes; see :data:`FORMS`.

    Raises:
      ConfigError: The name has another form, there is no such machine, or the compiler for it is
        not installed.
    """
    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)(?:\*(\d+))?", name.strip().lower())
    if not found:
        raise ConfigError(f"--topology={name} is not of the form {FORMS}.")
    kind, sizes = found.group(1), tuple(map(int, found.group(2).split("x")))
    slices = int(found.group(3) or 1)
    known = [*CHIPS, "cpu"]
    if kind not in known:
        raise ConfigError(
            f"--topology={name}: there is no chip {kind!r}; known are {', '.join(known)}."
        )
    if min(*sizes, slices) < 1:
        raise ConfigError(f"--topology={name}: sizes are at least 1.")
    most = _MOST_CPU if kind == "cpu" else _MOST
    if math.prod(sizes) * slices > most:
        raise ConfigError(f"--topology={name}: at most {most:,} devices can be described.")
    if kind == "cpu":
        return _cpu(name, sizes, slices)
    chip = CHIPS[kind]
    if chip.unit:
        return _gpu(name, chip, sizes, slices)
    return _tpu(name, chip, sizes, slices)


def _cpu(name: str, sizes: tuple[int, ...], slices: int) -> Topology:
    if len(sizes) != 1 or slices != 1:
        raise ConfigError(f"--topology={name}: of CPU devices give the number, as in cpu:8.")
    with contextlib.suppress(RuntimeError):  # JAX has started: what it has is what there is
        jax.config.update("jax_num_cpu_devices", sizes[0])
    devices = jax.devices("cpu")
    if len(devices) < sizes[0]:
        raise ConfigError(
            f"--topology={name}: this process has {len(devices)} CPU devices; start a new one."
        )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Topology(name, None, devices[: sizes[0]], memory // sizes[0], sizes[0])


def _tpu(name: str, chip: Chip, sizes: tuple[int, ...], slices: int) -> Topology:
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError(
            f"--topology={name}: the compiler for TPUs is not installed; make env-plan adds it."
        )
    if chip.side is not None and max(sizes) > chip.side:  # the compiler would end the process
        raise ConfigError(
            f"--topology={name}: a slice of {chip.name} has at most {chip.side} chips a side; "
            f"several slices are written {chip.name}:{chip.side}x{chip.side}*2."
        )
    if len(sizes) != chip.sides or math.prod(sizes) > chip.most:
        example = "4x4x8" if chip.sides == 3 else "4x4"
        raise ConfigError(
            f"--topology={name}: a slice of {chip.name} has {chip.sides} sides, as in "
            f"{chip.name}:{example}, and at most {chip.most:,} chips."
        )
    options: dict[str, Any] = {} if slices == 1 else {"num_slices": slices}
    if chip.name == "v4":  # one device a chip, as JAX has it on v4
        options["chip_config_name"] = "megacore"
    shape = "x".join(map(str, sizes))
    try:
        _set_tpu_environment()
        with silenced():
            found = topologies.get_topology_desc(
                platform="tpu", topology_name=f"{chip.name}:{shape}", **options
            )
    except Exception as error:  # the plugin raises bare exceptions
        raise ConfigError(
            f"--topology={name}: the TPU compiler knows no {chip.name} of {shape} chips "
            f"({first_line(error, 160)})."
        ) from error
    devices = list(found.devices)
    return Topology(name, chip, devices, chip.capacity_bytes, len(devices) // slices)


def _gpu(name: str, chip: Chip, sizes: tuple[int, ...], slices: int) -> Topology:
    if len(sizes) != 2 or slices != 1:
        raise ConfigError(f"--topology={name}: of GPUs give nodes x GPUs, as in {chip.name}:8x8.")
    if sizes[1] > chip.most:
        raise ConfigError(
            f"--topology={name}: a node of {chip.name} has at most {chip.most} GPUs; more nodes "
            f"are written {chip.name}:{math.prod(sizes) // chip.most}x{chip.most}."
        )
    devices = gpu.devices(name, chip.name, *sizes)
    return Topology(name, chip, devices, chip.capacity_bytes, sizes[1])


def _set_tpu_environment() -> None:
    """The plugin must not look for TPUs, nor ask the cloud where it runs."""
    wanted = {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    for key, value in wanted.items():
        os.environ.setdefault(key, value)
