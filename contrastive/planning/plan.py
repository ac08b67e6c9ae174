"""A plan: does a recipe fit on a machine, what moves between the chips, how long would it take."""

import dataclasses
import math
from typing import Any

from contrastive.mesh import BATCH_AXES
from contrastive.pairs import TOWERS
from contrastive.planning.chips import Chip
from contrastive.planning.collectives import Collective, collectives
from contrastive.planning.compile import Compiled, compile_step
from contrastive.planning.hlo import memory_traffic
from contrastive.planning.topology import Topology
from contrastive.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds of one step by a roofline, from published peaks: an estimate, not a measurement.

    Attributes:
      compute: All products at the chip's peak.
      memory: All traffic between chip and memory at its bandwidth (an estimate from above).
      network: All bytes sent at the bandwidth of the links that they take.
      step: The largest of the three: everything else overlaps with it.
      step_without_overlap: Their sum.
    """

    compute: float
    memory: float
    network: float

    @property
    def step(self) -> float:
        return max(self.compute, self.memory, self.network)

    @property
    def step_without_overlap(self) -> float:
        return self.compute + self.memory + self.network


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that ``contrastive plan`` says."""

    recipe: Recipe
    topology: Topology
    compiled: Compiled
    collectives: list[Collective]
    estimate: Estimate | None  # None where the program does not fit or the chip is unknown
    advice: list[str]

    @property
    def fits(self) -> bool:
        """Whether the step fits into the memory of a device."""
        return self.compiled.module is not None and (
            self.compiled.memory.peak <= self.compiled.capacity
        )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.topology.devices)

    @property
    def between_bytes(self) -> int:
        """That a device sends to other slices or nodes, a step."""
        return sum(row.between_bytes for row in self.collectives)

    @property
    def beside_bytes(self) -> int:
        """That a device sends while products run, a step: what may hide behind them."""
        return sum(row.beside_bytes for row in self.collectives)

    @property
    def device_hours(self) -> float | None:
        """For all steps of the recipe, by the estimate."""
        if self.estimate is None:
            return None
        return self.recipe.total_steps * self.estimate.step * self.devices / 3600

    def to_json(self) -> dict[str, Any]:
        """One flat object, numbers in bytes, seconds and operations."""
        memory, batch = self.compiled.memory, self.recipe.batch_size
        step, estimate = self.compiled.step, self.estimate
        loss = [row for row in self.collectives if row.loss]
        return {
            "name": self.recipe.name,
            "topology": self.topology.name,
            "devices": self.devices,
            "mesh": dict(self.compiled.mesh.shape),
            "batch_size": batch,
            "fits": self.fits,
            "peak_bytes_per_device": memory.peak,
            "capacity_bytes": self.compiled.capacity,
            "state_bytes_per_device": memory.state,
            "batch_bytes_per_device": memory.batch,
            "temporary_bytes_per_device": memory.temporaries,
            "program_bytes_per_device": memory.program,
            "parameters": self.compiled.parameters,
            "flops_per_example": step.total / batch,
            "forward_flops_per_example": self.compiled.forward.total / batch,
            "loss_share_of_flops": step.inside / max(step.total, 1),
            "loss_sent_bytes_per_device": sum(row.sent_bytes for row in loss),
            "sent_bytes_per_device": sum(row.sent_bytes for row in self.collectives),
            "sent_bytes_between_slices_per_device": self.between_bytes,
            "sent_bytes_beside_products_per_device": self.beside_bytes,
            "collectives": [
                {**dataclasses.asdict(row), "axes": list(row.axes)} for row in self.collectives
            ],
            "estimate": None
            if estimate is None
            else {
                "compute_seconds": estimate.compute,
                "memory_seconds": estimate.memory,
                "network_seconds": estimate.network,
                "step_seconds": estimate.step,
                "step_seconds_without_overlap": estimate.step_without_overlap,
                "examples_per_second": batch / estimate.step,
                "examples": self.recipe.total_steps * batch,
                "device_hours": self.device_hours,
            },
            "advice": self.advice,
            "compile_seconds": round(self.compiled.seconds, 1),
        }


