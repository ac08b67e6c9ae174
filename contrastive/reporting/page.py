"""``report/index.html``: what a run has learned, on one page that needs nothing but itself.

The page can be written at any time: what is not there yet, or cannot be read, is left out and said.
"""

import dataclasses
import datetime
import importlib.metadata
import importlib.resources
import json
import math
import pathlib
import platform
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from contrastive.errors import UserError
from contrastive.evaluation.shape import BINS
from contrastive.evaluation.table import (
    OF_TEXTS,
    TITLES,
    TableRow,
    beside_untrained,
    geometry_rows,
    number,
    shape_rows,
    shape_titles,
    share,
    table_rows,
    task_rows,
)
from contrastive.reporting import charts
from contrastive.reporting.charts import Chart, Line, Number
from contrastive.reporting.examples import Examples, find_examples
from contrastive.whole import whole_file

PACKAGES = (
    "contrastive",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "numpy",
    "tensorflow-datasets",
    "tokenizers",
    "pillow",
)
Lines = Sequence[Mapping[str, Any]]


def write_report(workdir: pathlib.Path | str, *, model: Any = None) -> pathlib.Path:
    """Writes ``report/index.html`` of a run and returns its path.

    Args:
      workdir: The run's folder.
      model: The run's model; None: loaded from the newest checkpoint that can be read.

    Raises:
      UserError: ``workdir`` is not the folder of a run.
    """
    workdir = pathlib.Path(workdir)
    if not (workdir / "config.json").is_file():
        raise UserError(
            f"{workdir} is not the folder of a run: there is no {workdir / 'config.json'}."
        )
    config = _read_json(workdir / "config.json")
    lines = _read_lines(workdir / "metrics.jsonl")
    results, results_from = _results(workdir, lines)
    examples, missing = _examples(workdir, model)
    lists = _lists(workdir / "evaluation.npz") if results_from == "final" else {}
    page = _render(config, lines, results, results_from, lists, examples, missing)
    target = workdir / "report" / "index.html"
    target.parent.mkdir(exist_ok=True)
    with whole_file(target) as path:
        path.write_text(page, encoding="utf-8")
    return target


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The lines that are whole; a line that is being written is not."""
    found = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict) and "step" in entry:
            found.append(entry)
    return found


def _results(workdir: pathlib.Path, lines: Lines) -> tuple[dict[str, Any], str]:
    """The final evaluation, or the newest quick one, and what it is."""
    final = _read_json(workdir / "evaluation.json")
    if final:
        return final, "final"
    for line in reversed(lines):
        found = {k.removeprefix("evaluation/"): v for k, v in line.items() if "evaluation/" in k}
        if found:
            return found, f"quick evaluation at step {line['step']:,}"
    return {}, ""


def _lists(path: pathlib.Path) -> dict[str, np.ndarray]:
    """What the evaluation left to be drawn."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [name for name in file.files if name.startswith("drawn/")]
            return {name.removeprefix("drawn/"): file[name] for name in names}
    except (OSError, ValueError, zipfile.BadZipFile):
        return {}


def shapes(lists: Mapping[str, np.ndarray]) -> list[tuple[Chart, Number]]:
    """Cosines and spectra of the first set that has them, and where their axes end."""
    start = next((name.rpartition("/")[0] for name in lists), None)
    if start is None:
        return []
    title = TITLES.get(start.split("/")[0], start.split("/")[0])
    middles = ((np.arange(BINS) + 0.5) * 2 / BINS - 1).tolist()

    def line(label: str, name: str, places: Sequence[float] | None = None) -> Line:
        values = lists.get(f"{start}/{name}", np.zeros(0)).tolist()
        return Line(label, list(range(1, len(values) + 1)) if places is None else places, values)

    cosines = Chart(
        f"Cosines, {title}",
        [
            line("pairs", "cosines_positive", middles),
            line("others", "cosines_negative", middles),
        ],
        note="Share of the pairs, and of rows that do not belong together, at each cosine.",
        start=-1.0,
        zero=True,
    )
    spectra = Chart(
        f"Spectrum, {title}",
        [line("first of the pairs", "spectrum_first"), line("second", "spectrum_second")],
        note="Of images and texts, queries and passages, or two views. Singular values by size, "
        "as shares of the largest; flat where all are used.",
        log=True,
    )
    width = max((len(x.values) for x in spectra.lines), default=1)
    return [(cosines, 1.0), (spectra, float(width))]


