"""Plans as people read them."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from contrastive.planning.plan import Plan


def format_plan(plan: Plan) -> str:
    """The plan as text for a terminal."""
    memory, compiled = plan.compiled.memory, plan.compiled
    mesh = " × ".join(f"{name} {size}" for name, size in compiled.mesh.shape.items() if size > 1)
    batch = plan.recipe.batch_size
    lines = [
        f"{plan.recipe.name} on {plan.topology.name}: {plan.devices} devices"
        + (f" ({mesh})" if mesh else ""),
        f"{compiled.parameters:,} parameters, batch {batch:,}, {plan.recipe.total_steps:,} steps",
        "",
        f"Memory a device     {_gib(memory.peak)} of {_gib(compiled.capacity)}: "
        + ("fits" if plan.fits else "DOES NOT FIT"),
        f"  state             {_gib(memory.state)}",
        f"  batch             {_gib(memory.batch)}",
    ]
    if memory.temporaries is not None and memory.program is not None:
        lines.append(f"  temporaries       {_gib(memory.temporaries)}")
        lines.append(f"  program           {_gib(memory.program)}")
    lines += [
        "",
        f"Operations          {_giga(compiled.step.total / batch)} GFLOP an example (forward "
        f"{_giga(compiled.forward.total / batch)}); the loss is "
        f"{compiled.step.inside / max(compiled.step.total, 1):.2%} of them",
    ]
    if plan.collectives:
        sent = sum(row.sent_bytes for row in plan.collectives)
        between = f", {_mib(plan.between_bytes)} of it between {_units(plan)}"
        lines += [
            f"Sent a device       {_mib(sent)} a step{between if _several(plan) else ''}",
            f"  beside products   {_mib(plan.beside_bytes)} of it move while products run",
            "",
            _collectives(plan).rstrip(),
        ]
    for part in (_estimate(plan), plan.advice):
        if part:
            lines += ["", *part]
    return "\n".join(lines)


def _giga(count: float) -> str:
    return f"{count / 1e9:,.1f}" if count > 1e10 else f"{count / 1e9:.2g}"


def _estimate(plan: Plan) -> list[str]:
    if plan.estimate is None:
        return []
    estimate, batch = plan.estimate, plan.recipe.batch_size
    return [
        "Roofline ESTIMATE from published peaks, not a measurement:",
        f"  step              {estimate.step:.3f} s if everything overlaps, "
        f"{estimate.step_without_overlap:.3f} s if nothing does",
        f"    compute         {estimate.compute:.3f} s",
        f"    memory          {estimate.memory:.3f} s (from above)",
        f"    network         {estimate.network:.3f} s",
        f"  examples a second {batch / estimate.step:,.0f}",
        f"  device-hours      {plan.device_hours:,.0f} for "
        f"{plan.recipe.total_steps * batch / 1e9:.1f} billion examples",
    ]


def _collectives(plan: Plan) -> str:
    table = Table(box=None, pad_edge=False)
    table.add_column("Exchange a step")
    table.add_column("axes")
    several = _several(plan)
    columns = ["devices", "times", "payload", "sent a device"]
    for name in [*columns, f"between {_units(plan)}"] if several else columns:
        table.add_column(name, justify="right")
    for row in plan.collectives:
        if row.sent_bytes < 1024:
            continue
        table.add_row(
            f"{row.kind}{' (loss)' if row.loss else ''}",
            ", ".join(row.axes),
            str(row.group),
            f"{row.count:,}",
            _mib(row.payload_bytes),
            _mib(row.sent_bytes),
            *([_mib(row.between_bytes)] if several else []),
        )
    return _rendered(table)


def _several(plan: Plan) -> bool:
    return plan.topology.unit < plan.devices


def _units(plan: Plan) -> str:
    chip = plan.topology.chip
    return "nodes" if chip is not None and chip.unit else "slices"


def format_search(plans: Sequence[tuple[str, Plan]], most: int = 5) -> str:
    """The best of the plans that a search tried and that fit; where none fits, the one that is
    nearest to it.

    Args:
      plans: Settings and plan, best first.
      most: How many to show.
    """
    fitting = [entry for entry in plans if entry[1].fits]
    table = Table(box=None, pad_edge=False)
    table.add_column("settings")
    for name in ("memory", "step (estimate)", "examples/s (estimate)"):
        table.add_column(name, justify="right")
    for settings, plan in fitting[:most] or plans[:1]:
        step = plan.estimate.step if plan.estimate is not None and plan.fits else None
        table.add_row(
            settings,
            _gib(plan.compiled.memory.peak),
            f"{step:.3f} s" if step else "" if plan.fits else "does not fit",
            f"{plan.recipe.batch_size / step:,.0f}" if step else "",
        )
    count = f"{len(fitting)} of the {len(plans)} programs that were compiled fit."
    return f"{_rendered(table)}{count}\n"


def _rendered(table: Table) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(table)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _gib(count: int | float) -> str:
    return f"{count / 2**30:.2f} GiB"


def _mib(count: int | float) -> str:
    return f"{count / 2**20:,.1f} MiB"
