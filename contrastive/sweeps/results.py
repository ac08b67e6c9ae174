"""Settings × results of a sweep: rows, the best of them, and files."""

import contextlib
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
from contrastive.errors import UserError, first_line
from contrastive.sweeps.folder import State, SweepFolder, Trial
from contrastive.sweeps.seeds import Mean, mean
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
        with contextlib.suppress(ValueError):  # a line that was cut
            entry = json.loads(line)
            last = entry if "loss" in entry else last
    found = {f"train/{name}": value for name, value in last.items()}
    file = workdir / "evaluation.json"
    try:
        found |= json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{file} is damaged ({first_line(error)}); `contrastive evaluate {workdir}` writes it "
            "anew."
        ) from error
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
        raise UserError(f"no trial measured {metric!r}{nearest(metric, known)}")
    sign = 1 if direction == "max" else -1
    return max(found, key=lambda row: sign * row.results[metric], default=None)


def write_results(folder: SweepFolder, rows: Sequence[Row]) -> list[pathlib.Path]:
    """Writes ``results.csv`` and ``results.parquet`` (every number) and ``results.md`` (settings,
    the metric and the loss), and returns their paths."""
    page = folder.path / "results.md"
    text = _page(folder.summary(), rows)
    with folder.locked():  # agents may come to their end at the same time
        with whole_file(page) as path:
            path.write_text(text, encoding="utf-8")
        return [*write_table(_table(rows), folder.path / "results"), page]


def _table(rows: Sequence[Row]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "trial": [row.trial.index for row in rows],
        "name": [row.trial.name for row in rows],
        "status": [row.state.status for row in rows],
        "attempts": [row.state.attempts for row in rows],
        "seconds": [row.state.seconds for row in rows],
    }
    for key in dict.fromkeys(key for row in rows for key in row.trial.settings):
        columns[key] = [row.trial.settings.get(key) for row in rows]
    for key in sorted({key for row in rows for key in row.results}):
        columns[key] = [row.results.get(key) for row in rows]
    return pa.table({name: column(values) for name, values in columns.items()})


def column(values: Sequence[Any]) -> pa.Array:
    """A column of a table, which has one type: numbers, or the text of what is mixed or a group."""
    kinds = {type(value) for value in values if value is not None}
    if kinds and kinds <= {int, float}:
        return pa.array([float(v) if isinstance(v, int) and float in kinds else v for v in values])
    if kinds == {bool}:
        return pa.array(values)
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def write_table(table: pa.Table, stem: pathlib.Path) -> list[pathlib.Path]:
    """Writes ``STEM.csv`` and ``STEM.parquet`` and returns their paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("csv", "parquet")]
    with whole_file(paths[0]) as path:
        pyarrow.csv.write_csv(table, path)
    with whole_file(paths[1]) as path:
        pyarrow.parquet.write_table(table, path)
    return paths


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    whole = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in whole)


def cells(rows: Sequence[Row], metric: str) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table that people read: settings that differ, and the metric."""
    keys = _differing(rows)
    head = ["trial", *keys, *_RESULTS, *_numbers(metric)]
    lines = [
        [
            str(row.trial.index),
            *(_shown(row.trial.settings.get(key)) for key in keys),
            *_result(row, metric),
        ]
        for row in rows
    ]
    return head, lines


def brief(rows: Sequence[Row], metric: str) -> tuple[list[str], list[list[str]]]:
    """The same for a terminal, which is narrow: settings in one cell, the last words of keys."""
    keys = _differing(rows)
    head = ["trial", "settings", *_RESULTS, *(_last(name) for name in _numbers(metric))]
    lines = [[str(row.trial.index), _words(row, keys), *_result(row, metric)] for row in rows]
    return head, lines


def _words(row: Row, keys: Sequence[str]) -> str:
    settings = row.trial.settings
    return " ".join(f"{_last(key, '.')}={_shown(settings[key])}" for key in keys if key in settings)


_RESULTS = ("status", "attempts", "seconds")


def _differing(rows: Sequence[Row]) -> list[str]:
    """Keys of the settings that are not the same in all trials."""
    keys = dict.fromkeys(key for row in rows for key in row.trial.settings)
    return [key for key in keys if len({str(row.trial.settings.get(key)) for row in rows}) > 1]


def _numbers(metric: str) -> list[str]:
    return list(dict.fromkeys([metric, "train/loss"]))


def _last(name: str, separator: str = "/") -> str:
    return name.rpartition(separator)[2]


def _result(row: Row, metric: str) -> list[str]:
    state = row.state
    return [
        state.status + (f": {state.reason}" if state.reason else ""),
        str(state.attempts),
        f"{state.seconds:.0f}",
        *(_shown(row.results.get(name)) for name in _numbers(metric)),
    ]


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


def over_seeds(rows: Sequence[Row], metric: str, direction: str) -> list[tuple[str, Mean]]:
    """The settings of trials that are done, apart from the seed, and the mean of the metric over
    seeds, the best first; empty where none was run with two seeds."""
    keys = [key for key in _differing(rows) if key != "seed"]
    groups: dict[str, list[float]] = {}
    for row in rows:
        value = row.results.get(metric, math.nan)
        if not math.isnan(value):
            groups.setdefault(_words(row, keys), []).append(value)
    if all(len(values) < 2 for values in groups.values()):
        return []
    sign = 1 if direction == "max" else -1
    found = [(words, mean(values)) for words, values in groups.items()]
    return sorted(found, key=lambda one: sign * one[1].value, reverse=True)


def cells_over_seeds(
    rows: Sequence[Row], metric: str, direction: str
) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table of :func:`over_seeds`."""
    head = ["settings", "seeds", f"mean {metric} [95 %]"]
    found = over_seeds(rows, metric, direction)
    return head, [[words, str(each.runs), str(each)] for words, each in found]


def _page(summary: dict[str, Any], rows: Sequence[Row]) -> str:
    metric, direction = summary["metric"], summary["direction"]
    winner = best(rows, metric, direction)
    said = "" if winner is None else f"\n{said_of_best(winner, metric, direction)}\n"
    head, lines = cells_over_seeds(rows, metric, direction)
    means = f"\n{markdown(head, lines)}" if lines else ""
    return f"# {summary['name']}\n\n{markdown(*cells(rows, metric))}{said}{means}"
