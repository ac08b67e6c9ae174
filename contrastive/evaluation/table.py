"""Results as people read them: one row a task and set, beside chance and baselines."""

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

TITLES = {
    "unseen_artist": "unseen artist",
    "unseen_concepts": "unseen concepts",
    "unseen_concepts_openmoji": "unseen concepts, OpenMoji",
    "unseen_both": "unseen both",
    "unseen_artist_openmoji": "OpenMoji",
    "unseen_both_openmoji": "OpenMoji, unseen both",
    "validation": "validation",
    "test": "test",
    "train": "training fit",
    "image_to_text": "image → text",
    "text_to_image": "text → image",
    "query_to_positive": "query → positive",
    "positive_to_query": "positive → query",
    "image_to_image": "image → image",
    "zero_shot": "zero-shot",
    "knn": "nearest neighbours",
    "linear_probe": "linear probe",
    "few_shot": "few examples",
    "information_retrieval": "retrieval of texts",
    "similarity": "similarity",
    "pair_classification": "duplicates",
    "bitext": "bitext",
    "classification": "labels",
    "relevance": "own passage first",
    "triplets": "nearer than a negative",
}
# What is shown of the tasks that have no table of their own.
_BESIDE = ("top1_random_init", "top1_raw_pixels")
_SHOWN = {
    "knn": ("top1", "top1_low", "top1_high", *_BESIDE),
    "linear_probe": ("top1", "top1_low", "top1_high", *_BESIDE),
    "few_shot": ("top1@",),
    "information_retrieval": (
        *("ndcg@10", "mrr@10", "map", "recall@10", "recall@100"),
        "ndcg@10_random_init",
    ),
    "similarity": ("spearman", "pearson", "spearman_random_init"),
    "pair_classification": ("average_precision", "f1", "accuracy"),
    "bitext": ("accuracy", "accuracy_back", "f1"),
    "classification": ("accuracy", "accuracy_chance", "accuracy_majority", "accuracy_random_init"),
    "relevance": ("recall@1", "mrr", "recall@1_chance", "recall@1_random_init"),
    "triplets": ("accuracy", "accuracy_chance", "accuracy_random_init"),
}
_COUNTS = ("queries", "pairs", "images")
_GEOMETRY = {
    "effective_rank_images": "rank, images",
    "effective_rank_queries": "rank, queries",
    "effective_rank_texts": "rank, texts",
    "modality_gap": "modality gap",
    "information_bound": "information",
    "information_ceiling": "at most",
}
OF_TEXTS = ("query_to_positive", "positive_to_query")


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One task on one set, as tables show it; None where it was not measured."""

    group: str
    task: str
    queries: int
    candidates: int
    first: float | None  # recall@1 or top-1
    fifth: float | None
    tenth: float | None
    median_rank: float | None
    chance: float | None  # of ``first``, like the two below
    unlearned: float | None  # by raw pixels, or of texts by common words (TF-IDF)
    random_init: float | None


@dataclasses.dataclass(frozen=True)
class GeometryRow:
    """Alignment and uniformity of one set: ``(this model, untrained)``; None = not measured."""

    group: str
    alignment: tuple[float | None, float | None]
    uniformity_images: tuple[float | None, float | None]  # of pairs of texts: of the queries
    uniformity_texts: tuple[float | None, float | None]


def _numbers(results: Mapping[str, Any]) -> dict[str, float | None]:
    """Without words; what is not finite is not defined. A file may say anything."""
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in results.items()
        if value is None or isinstance(value, int | float)
    }


def geometry_rows(results: Mapping[str, Any]) -> list[GeometryRow]:
    """The geometry of every set, in the order of :func:`table_rows`."""
    results = _numbers(results)

    def pair(group: str, metric: str) -> tuple[float | None, float | None]:
        path = f"{group}/geometry/{metric}"
        return results.get(path), results.get(f"{path}_random_init")

    return [
        GeometryRow(
            group,
            pair(group, "alignment"),
            pair(group, _first_side(group, results)),
            pair(group, "uniformity_texts"),
        )
        for group in _groups(results)
        if f"{group}/geometry/alignment" in results
    ]


def _first_side(group: str, results: Mapping[str, Any]) -> str:
    images = "uniformity_images"
    return images if f"{group}/geometry/{images}" in results else "uniformity_queries"


@dataclasses.dataclass(frozen=True)
class TaskRow:
    """One task on one set: its main numbers by name, in order; None = not defined."""

    group: str
    task: str
    count: int  # of queries, pairs or pictures
    numbers: Mapping[str, float | None]


def task_rows(results: Mapping[str, Any]) -> list[TaskRow]:
    """The results of tasks other than retrieval across towers and zero-shot."""
    results, rows = _numbers(results), []
    for group in _groups(results):
        for task, shown in _SHOWN.items():
            start = f"{group}/{task}/"
            found = {k.removeprefix(start): v for k, v in results.items() if k.startswith(start)}
            names = [
                name
                for wanted in shown
                for name in found
                if name == wanted or (wanted.endswith("@") and name.startswith(wanted))
            ]
            if names:
                counts = {name.partition("@")[0]: value or 0 for name, value in found.items()}
                count = next((int(counts[name]) for name in _COUNTS if name in counts), 0)
                numbers = {name: found[name] for name in names}
                rows.append(TaskRow(group, task, count, numbers))
    return rows


def shape_rows(results: Mapping[str, Any]) -> list[tuple[str, dict[str, float], bool]]:
    """Set, how its rows lie by plain names, and whether they have collapsed."""
    results, rows = _numbers(results), []
    for group in _groups(results):
        start = f"{group}/geometry/"
        found = {
            title: value
            for name, title in _GEOMETRY.items()
            if (value := results.get(start + name)) is not None
        }
        if found:
            rows.append((group, found, bool(results.get(start + "collapsed"))))
    return rows


def shape_titles(rows: Sequence[tuple[str, Mapping[str, float], bool]]) -> list[str]:
    """The columns of :func:`shape_rows` that any row fills."""
    return [title for title in _GEOMETRY.values() if any(title in found for _, found, _ in rows)]


def _groups(results: Mapping[str, Any]) -> list[str]:
    """The sets in the order in which people read them."""
    order = list(TITLES)
    found = dict.fromkeys(name.split("/")[0] for name in results)
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def table_rows(results: Mapping[str, Any]) -> list[TableRow]:
    """The retrieval and zero-shot results in the order in which people read them."""
    results, rows = _numbers(results), []
    for group in _groups(results):
        for task, first, size in (
            ("image_to_text", "recall@1", ("queries", "gallery")),
            ("text_to_image", "recall@1", ("queries", "gallery")),
            ("query_to_positive", "recall@1", ("queries", "gallery")),
            ("positive_to_query", "recall@1", ("queries", "gallery")),
            ("image_to_image", "recall@1", ("queries", "gallery")),
            ("zero_shot", "top1", ("images", "classes")),
        ):
            prefix = f"{group}/{task}/"
            if prefix + first not in results:
                continue

            texts = task in OF_TEXTS

            def get(metric: str, prefix: str = prefix) -> float | None:
                return results.get(prefix + metric)

            rows.append(
                TableRow(
                    group=group,
                    task=task,
                    queries=int(get(size[0]) or 0),
                    candidates=int(get(size[1]) or 0),
                    first=get(first),
                    fifth=get("top5" if task == "zero_shot" else "recall@5"),
                    tenth=get("recall@10"),
                    median_rank=get("median_rank"),
                    chance=get(f"{first}_chance"),
                    unlearned=get(f"{first}_tf_idf" if texts else f"{first}_raw_pixels"),
                    random_init=get(f"{first}_random_init"),
                )
            )
    return rows


def format_line(results: Mapping[str, Any], *, most: int = 4) -> str:
    """The first results of the first sets in a line, for use during a run."""
    found: dict[str, str] = {}
    for row in table_rows(results):
        found.setdefault(row.group, f"{TITLES[row.task]} {share(row.first)}")
    for task in task_rows(results):
        value = next(iter(task.numbers.values()))
        found.setdefault(task.group, f"{TITLES[task.task]} {number(value)}")
    shown = list(found.items())[:most]
    return ", ".join(f"{TITLES.get(group, group)} {text}" for group, text in shown)


def format_table(results: Mapping[str, Any], *, width: int = 108) -> str:
    """The results as a table for the terminal: shares of queries, beside chance and baselines."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False
    )
    rows, tasks, shapes = table_rows(results), task_rows(results), shape_rows(results)
    if not (rows or tasks or shapes):
        return "Nothing was evaluated: the data has no split to evaluate on."
    if rows:
        console.print(_ranking_table(rows))
        console.print(
            "R@k: share of queries with a right answer among the first k (zero-shot: top-k)."
        )
        unlearned = _unlearned(rows)
        console.print(f"chance, {unlearned} ({_MEANS[unlearned]}) and untrained are for R@1.")
    if tasks:
        console.print(_task_table(tasks))
    if geometry := geometry_rows(results):
        console.print(_geometry_table(geometry))
    if shapes:
        console.print(_shape_table(shapes))
        console.print(
            "rank: effective rank, the directions in use. Information in nats, log N at most."
        )
    for group, _, collapsed in shapes:
        if collapsed:
            console.print(
                f"Collapse: the embeddings of {TITLES.get(group, group)} are nearly the same, or "
                "use few dimensions; see uniformity and effective rank."
            )
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