def make_plan(recipe: Recipe, topology: Topology) -> Plan:
    """Compiles the recipe's step for the machine and reads the program.

    Raises:
      ConfigError: The recipe's mesh or batch does not fit the machine.
    """
    compiled = compile_step(recipe, topology)
    rows, estimate = [], None
    if compiled.module is not None:
        rows = collectives(compiled.module, dict(compiled.mesh.shape), topology.unit)
        if topology.chip is not None:
            estimate = _estimate(compiled, rows, topology.chip, topology)
    plan = Plan(recipe, topology, compiled, rows, estimate, [])
    return dataclasses.replace(plan, advice=[] if plan.fits else advice(plan))


def _estimate(
    compiled: Compiled, rows: list[Collective], chip: Chip, topology: Topology
) -> Estimate:
    devices = len(topology.devices)
    step = compiled.step
    compute = (step.total - step.exact) / chip.flops + step.exact / chip.exact_flops
    assert compiled.module is not None
    return Estimate(
        compute=compute / devices,
        memory=memory_traffic(compiled.module) / chip.memory_bandwidth,
        network=sum(
            (row.sent_bytes - row.between_bytes) / chip.link_bandwidth
            + row.between_bytes / chip.network_bandwidth
            for row in rows
        ),
    )


# A program that does not fit has been squeezed by its compiler: CLIP B/16 on v5e:4x4 needs 22.1 GiB
# beside its state, and in two chunks 16.6 and not 11.
_SQUEEZED = 1.5


def advice(plan: Plan) -> list[str]:
    """What would make it fit, and by how much.

    What grows with the batch on a device shrinks with microbatches and with more devices, though
    not in proportion; the state shrinks with fsdp.
    """
    memory, capacity = plan.compiled.memory, plan.compiled.capacity
    recipe, sizes = plan.recipe, dict(plan.compiled.mesh.shape)
    over = memory.peak - capacity
    lines = [f"{_gib(over)} too much: {_gib(memory.peak)} are needed, {_gib(capacity)} are there."]
    fsdp = _largest_cut(recipe, sizes)
    if memory.state > capacity // 4 and fsdp > sizes["fsdp"]:
        saved = memory.state - memory.state * sizes["fsdp"] // fsdp
        lines.append(
            f"config.mesh.fsdp={fsdp} cuts the state ({_gib(memory.state)} a device) over so many "
            f"and saves {_gib(saved)}."
        )
    for tower in TOWERS[recipe.data.pairs]:
        remat = getattr(getattr(recipe.model, tower), "remat", None)
        if remat in ("none", "dots"):
            lines.append(
                f"config.model.{tower}.remat=full (now {remat}) keeps only what enters each block."
            )
    growing = memory.peak - memory.state
    room = capacity - memory.state
    if room > 0:
        parts = math.ceil(_SQUEEZED * growing / room)
        chunks = _chunks(recipe, sizes, recipe.train.microbatches * parts)
        other = "" if chunks is None else f", or config.train.microbatches={chunks},"
        lines.append(
            f"{_gib(growing)} grow with the batch on a device: {parts} times the devices{other} "
            "would do."
        )
    else:
        lines.append("The state alone fills the memory: more devices along fsdp are needed.")
    return lines


def _largest_cut(recipe: Recipe, sizes: dict[str, int]) -> int:
    """The most devices along fsdp, those along data taken for it, that divide every width."""
    towers = [getattr(recipe.model, tower) for tower in TOWERS[recipe.data.pairs]]
    widths = [tower.width for tower in towers if hasattr(tower, "width")]
    cuts = (sizes["fsdp"] * n for n in range(1, sizes["data"] + 1) if sizes["data"] % n == 0)
    return max(cut for cut in cuts if cut == sizes["fsdp"] or math.gcd(cut, *widths) == cut)


def _chunks(recipe: Recipe, sizes: dict[str, int], least: int) -> int | None:
    """The fewest chunks, at least so many, that divide the rows of a device; None: it has fewer."""
    rows = recipe.batch_size // math.prod(sizes[axis] for axis in BATCH_AXES)
    return next((n for n in range(least, rows + 1) if rows % n == 0), None)


def _gib(count: int | float) -> str:
    return f"{count / 2**30:.2f} GiB"
