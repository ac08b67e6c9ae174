"""Runs side by side: every metric that all of them have, and how sure the differences are."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from contrastive.evaluation.bootstrap import Interval, difference, estimate, interval
from contrastive.evaluation.measured import Measured

_SHOWN = (
    "recall@", "success@", "ndcg@", "mrr@", "map", "r_precision", "median_rank", "mean_rank",
    "top1", "top5", "mean_per_class", "spearman", "pearson", "accuracy", "f1", "average_precision",
    "alignment", "uniformity", "effective_rank", "modality_gap", "information_bound",
)  # fmt: skip
_NOT_SHOWN = (
    "_chance", "_majority", "_random_init", "_raw_pixels", "_tf_idf", "_threshold", "_low", "_high",
    "_deviation",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One metric of several runs.

    Attributes:
      metric: ``SET/TASK/METRIC``.
      values: Of each run; None where it has none.
      intervals: Of each run, where the values of single queries are known.
      differences: Of each run but the first to the first.
      difference_intervals: Likewise: over the same queries where both runs had the same.
    """

    metric: str
    values: tuple[float | None, ...]
    intervals: tuple[Interval | None, ...]
    differences: tuple[float | None, ...]
    difference_intervals: tuple[Interval | None, ...]

    def sure(self, run: int) -> bool:
        """Whether the interval of this run's difference leaves out 0."""
        found = self.difference_intervals[run - 1]
        return found is not None and not found.low <= 0 <= found.high


def compare(runs: Sequence[Measured], *, samples: int = 1000) -> list[Comparison]:
    """The metrics that the first run shares with any other, in its order."""
    rows = []
    for metric in runs[0]:
        if not _is_shown(metric) or not any(metric in run for run in runs[1:]):
            continue
        values = tuple(_number(run.get(metric)) for run in runs)
        if values[0] is None:
            continue
        changes = tuple(None if x is None else x - values[0] for x in values[1:])
        paired = tuple(_difference(metric, runs[0], run, samples) for run in runs[1:])
        lists = (_each(run, metric) for run in runs)
        own = tuple(None if x is None else interval(x, samples=samples) for x in lists)
        rows.append(Comparison(metric, values, own, changes, paired))
    return rows


def other_data(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sets (or tasks) whose samples are not those of the first run, by their digests."""
    return [
        key.removesuffix("/content")
        for key in runs[0]
        if key.endswith("/content")
        and any(run.get(key, runs[0][key]) != runs[0][key] for run in runs)
    ]


def as_json(names: Sequence[str], rows: Sequence[Comparison]) -> dict[str, Any]:
    """``{"runs": […], "metrics": {METRIC: {"values", "intervals", "differences", …}}}``."""

    def bounds(found: Sequence[Interval | None]) -> list[list[float] | None]:
        return [None if x is None else [x.low, x.high] for x in found]

    return {
        "runs": list(names),
        "metrics": {
            row.metric: {
                "values": list(row.values),
                "intervals": bounds(row.intervals),
                "differences": list(row.differences),
                "difference_intervals": bounds(row.difference_intervals),
            }
            for row in rows
        },
    }


def _is_shown(metric: str) -> bool:
    name = metric.rpartition("/")[2]
    return name.startswith(_SHOWN) and not any(x in name for x in _NOT_SHOWN)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _each(run: Measured, metric: str) -> np.ndarray | None:
    """What a metric is the mean of; None where that is not known, or not of this number: a run
    whose two files were not written together has no intervals."""
    values, number = run.each.get(metric), _number(run.get(metric))
    if values is None or not values.size or number is None:
        return None
    values = values.astype(np.float64)
    slack = 1e-5 * max(1.0, abs(number)) if values.ndim == 1 else 1e-3  # float32 makes ties
    return values if abs(estimate(values) - number) <= slack else None


def _difference(metric: str, first: Measured, other: Measured, samples: int) -> Interval | None:
    before, after = _each(first, metric), _each(other, metric)
    if before is None or after is None or not _same_queries(metric, first, other):
        return None
    return difference(before, after, samples=samples) if before.shape == after.shape else None


def _same_queries(metric: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """By the digests of the sets, kept beside the task or the set."""
    parts = metric.split("/")
    for keys in (parts[:-1], parts[:1]):
        key = "/".join([*keys, "content"])
        if key in first or key in other:
            return first.get(key) == other.get(key)
    return False
