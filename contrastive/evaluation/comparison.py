"""Runs side by side: every metric that all of them have, and how sure the differences are."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from contrastive.evaluation.bootstrap import Interval, difference, interval
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
        own = tuple(
            interval(_each(run, metric), samples=samples) if metric in run.each else None
            for run in runs
        )
        rows.append(Comparison(metric, values, own, changes, paired))
    return rows


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


def _each(run: Measured, metric: str) -> np.ndarray:
    return run.each[metric].astype(np.float64)


def _difference(metric: str, first: Measured, other: Measured, samples: int) -> Interval | None:
    if metric not in first.each or metric not in other.each:
        return None
    if not _same_queries(metric, first, other):
        return None
    before, after = _each(first, metric), _each(other, metric)
    return difference(before, after, samples=samples) if before.shape == after.shape else None


def _same_queries(metric: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """By the digests of the sets, kept beside the task or the set."""
    parts = metric.split("/")
    for keys in (parts[:-1], parts[:1]):
        key = "/".join([*keys, "content"])
        if key in first or key in other:
            return first.get(key) == other.get(key)
    return False
