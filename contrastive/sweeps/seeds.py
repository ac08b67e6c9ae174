"""Means over seeds with Student's intervals: how sure a few runs make us."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


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
