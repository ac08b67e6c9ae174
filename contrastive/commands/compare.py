"""``contrastive compare RUN RUN …``: evaluated runs side by side."""

import json
import pathlib
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive.commands.evaluate import read_results
from contrastive.errors import UserError
from contrastive.evaluation.comparison import Comparison, as_json, compare, other_data

_PIPED = 240  # columns, where nobody has a window: names of metrics stay whole


def compare_runs(
    runs: Sequence[pathlib.Path], *, as_object: bool = False, console: Console | None = None
) -> list[Comparison]:
    """Prints the metrics of the runs, and how the others differ from the first.

    Args:
      runs: Folders with an ``evaluation.json``.
      as_object: Print one JSON object instead of a table.
      console: Where to print; None: the terminal.

    Raises:
      UserError: Fewer than two runs, one that was not evaluated, or none that share a metric.
    """
    if len(runs) < 2:
        raise UserError("give two runs or more to compare.")
    results = [read_results(run) for run in runs]
    rows = compare(results)
    if not rows:
        raise UserError(f"{runs[0]} shares no metric with the others: were they evaluated alike?")
    names = [str(run) for run in runs]
    if console is None:
        console = Console(highlight=False)
        console.width = console.width if console.is_terminal else _PIPED
    if as_object:
        console.print(
            json.dumps(as_json(names, rows)), markup=False, soft_wrap=True, highlight=False
        )
        return rows
    console.print(_table(_short(runs), rows))
    console.print(
        "[low, high]: 95 % by bootstrap over the queries, differences over the same queries of "
        "both runs; bold where 0 is outside.",
        markup=False,
    )
    if others := other_data(results):
        console.print(
            f"Not the same data in all runs, so their numbers say little of each other: "
            f"{', '.join(others)}.",
            markup=False,
        )
    return rows


def _short(runs: Sequence[pathlib.Path]) -> list[str]:
    names = [run.name or str(run) for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def _table(names: Sequence[str], rows: Sequence[Comparison]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for i, name in enumerate(names):
        table.add_column(Text(name), justify="right")
        if i:
            table.add_column(Text(f"{name} − {names[0]}"), justify="right")
    for row in rows:
        cells: list[Text | str] = [Text(row.metric), _number(row.values[0])]
        for i in range(1, len(names)):
            text = _number(row.differences[i - 1], sign=True)
            if (bounds := row.difference_intervals[i - 1]) is not None:
                text += f" [{_number(bounds.low, sign=True)}, {_number(bounds.high, sign=True)}]"
            cells += [_number(row.values[i]), Text(text, "bold" if row.sure(i) else "")]
        table.add_row(*cells)
    return table


def _number(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return ""
    return f"{value:{'+' if sign else ''}.4g}".replace("-", "−")
