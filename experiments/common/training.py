"""Experiments that train: a sweep in the experiment's folder, and what its trials measured."""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from contrastive.commands.evaluate import read_results
from contrastive.commands.sweep import sweep
from contrastive.errors import UserError
from contrastive.evaluation import bootstrap
from contrastive.evaluation.measured import Measured
from contrastive.sweeps.folder import SweepFolder
from contrastive.sweeps.results import Row, read_rows
from contrastive.sweeps.seeds import Mean
from contrastive.whole import whole_file
from experiments.common.runner import Context
from experiments.common.seeds import difference

LEDGER = "measured.json"  # beside a trial's evaluation: what an experiment adds to it


class Trials:
    """The trials of an experiment, which has come to its end.

    Args:
      folder: That of the sweep.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = SweepFolder(folder)
        self.rows = read_rows(self._folder)

    def workdir(self, row: Row) -> pathlib.Path:
        """The workdir of a trial."""
        return self._folder.workdir(row.trial.name)

    def where(self, **settings: Any) -> list[Row]:
        """The trials with these settings; ``__`` in a name stands for a dot."""
        wanted = {key.replace("__", "."): value for key, value in settings.items()}
        return [
            row
            for row in self.rows
            if all(row.trial.settings.get(key) == value for key, value in wanted.items())
        ]

    def lines(self, row: Row) -> list[dict[str, Any]]:
        """What was logged at each step."""
        file = self.workdir(row) / "metrics.jsonl"
        found = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        return [entry for entry in found if "loss" in entry]

    def evaluation(self, row: Row) -> Measured:
        """The numbers of a trial with those of every query."""
        return read_results(self.workdir(row))

    def difference(self, before: Sequence[Row], after: Sequence[Row], metric: str) -> Mean:
        """After − before, in pairs: over seeds, or with one seed over the queries that both
        answered."""
        if len(before) > 1:
            return difference(values(before, metric), values(after, metric))
        each = [self.evaluation(one).each[metric] for (one,) in (before, after)]
        return Mean(*bootstrap.difference(*(x.astype(np.float64) for x in each)), 1)

    def measured(
        self, row: Row, measure: Callable[[pathlib.Path], Mapping[str, float]]
    ) -> dict[str, float]:
        """What ``measure`` finds in a workdir; kept there, so that it is done once."""
        file = self.workdir(row) / LEDGER
        if not file.exists():
            found = dict(measure(self.workdir(row)))
            with whole_file(file) as path:
                path.write_text(json.dumps(found, indent=1) + "\n")
        return json.loads(file.read_text())


def values(rows: Sequence[Row], metric: str) -> list[float]:
    """What trials that differ in their seed measured, in the seeds' order."""
    return [row.results[metric] for row in sorted(rows, key=lambda r: r.trial.settings["seed"])]


def train(context: Context, specs: Sequence[str]) -> list[Trials]:
    """Runs sweeps ``FILE.py:ARGUMENT`` to their end, or goes on with them, each in the folder
    ``sweeps/ARGUMENT`` of the output: those of the short form and of the full one lie side by side.

    Raises:
      UserError: A trial failed even when it was tried again.
    """
    found = []
    for spec in specs:
        folder = context.output / "sweeps" / spec.rpartition(":")[2]
        if sweep(spec, folder):
            raise UserError(
                f"trials of {spec} failed: `contrastive sweep {folder} --status` says why; the "
                "same command tries them again."
            )
        found.append(Trials(folder))
    return found
