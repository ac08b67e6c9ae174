"""Machines in the planner's words, and what clouds call them."""

import dataclasses
import math
import re

from contrastive.errors import ConfigError

# How long a collective between GPUs may take before NCCL ends the process: longer than the own
# watchdog of a run is patient, which names the host that hangs.
COLLECTIVES = "--xla_gpu_nccl_termination_timeout_seconds=2400"
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SMALL_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")  # beyond these, multiples of 4


@dataclasses.dataclass(frozen=True)
class Kind:
    """One accelerator in the words of Google Cloud.

    Attributes:
      selector: The value of GKE's node label.
      prefix: Of the accelerator type of a TPU VM; empty for GPUs.
      count: What an accelerator type counts, a chip: 1, or 2 cores.
      runtime: The software of a TPU VM.
      cubic: A topology has three sides.
    """

    selector: str
    prefix: str = ""
    count: int = 1
    runtime: str = ""
    cubic: bool = False


KINDS = {
    "v4": Kind("tpu-v4-podslice", "v4", 2, "tpu-ubuntu2204-base", cubic=True),
    "v5e": Kind("tpu-v5-lite-podslice", "v5litepod", 1, "v2-alpha-tpuv5-lite"),
    "v5p": Kind("tpu-v5p-slice", "v5p", 2, "v2-alpha-tpuv5", cubic=True),
    "v6e": Kind("tpu-v6e-slice", "v6e", 1, "v2-alpha-tpuv6e"),
    "h100": Kind("nvidia-h100-mega-80gb"),
    "h200": Kind("nvidia-h200-141gb"),
}


@dataclasses.dataclass(frozen=True)
class Machine:
    """Slices of TPUs, or nodes of GPUs.

    Attributes:
      name: As given, such as ``v5e:16x16*2`` or ``h100:8x8``.
      chip: The key of :data:`KINDS`.
      shape: Of a slice, or nodes and GPUs.
      slices: How many; 1 for GPUs.
    """

    name: str
    chip: str
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def kind(self) -> Kind:
        return KINDS[self.chip]

    @property
    def tpu(self) -> bool:
        return bool(self.kind.prefix)

    @property
    def sides(self) -> str:
        """As clouds write the topology of a slice: ``16x16``."""
        return "x".join(map(str, self.shape))

    @property
    def chips_per_host(self) -> int:
        """TPU chips, or GPUs, of one machine."""
        chips = math.prod(self.shape)
        if not self.tpu:
            return self.shape[1]
        return chips if chips <= 8 and not self.kind.cubic else min(chips, 4)

    @property
    def hosts(self) -> int:
        """Of one slice."""
        return math.prod(self.shape) // self.chips_per_host

    @property
    def devices(self) -> int:
        """Over all slices."""
        return math.prod(self.shape) * self.slices

    @property
    def accelerator_type(self) -> str:
        """Of a TPU VM: ``v5litepod-256``."""
        return f"{self.kind.prefix}-{math.prod(self.shape) * self.kind.count}"


def parse_machine(name: str, option: str = "--on.topology") -> Machine:
    """The machine that ``name`` describes.

    Raises:
      ConfigError: It has another form, or nobody sells such a machine.
    """
    forms = "v5e:16x16, v5p:8x8x8, v5e:16x16*2 (two slices) or h100:8x8 (nodes x GPUs)"
    found = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)(?:\*(\d+))?", name.strip().lower())
    if not found:
        raise ConfigError(f"{option}={name} is not of the form {forms}.")
    chip, slices = found[1], int(found[3] or 1)
    if chip not in KINDS:
        raise ConfigError(f"{option}={name}: there is no {chip!r}; known are {', '.join(KINDS)}.")
    machine = Machine(name, chip, tuple(map(int, found[2].split("x"))), slices)
    if slices < 1 or min(machine.shape) < 1:
        raise ConfigError(f"{option}={name}: sizes are at least 1.")
    if not machine.tpu:
        if len(machine.shape) != 2 or slices != 1:
            raise ConfigError(f"{option}={name}: of GPUs give nodes x GPUs, as in {chip}:8x8.")
        if machine.shape[1] not in (1, 2, 4, 8):
            raise ConfigError(f"{option}={name}: nodes of {chip} have 1, 2, 4 or 8 GPUs.")
    elif machine.kind.cubic:
        large = len(machine.shape) == 3 and all(side % 4 == 0 for side in machine.shape)
        if not large and machine.sides not in _SMALL_CUBES:
            raise ConfigError(
                f"{option}={name}: slices of {chip} are {', '.join(_SMALL_CUBES)}, or have three "
                "sides that 4 divides, such as 4x4x8."
            )
    elif machine.sides not in _FLAT:
        raise ConfigError(f"{option}={name}: slices of {chip} are {', '.join(_FLAT)}.")
    return machine
