"""``contrastive sweep``: many runs from one file. The same command again goes on."""

import contextlib
import dataclasses
import pathlib
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive.commands.train import train
from contrastive.errors import UserError, first_line
from contrastive.mesh import Devices
from contrastive.processes import LOST, Processes
from contrastive.sweeps.description import load_sweep
from contrastive.sweeps.folder import TOLD, State, SweepFolder, Trial, begin, make_trials
from contrastive.sweeps.launchers import LaunchSettings, find_launcher
from contrastive.sweeps.results import (
    best,
    brief,
    cells_over_seeds,
    read_rows,
    said_of_best,
    write_results,
)
from contrastive.training.supervisor import USER_ERROR


def sweep(
    spec: str,
    output: pathlib.Path,
    *,
    launcher: str = "local",
    parallel: int | None = None,
    retries: int | None = None,
    on: str | None = None,
    overrides: Sequence[str] = (),
    console: Console | None = None,
) -> int:
    """Runs the trials of a sweep that are not done, and writes the table.

    Args:
      spec: ``FILE.py`` or ``FILE.py:ARGUMENT``.
      output: The sweep's folder; one that is there goes on.
      launcher: A key of :data:`contrastive.sweeps.launchers.LAUNCHERS`.
      parallel: Trials at a time; None: what the file says.
      retries: How often a failed trial is started again; None: what the file says.
      on: What to ask a scheduler for, ``FILE.py``; see :mod:`contrastive.launching.settings`.
      overrides: ``--on.KEY=VALUE``.
      console: Where to print; None: the terminal.

    Returns:
      0 when all trials are done or were handed over, 1 when some failed.

    Raises:
      UserError: The file, a key or the folder does not fit, before anything is started.
    """
    console = _console() if console is None else console
    given = {"parallel": parallel, "retries": retries}
    description = dataclasses.replace(
        load_sweep(spec), **{name: value for name, value in given.items() if value is not None}
    )
    submit = find_launcher(launcher)
    if launcher == "local" and (on is not None or overrides):
        raise UserError(
            "--on says what to ask a scheduler for: it goes with --launcher=slurm or gke."
        )
    trials = make_trials(description)
    folder = SweepFolder(output)
    folder.plan(description, trials)
    rows = read_rows(folder)
    indices = [row.trial.index for row in rows if row.state.status != "done"]
    console.print(f"{len(rows)} trials, {len(rows) - len(indices)} done.", markup=False)
    settings = LaunchSettings(
        parallel=description.parallel,
        retries=description.retries,
        processes=description.processes,
        on=on,
        overrides=tuple(overrides),
        say=lambda text: console.print(text, markup=False),
    )
    handle = submit(output, indices, settings) if indices else None
    if handle is not None:
        console.print(
            f"Handed over: {handle}. `contrastive sweep {output} --status` shows how it goes.",
            markup=False,
        )
        return 0
    return status(output, console=console)


def status(output: pathlib.Path, *, console: Console | None = None) -> int:
    """Prints the table of a sweep and writes it to the folder.

    Returns:
      1 when a trial has failed, else 0.

    Raises:
      UserError: This is no sweep's folder, or its metric was not measured.
    """
    console = _console() if console is None else console
    folder = SweepFolder(output)
    summary, rows = folder.summary(), read_rows(folder)
    console.print(_table(*brief(rows, summary["metric"])))
    counts = [row.state.status for row in rows]
    parts = [f"{counts.count(word)} {word}" for word in dict.fromkeys(counts)]
    console.print(", ".join(parts) + ".")
    winner = best(rows, summary["metric"], summary["direction"])
    if winner is not None:
        said = said_of_best(winner, summary["metric"], summary["direction"])
        console.print(said, markup=False)
        head, lines = cells_over_seeds(rows, summary["metric"], summary["direction"])
        if lines:
            console.print(_table(head, lines))
    paths = write_results(folder, rows)
    console.print(f"Results: {paths[-1]}", markup=False)
    return int("failed" in counts)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    return table


def run_trial(
    output: pathlib.Path,
    index: int,
    *,
    devices: Devices,
    processes: Processes | None = None,
    stream: Any = sys.stdout,
) -> int:
    """Trains one trial in this process (or in these, together); a trial that has begun resumes.

    Returns:
      0 when it is done, now or before; 75 when another process runs it; else the status of
      ``contrastive train``.

    Raises:
      UserError: As ``contrastive train`` says; it is also written down as the trial's reason.
    """
    processes = processes or Processes()
    folder = SweepFolder(output)
    trial = processes.together(lambda: folder.trial(index), "reading the trial")
    with contextlib.ExitStack() as stack:
        word = ""
        if processes.first:
            mine = stack.enter_context(folder.claimed(trial.name))
            before = folder.state(trial.name)
            word = "done" if before.status == "done" else "go" if mine else "busy"
        word = processes.gather(word, "claiming the trial")[0]
        if word != "go":
            said = {"done": "is done", "busy": "is run by another process"}[word]
            print(f"Trial {index} ({trial.name}) {said}.", file=stream)
            return 0 if word == "done" else LOST
        diary = _Diary(folder, trial) if processes.first else contextlib.nullcontext()
        with diary as remember:
            status = train(
                trial.recipe,
                folder.workdir(trial.name),
                new=False,
                devices=devices,
                processes=processes,
                stream=stream,
            )
            if remember is not None:
                remember.ended(status)
            return status


class _Diary:
    """Writes down what becomes of an attempt."""

    def __init__(self, folder: SweepFolder, trial: Trial) -> None:
        self._folder, self._name = folder, trial.name
        self._start = time.monotonic()
        self._state = begin(folder.state(trial.name))
        self._write()

    def ended(self, status: int) -> None:
        """The attempt came to its end, or was told to stop."""
        if status == 0:
            self._write(status="done", reason="")
        else:
            self._stopped()

    def _stopped(self) -> None:
        self._write(status="waiting", reason=TOLD, attempts=self._state.attempts - 1)

    def __enter__(self) -> "_Diary":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._stopped()
        elif error is not None:
            final = isinstance(error, UserError) and error.status == USER_ERROR
            self._write(status="failed", reason=first_line(error), final=final)

    def _write(self, **changes: Any) -> None:
        now = time.monotonic()
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._state: State = dataclasses.replace(
            self._state,
            seconds=self._state.seconds + now - self._start,
            peak_bytes=max(self._state.peak_bytes, own),
            **changes,
        )
        self._start = now
        self._folder.write_state(self._name, self._state)


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)
