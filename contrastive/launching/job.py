"""What is to be started: the command that trains, checked, planned for and written down."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from contrastive.errors import ConfigError, UserError
from contrastive.launching.record import FILE, make_record
from contrastive.processes import code_digest
from contrastive.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A run that a launcher starts.

    Attributes:
      name: Of the recipe, for batch systems.
      arguments: Those of ``contrastive``, from ``train`` on; every process is given the same.
      workdir: The run's folder, as the processes see it.
      record: What :data:`contrastive.launching.record.VARIABLE` hands to every process.
    """

    name: str
    arguments: tuple[str, ...]
    workdir: pathlib.Path
    record: dict[str, Any]

    @property
    def record_text(self) -> str:
        """The record in one line."""
        return json.dumps(self.record)


def make_job(
    recipe: Recipe,
    arguments: Sequence[str],
    workdir: pathlib.Path,
    *,
    launcher: str,
    devices: int | None,
    plan: dict[str, Any],
) -> Job:
    """Puts a job together; ``plan`` is what :func:`planned` returns."""
    record = make_record(
        recipe, ["contrastive", *arguments], launcher=launcher, plan=plan, devices=devices
    )
    return Job(name=recipe.name, arguments=tuple(arguments), workdir=workdir, record=record)


def planned(
    config: str,
    overrides: Sequence[str],
    topology: str | None,
    *,
    digest: str,
    workdir: pathlib.Path,
    force: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """What the planner says of the run, compiled in a process of its own.

    A plan of the same configuration and code in ``launch.json`` is taken again.

    Args:
      config: The recipe, ``FILE.py:ARGUMENT``.
      overrides: ``--config.KEY=VALUE``.
      topology: The machine in the planner's words; None or ``none``: no plan.
      digest: Of the resolved recipe.
      workdir: The run's folder, if it is seen from here.
      force: Go on where the plan says that the run does not fit.
      say: Receives sentences.

    Raises:
      UserError: It does not fit, or cannot be planned; says how to start it all the same.
    """
    if topology is None or topology == "none":
        return {"skipped": "no --topology to plan for"}
    plan = _plan_before(workdir, topology, digest)
    if plan is None:
        say(f"Planning for {topology} ... (--topology=none starts without a plan)")
        plan = _make_plan(config, overrides, topology)
    if not plan["fits"]:
        why = " ".join(plan.get("advice", ()))
        if not force:
            raise UserError(
                f"the run does not fit {topology}: {why} Change the configuration, or start it all "
                "the same with --force."
            )
        say(f"The plan says that the run does not fit {topology}; started by --force. {why}")
    return plan


def _plan_before(workdir: pathlib.Path, topology: str, digest: str) -> dict[str, Any] | None:
    try:
        before = json.loads((workdir / FILE).read_text())
        same = before["configuration"] == digest and before["code"] == code_digest()
        return before["plan"] if same and before["plan"].get("topology") == topology else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _make_plan(config: str, overrides: Sequence[str], topology: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "contrastive.cli", "plan", f"--config={config}", *overrides]
    done = subprocess.run(
        [*command, f"--topology={topology}", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        reason = lines[-1].removeprefix("contrastive plan: ")
        raise ConfigError(
            f"the run cannot be planned: {reason} --topology=none starts it without a plan."
        )
    return json.loads(done.stdout)