_MEANS = {"pixels": "nearest training picture", "words": "TF-IDF"}


def _unlearned(rows: Sequence[TableRow]) -> str:
    """What the column of the baseline without learning is called."""
    return "words" if any(row.task in OF_TEXTS for row in rows) else "pixels"


def _ranking_table(rows: Sequence[TableRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in (
        "queries",
        "among",
        "R@1",
        "R@5",
        "R@10",
        "median",
        "chance",
        _unlearned(rows),
        "untrained",
    ):
        table.add_column(name, justify="right")
    before = ""
    for row in rows:
        title = TITLES.get(row.group, row.group) if row.group != before else ""
        if before and title:
            table.add_section()
        before = row.group
        shares = (row.first, row.fifth, row.tenth)
        baselines = (row.chance, row.unlearned, row.random_init)
        median = "" if row.median_rank is None else f"{row.median_rank:g}"
        table.add_row(
            Text(title, "bold"),
            TITLES[row.task],
            f"{row.queries:,}",
            f"{row.candidates:,}",
            *map(share, shares),
            median,
            *map(share, baselines),
        )
    return table


def _task_table(rows: Sequence[TaskRow]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        numbers = ", ".join(f"{name} {number(value)}" for name, value in row.numbers.items())
        table.add_row(
            Text(TITLES.get(row.group, row.group), "bold"),
            TITLES[row.task],
            f"{row.count:,}",
            numbers,
        )
    return table


def _shape_table(rows: Sequence[tuple[str, dict[str, float], bool]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    titles = shape_titles(rows)
    for title in titles:
        table.add_column(title, justify="right")
    for group, found, _ in rows:
        cells = (_plain(found[title]) if title in found else "" for title in titles)
        table.add_row(TITLES.get(group, group), *cells)
    return table


def _plain(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")  # no −0.00


def number(value: float | None) -> str:
    """A number of a task; a correlation may not be defined."""
    return "undefined" if value is None else f"{value:.3f}".replace("-", "−")


def _geometry_table(rows: Sequence[GeometryRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for name in ("alignment", "uniformity, images or queries", "uniformity, texts"):
        table.add_column(name, justify="right")
    for row in rows:
        pairs = (row.alignment, row.uniformity_images, row.uniformity_texts)
        table.add_row(TITLES.get(row.group, row.group), *map(beside_untrained, pairs))
    return table


def beside_untrained(pair: tuple[float | None, float | None]) -> str:
    """``"1.02 (untrained 0.61)"``."""
    trained, untrained = pair
    if trained is None:
        return ""
    text = f"{trained:.2f}" + ("" if untrained is None else f" (untrained {untrained:.2f})")
    return text.replace("-", "−")


def share(value: float | None) -> str:
    """A share as people compare it: three digits, no leading zero."""
    if value is None:
        return ""
    if value >= 0.9995:
        return "1.000"
    return f"{value:.4f}"[1:] if value < 0.01 else f"{value:.3f}"[1:]
