"""What an experiment found: tables, plots, and how it stands to what was expected."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from contrastive.sweeps.results import column, markdown, write_table
from contrastive.sweeps.seeds import Mean
from contrastive.whole import whole_file

Cell: TypeAlias = str | int | float | bool | Mean | None
# number: to the digits that are stated. trend: has to be there. finding: may turn out otherwise,
# which is a result.
Kind: TypeAlias = Literal["number", "trend", "finding"]


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under a head; ``name`` is that of its files."""

    name: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def shown(self) -> list[list[str]]:
        """The rows as people read them."""
        return [[shown(cell) for cell in row] for row in self.rows]

    def markdown(self) -> str:
        """A Markdown table with its caption."""
        return f"{self.caption}\n\n{markdown(self.head, self.shown())}"

    def write(self, folder: pathlib.Path) -> None:
        """``NAME.csv``, ``NAME.parquet`` and ``NAME.md``."""
        table: dict[str, Sequence[Any]] = {}
        for name, values in zip(self.head, zip(*self.rows, strict=True), strict=True):
            table |= _numbers(name, values)
        columns = {name: column(values) for name, values in table.items()}
        write_table(pa.table(columns), folder / self.name)
        with whole_file(folder / f"{self.name}.md") as path:
            path.write_text(self.markdown(), encoding="utf-8")


def _numbers(name: str, values: Sequence[Cell]) -> dict[str, Sequence[Any]]:
    """A column for programs: of means also their bounds, in columns of their own."""
    if not any(isinstance(value, Mean) for value in values):
        return {name: values}
    parts = [value[:3] if isinstance(value, Mean) else (value, None, None) for value in values]
    columns = zip(*parts, strict=True)
    names = (name, f"{name}, low", f"{name}, high")
    return {n: [_none(x) for x in column] for n, column in zip(names, columns, strict=True)}


def _none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def shown(value: Cell) -> str:
    """A cell as text: four significant digits, a true minus."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:.4g}" if abs(value) < 1e4 or math.isinf(value) else f"{value:,.0f}"
    else:
        return str(value)
    return text.replace("-", "−")


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve, with bounds where they are known."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Plot:
    """Curves over one axis; ``name`` is that of its file."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    y_log: bool = False
    references: tuple[tuple[str, float], ...] = ()  # horizontal lines: label, value


@dataclasses.dataclass(frozen=True)
class Check:
    """An expectation beside what was found.

    Attributes:
      what: What is expected, in one sentence.
      expected: The expected value, as text.
      found: What was found, as text.
      met: Whether it is as expected.
      kind: How binding that is.
    """

    what: str
    expected: str
    found: str
    met: bool
    kind: Kind = "trend"

    @property
    def verdict(self) -> str:
        """One word or two."""
        if self.met:
            return "as expected"
        return "not seen" if self.kind == "finding" else "MISSED"


def number(what: str, expected: float, found: float, within: float) -> Check:
    """A check of a number: at most ``within`` away."""
    met = abs(found - expected) <= within
    said = f"{_five_digits(expected)} ± {shown(float(within))}"
    return Check(what, said, _five_digits(found), bool(met), "number")


def _five_digits(value: float) -> str:
    """As many as the seed document's numbers have."""
    return shown(value) if abs(value) >= 1e4 else f"{value:.5g}".replace("-", "−")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """All of it.

    Attributes:
      name: The experiment's folder.
      title: Its headline.
      question: What it asks, in a sentence or two.
      published: What others have published about it.
      tables, plots, checks: What was found.
      notes: What a reader has to know, a sentence each.
    """

    name: str
    title: str
    question: str
    published: str
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    scope: str = "short"
    seconds: float = 0.0
    made: dict[str, Any] = dataclasses.field(default_factory=dict)  # date, versions, machine

    @property
    def missed(self) -> list[Check]:
        """What had to be there and is not."""
        return [check for check in self.checks if not check.met and check.kind != "finding"]


def save(outcome: Outcome, folder: pathlib.Path) -> None:
    """``outcome.json``, from which pages are made; written last, so that it means: finished."""
    text = json.dumps(dataclasses.asdict(outcome), indent=1)
    with whole_file(folder / "outcome.json") as path:
        path.write_text(text + "\n", encoding="utf-8")


def load(folder: pathlib.Path) -> Outcome | None:
    """What :func:`save` wrote; None where an experiment has not come to its end."""
    file = folder / "outcome.json"
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))

    def each(kind: Any, key: str) -> tuple[Any, ...]:
        return tuple(kind(**{k: _tuples(v) for k, v in one.items()}) for one in content[key])

    tables, content["checks"] = each(Table, "tables"), each(Check, "checks")
    content["tables"] = tuple(
        dataclasses.replace(
            table,
            rows=tuple(
                tuple(Mean(*x) if isinstance(x, tuple) else x for x in row) for row in table.rows
            ),
        )
        for table in tables
    )
    plots = each(Plot, "plots")
    content["plots"] = tuple(
        dataclasses.replace(
            plot,
            lines=tuple(Line(**{k: _tuples(v) for k, v in dict(x).items()}) for x in plot.lines),
        )
        for plot in plots
    )
    content["notes"] = tuple(content["notes"])
    return Outcome(**content)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value


def curve(label: str, points: Sequence[tuple[float, float]]) -> Line:
    """A line from points."""
    xs, ys = zip(*points, strict=True)
    return Line(label, tuple(map(float, xs)), tuple(map(float, ys)))
