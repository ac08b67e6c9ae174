"""The trials of a sweep as an array of SLURM jobs, one task a trial."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Sequence

from contrastive.errors import ConfigError
from contrastive.launching.settings import machine_settings
from contrastive.launching.slurm import SlurmMachine, array_script, submit_script
from contrastive.launching.tools import run_tool
from contrastive.sweeps.folder import SweepFolder
from contrastive.sweeps.launchers import LaunchSettings


def submit(folder: pathlib.Path, indices: Sequence[int], settings: LaunchSettings) -> str | None:
    """Submits those trials that SLURM does not have already; returns the array's job id.

    Raises:
      ConfigError: The settings do not go with the trials' processes.
      UserError: There is no sbatch, or it refuses.
    """
    machine = machine_settings(SlurmMachine, settings.on, settings.overrides)
    machine = dataclasses.replace(machine, failures=settings.retries)
    check_processes(machine.nodes * machine.tasks, settings.processes)
    folder = folder.absolute()
    name = f"sweep-{hashlib.sha256(str(folder).encode()).hexdigest()[:10]}"
    with SweepFolder(folder).locked():  # nobody else submits between the question and the answer
        return _submit(folder, name, indices, machine, settings)


def _submit(
    folder: pathlib.Path,
    name: str,
    indices: Sequence[int],
    machine: SlurmMachine,
    settings: LaunchSettings,
) -> str:
    said = run_tool(["squeue", "--noheader", "--array", f"--name={name}", "--format=%K"])
    there = {int(word) for word in said.split() if word.isdecimal()}
    fresh = [index for index in indices if index not in there]
    if there:
        settings.say(f"SLURM has trials {', '.join(map(str, sorted(there)))} already.")
    if not fresh:
        return f"squeue --name={name}"
    for made in ("launch", "logs"):
        (folder / made).mkdir(exist_ok=True)
    for index in fresh:
        (folder / "launch" / f"failures-{index}").unlink(missing_ok=True)
    text = array_script(folder, fresh, settings.parallel, machine, name)
    number = submit_script(text, folder / "launch" / "array.sbatch")
    return f"array {number} of {len(fresh)} trials (squeue --name={name})"


def check_processes(here: int, wanted: int) -> None:
    """Raises :class:`ConfigError` unless a job has as many processes as a trial."""
    if here != wanted:
        raise ConfigError(
            f"a trial of this sweep has {wanted} process(es), and --on.nodes times --on.tasks are "
            f"{here}: change these, or the sweep's processes."
        )
