"""Settings × results of a sweep: rows, the best of them, and files."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from contrastive.config import nearest
from contrastive.errors import UserError
from contrastive.sweeps.folder import State, SweepFolder, Trial
from contrastive.whole import whole_file


@dataclasses.dataclass(frozen=True)
class Row:
    """A trial, where it stands, and what it measured: the numbers of ``evaluation.json``, and
    those of the last step that was logged as ``train/KEY``."""

    trial: Trial
    state: State
    results: dict[str, float]


def read_rows(folder: SweepFolder) -> list[Row]:
    """All trials of a sweep; those that are not done have no results."""
    rows = []
    for trial in folder.trials():
        state = folder.state(trial.name)
        results = _results(folder.workdir(trial.name)) if state.status == "done" else {}
        rows.append(Row(trial, state, results))
    return rows


def _results(workdir: pathlib.Path) -> dict[str, float]:
    last: dict[str, Any] = {}
    file = workdir / "metrics.jsonl"
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        entry = json.loads(line)
        last = entry if "loss" in entry else last
    found = {f"train/{name}": value for name, value in last.items()}
    file = workdir / "evaluation.json"
    found |= json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {k: float(v) for k, v in found.items() if isinstance(v, int | float)}


def best(rows: Sequence[Row], metric: str, direction: str) -> Row | None:
    """The trial with the best value of a metric; None where no trial is done.

    Raises:
      UserError: Trials are done and none has the metric.
    """
    done = [row for row in rows if row.state.status == "done"]
    found = [row for row in done if not math.isnan(row.results.get(metric, math.nan))]
    if done and not found:
        known = sorted({name for row in done for name in row.results})
        raise UserError(f"no trial measured {metric!r}{nearest(metric, known)}.")
    sign = 1 if direction == "max" else -1
    return max(found, key=lambda row: sign * row.results[metric], default=None)


def write_results(folder: SweepFolder, rows: Sequence[Row]) -> list[pathlib.Path]:
    """Writes ``results.csv`` and ``results.parquet`` (every number) and ``results.md`` (settings,
    the metric and the loss), and returns their paths."""
    summary = folder.summary()
    table = _table(rows)
    paths = [folder.path / f"results.{kind}" for kind in ("csv", "parquet", "md")]
    with whole_file(paths[0]) as path:
        pyarrow.csv.write_csv(table, path)
    with whole_file(paths[1]) as path:
        pyarrow.parquet.write_table(table, path)
    with whole_file(paths[2]) as path:
        path.write_text(_page(summary, rows), encoding="utf-8")
    return paths


def _table(rows: Sequence[Row]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "trial": [row.trial.index for row in rows],
        "name": [row.trial.name for row in rows],
        "status": [row.state.status for row in rows],
        "attempts": [row.state.attempts for row in rows],
        "seconds": [row.state.seconds for row in rows],
    }
    for key in dict.fromkeys(key for row in rows for key in row.trial.settings):
        columns[key] = _alike([row.trial.settings.get(key) for row in rows])
    for key in sorted({key for row in rows for key in row.results}):
        columns[key] = [row.results.get(key) for row in rows]
    return pa.table(columns)


def _alike(values: list[Any]) -> list[Any]:
    """A column has one type: of mixed ones, and of groups, the text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2 and kinds <= {int, float, bool, str}:
        return values
    return [None if value is None else str(value) for value in values]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    whole = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in whole)


def cells(rows: Sequence[Row], metric: str) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table that people read."""
    keys = list(dict.fromkeys(key for row in rows for key in row.trial.settings))
    numbers = list(dict.fromkeys([metric, "train/loss"]))
    head = ["trial", *keys, "status", "attempts", "seconds", *numbers]
    lines = [
        [
            str(row.trial.index),
            *(_shown(row.trial.settings.get(key)) for key in keys),
            row.state.status + (f": {row.state.reason}" if row.state.reason else ""),
            str(row.state.attempts),
            f"{row.state.seconds:.0f}",
            *(_shown(row.results.get(name)) for name in numbers),
        ]
        for row in rows
    ]
    return head, lines


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def said_of_best(row: Row, metric: str, direction: str) -> str:
    """One sentence."""
    settings = ", ".join(f"{key} = {_shown(value)}" for key, value in row.trial.settings.items())
    return (
        f"Best by {metric} ({direction}): trial {row.trial.index}"
        f"{f', {settings}' if settings else ''}, {_shown(row.results[metric])}."
    )


def _page(summary: dict[str, Any], rows: Sequence[Row]) -> str:
    metric, direction = summary["metric"], summary["direction"]
    winner = best(rows, metric, direction)
    said = "" if winner is None else f"\n{said_of_best(winner, metric, direction)}\n"
    return f"# {summary['name']}\n\n{markdown(*cells(rows, metric))}{said}"
