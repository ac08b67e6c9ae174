"""Means over seeds with Student's intervals: how sure a few runs make us."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

SEEDS = (0, 1, 2)  # of what is trained in seconds, in both forms


class Mean(NamedTuple):
    """A mean with its 95 % interval; NaN bounds where one run alone says nothing of it."""

    value: float
    low: float
    high: float
    runs: int

    def __str__(self) -> str:
        text = f"{self.value:.4g}"
        if not math.isnan(self.low):
            text += f" [{self.low:.4g}, {self.high:.4g}]"
        return text.replace("-", "−")

    @property
    def sure(self) -> int:
        """The sign that the interval leaves no doubt about: 1, −1, or 0."""
        return int(self.low > 0) - int(self.high < 0)


def mean(values: Sequence[float] | np.ndarray, confidence: float = 0.95) -> Mean:
    """Of independent runs: ``mean ± t · s / √n``."""
    x = np.asarray(values, np.float64)
    if len(x) < 2:
        return Mean(float(x.mean()), math.nan, math.nan, len(x))
    reach = float(stats.t.ppf((1 + confidence) / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Mean(float(x.mean()), float(x.mean()) - reach, float(x.mean()) + reach, len(x))


def possible(found: Mean, count: int, rng: np.random.Generator) -> np.ndarray:
    """Values that a mean may have, as its interval says: Student's over runs, else normal."""
    spread = stats.t(found.runs - 1) if found.runs > 1 else stats.norm()
    error = (found.high - found.low) / 2 / spread.ppf(0.975)
    return found.value + error * np.asarray(spread.rvs(count, random_state=rng))


def difference(before: Sequence[float], after: Sequence[float]) -> Mean:
    """How much larger runs are than their partners of the same seed."""
    return mean(np.asarray(after, np.float64) - np.asarray(before, np.float64))
