"""Pages: one HTML file that needs nothing but itself, and the same in Markdown."""

import base64
import importlib.resources
import pathlib
import re
from collections.abc import Sequence

import jinja2

from contrastive.sweeps.results import markdown
from contrastive.whole import whole_file
from experiments.common.outcome import Outcome, Plot
from experiments.common.plots import svg

INTERVALS = (
    "Numbers in brackets are 95 % intervals: over seeds (or other draws) by Student's t, over "
    "queries by bootstrap."
)
_TEMPLATE = pathlib.Path(__file__).with_name("page.html")


def write_page(path: pathlib.Path, outcomes: Sequence[Outcome]) -> pathlib.Path:
    """Writes the page of one experiment or of all, and returns its path."""
    style = importlib.resources.files("contrastive.reporting").joinpath("report.css")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    text = template.render(
        style=style.read_text("utf-8"),
        outcomes=outcomes,
        picture=_picture,
        made=_made(outcomes),
        intervals=INTERVALS,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return path


def _picture(plot: Plot) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg(plot).encode()).decode()


def _made(outcomes: Sequence[Outcome]) -> list[str]:
    """Date, machine and versions; each once, where experiments were run in several sittings."""
    words = ("date", "machine", "versions")
    return [
        "; ".join(dict.fromkeys(one.made[word] for one in outcomes if word in one.made))
        for word in words
    ]


def report(outcome: Outcome) -> str:
    """An experiment's results in Markdown, with pictures beside the file."""
    parts = [f"# {outcome.title}", outcome.question, f"Published: {outcome.published}"]
    checks = [(c.what, c.expected, c.found, c.verdict) for c in outcome.checks]
    parts.append(markdown(("expectation", "expected", "found", ""), checks).rstrip())
    parts += [table.markdown().rstrip() for table in outcome.tables]
    parts += [f"![{plot.title}]({plot.name}.svg)" for plot in outcome.plots]
    parts += [*outcome.notes, INTERVALS]
    made = outcome.made
    parts.append(
        f"`python -m experiments.{outcome.name} --{outcome.scope}`: {outcome.seconds / 60:.1f} "
        f"minutes, {made['date']}, {made['machine']}; {made['versions']}."
    )
    return "\n\n".join(parts) + "\n"


def publish(outcomes: Sequence[Outcome], sources: pathlib.Path, target: pathlib.Path) -> None:
    """Writes tables, plots and text of finished experiments to a folder of the documentation. What
    was published before, perhaps from another machine, and is not among them stays as it is.

    Args:
      outcomes: What to publish.
      sources: The folder that holds their output, one folder an experiment.
      target: Such as ``docs/results``.
    """
    summary = target / "README.md"
    lines = _published(summary)
    for one in outcomes:
        folder = target / one.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(report(one), encoding="utf-8")
        names = [f"{table.name}.csv" for table in one.tables]
        names += [f"{plot.name}.svg" for plot in one.plots]
        for name in names:
            (folder / name).write_bytes((sources / one.name / name).read_bytes())
        met = sum(check.met for check in one.checks)
        told = ", ".join(c.what.rstrip(".") for c in one.checks if not c.met)
        lines[one.name] = (
            f"[{one.title}]({one.name}/README.md)",
            one.scope,
            f"{met} of {len(one.checks)}",
            told,
            f"{one.seconds / 60:.1f}",
            one.made["date"],
        )
    head = ("experiment", "form", "as expected", "not seen, or missed", "minutes", "date")
    text = (
        "# Results of the experiments\n\nWritten by `python -m experiments --publish=docs/results`"
        "; machine and versions stand at the end of each.\n\n"
        f"{markdown(head, list(lines.values()))}"
    )
    summary.write_text(text, encoding="utf-8")


def _published(summary: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """The rows of the summary, by experiment."""
    text = summary.read_text(encoding="utf-8") if summary.is_file() else ""
    rows = re.findall(r"^\| (\[[^]]+\]\((\w+)/README\.md\)) \| (.*) \|$", text, re.MULTILINE)
    return {name: (link, *rest.split(" | ")) for link, name, rest in rows}