def _examples(workdir: pathlib.Path, model: Any) -> tuple[Examples | None, str]:
    from contrastive.loading import load

    try:
        model = load(workdir) if model is None else model
        return find_examples(model, model.recipe.data), ""
    except UserError as error:  # no checkpoint yet, or the data has moved
        return None, str(error)


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar of a headline: a share and what it belongs to."""

    label: str
    value: float
    kind: str

    @property
    def text(self) -> str:
        """The share in percent, with a digit more where it is small."""
        percent = 100 * self.value
        return f"{percent:.2g} %" if 0 < percent < 1 else f"{percent:.0f} %"


@dataclasses.dataclass(frozen=True)
class Headline:
    """One number that people remember, with what it has to beat."""

    title: str  # the set
    task: str
    claim: str
    bars: Sequence[Bar]


_CLAIMS = {
    "image_to_text": "a picture’s own name comes first among {n:,}",
    "text_to_image": "a name’s own picture comes first among {n:,}",
    "zero_shot": "the right one of {n:,} classes, by their names alone",
}


def headlines(rows: Sequence[TableRow]) -> list[Headline]:
    """Up to four: image to text on the first two sets, text to image and zero-shot on the first."""
    evaluated = [row for row in rows if row.group != "train"] or list(rows)
    groups = list(dict.fromkeys(row.group for row in evaluated))
    wanted = [(group, "image_to_text") for group in groups[:2]]
    wanted += [(group, task) for group in groups[:1] for task in ("text_to_image", "zero_shot")]
    found = {(row.group, row.task): row for row in evaluated}
    cards = []
    for key in wanted:
        if key not in found or found[key].first is None:
            continue
        row = found[key]
        bars = [
            Bar("this model", row.first or 0.0, "model"),
            *[
                Bar(label, value, "baseline")
                for label, value in (
                    (
                        "words in common" if row.task in OF_TEXTS else "nearest pixels",
                        row.unlearned,
                    ),
                    ("untrained", row.random_init),
                    ("chance", row.chance),
                )
                if value is not None
            ],
        ]
        title, claim = TITLES.get(row.group, row.group), _CLAIMS[row.task]
        cards.append(Headline(title, TITLES[row.task], claim.format(n=row.candidates), bars))
    return cards


def curves(lines: Lines, config: Mapping[str, Any]) -> list[Chart]:
    """All curves that the run has numbers for."""

    def line(label: str, key: str) -> Line:
        found = [(entry["step"], entry[key]) for entry in lines if entry.get(key) is not None]
        return Line(label, [s for s, _ in found], [v for _, v in found])

    loss = config.get("loss", {})
    batch = config.get("batch_size", 0)
    softmax = loss.get("name") != "siglip" and batch > 1
    guessing = [(f"log {batch} = {math.log(batch):.2f}", math.log(batch))] if softmax else []
    limit = loss.get("max_scale") or (100.0 if softmax else None)
    return [
        Chart(
            "Loss",
            [line("loss", "loss")],
            note="The line is log of the batch size: what guessing gives." if softmax else "",
            references=guessing,
            zero=softmax,
        ),
        _recall_chart(lines, line),
        Chart(
            "Accuracy in the batch",
            [
                line("image → text", "accuracy/image_to_text"),
                line("text → image", "accuracy/text_to_image"),
            ],
            note=f"The right one of {batch} stands first." if batch else "",
            share=True,
        ),
        Chart(
            "Scale",
            [line("scale", "scale")],
            note=f"What cosines are multiplied with, exp(log_scale){_temperature(lines)}.",
            references=[(f"limit {limit:g}", limit)] if limit else [],
        ),
        Chart("Bias", [line("bias", "bias")], note="Of the sigmoid loss."),
        Chart(
            "Cosines",
            [
                line("positive, mean", "positive_cosine/mean"),
                line("negative, mean", "negative_cosine/mean"),
                line("negative, max", "negative_cosine/max"),
            ],
            note="The band runs from the lowest to the highest positive of the batch.",
            band=(line("", "positive_cosine/min"), line("", "positive_cosine/max")),
        ),
        Chart("Gradient norm", [line("gradient norm", "gradient_norm")], log=True),
        Chart("Learning rate", [line("learning rate", "learning_rate")], zero=True),
        Chart("Pairs a second", [line("pairs/s", "examples_per_second")], zero=True),
        Chart(
            "Waiting for data",
            [line("share of time", "input_wait_share")],
            note="Share of the time in which the devices had no batch.",
            share=True,
            reach=0.1,
        ),
    ]


def _temperature(lines: Lines) -> str:
    last = next((x["temperature"] for x in reversed(lines) if x.get("temperature")), None)
    return "" if last is None else f"; the temperature, 1/scale, is now {charts.number(last)}"


def _recall_chart(lines: Lines, line: Any) -> Chart:
    logged = {k for entry in lines for k in entry}
    tasks = ("image_to_text", "query_to_positive", "image_to_image")
    found = (task for task in tasks if any(k.endswith(f"/{task}/recall@1") for k in logged))
    task = next(found, tasks[0])
    suffix = f"/{task}/recall@1"
    keys = sorted(k for k in logged if k.endswith(suffix))
    order = list(TITLES)
    names = [key.removeprefix("evaluation/").removesuffix(suffix) for key in keys]
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return Chart(
        f"Recall@1, {TITLES[task]}",
        [line(TITLES.get(name, name), f"evaluation/{name}{suffix}") for name in names[:6]],
        note="Of quick evaluations during the run; the last point is the final one.",
        share=True,
    )


def training_seconds(lines: Lines, batch_size: int) -> float:
    """Time spent in training steps, from the throughput that was logged."""
    seconds, before = 0.0, 0
    for line in lines:
        rate = line.get("examples_per_second")
        if rate:
            seconds += (line["step"] - before) * batch_size / rate
            before = line["step"]
    return seconds


def _render(
    config: Mapping[str, Any],
    lines: Lines,
    results: Mapping[str, Any],
    results_from: str,
    lists: Mapping[str, np.ndarray],
    examples: Examples | None,
    missing: str,
) -> str:
    files = importlib.resources.files("contrastive.reporting")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "share": share,
        "cosine": _cosine,
        "beside_untrained": beside_untrained,
        "number": number,
    }
    template = environment.from_string(files.joinpath("report.html").read_text("utf-8"))
    trained = [line for line in lines if "loss" in line]
    step = trained[-1]["step"] if trained else 0
    shown = [*lines, _last_evaluation(step, results)] if results_from == "final" else lines
    drawn = [(chart, charts.render(chart, last_step=step)) for chart in curves(shown, config)]
    rows = table_rows(results)
    return template.render(
        style=files.joinpath("report.css").read_text("utf-8"),
        name=config.get("name", "run"),
        summary=_summary(config, lines, step),
        step=step,
        total=config.get("total_steps", step),
        headlines=headlines(rows),
        results_from=results_from,
        rows=rows,
        geometry=geometry_rows(results),
        tasks=task_rows(results),
        shapes=shape_rows(results),
        shape_titles=shape_titles(shape_rows(results)),
        drawn=[
            (chart, svg, charts.legend(chart))
            for chart, last in shapes(lists)
            if (svg := charts.render(chart, last_step=last))
        ],
        titles=TITLES,
        charts=[(chart, svg, charts.legend(chart)) for chart, svg in drawn if svg],
        examples=examples,
        missing=missing,
        config=_groups(config),
        versions=_versions(),
        written=datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
    )


def _last_evaluation(step: int, results: Mapping[str, Any]) -> dict[str, Any]:
    """The final evaluation as the line of ``metrics.jsonl`` that it has no place in."""
    return {"step": step, **{f"evaluation/{name}": value for name, value in results.items()}}


def _cosine(value: int | float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _summary(config: Mapping[str, Any], lines: Lines, step: int) -> list[str]:
    batch = config.get("batch_size", 0)
    parts = [f"{step:,} steps of {batch:,} pairs"]
    seconds = training_seconds(lines, batch)
    if seconds >= 1:
        minutes, rest = divmod(round(seconds), 60)
        parts.append((f"{minutes} min {rest:02d} s" if minutes else f"{rest} s") + " of training")
    loss = config.get("loss", {}).get("name")
    source = config.get("data", {}).get("source")
    parts += [f"{loss} loss"] if loss else []
    parts += [f"data: {pathlib.Path(source).name}"] if source else []
    return parts


def _groups(config: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The settings as groups of ``(key, value)``."""
    plain = [(k, _value(v)) for k, v in config.items() if not isinstance(v, dict)]
    groups = [("run", plain)]
    for name, value in config.items():
        if isinstance(value, dict):
            groups.append((name, [(k, _value(v)) for k, v in _flat(value)]))
    return [group for group in groups if group[1]]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, value))
    return rows


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _versions() -> list[tuple[str, str]]:
    found = [("Python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
