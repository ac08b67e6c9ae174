"""How sure a mean or a correlation is: percentile bootstrap over queries or examples."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from contrastive.evaluation.similarity import spearman

SAMPLES = 1000
_HELD = 1 << 22  # numbers that are held at a time


class Interval(NamedTuple):
    """A value between its bounds."""

    value: float
    low: float
    high: float


def interval(
    values: Float[np.ndarray, "*two n"],
    *,
    confidence: float = 0.95,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Interval:
    """The mean of the values with the interval that holds it with this confidence.

    The queries are drawn again with replacement, ``samples`` times; the bounds are percentiles of
    the results. Two lists ``[2, n]`` stand for Spearman's correlation of them.

    Raises:
      ValueError: There are no values.
    """
    if not values.shape[-1]:
        raise ValueError("there is nothing to draw from.")
    if values.ndim == 2:
        found = _resampled(_correlation, values, samples, seed)
    else:
        found = _means(values, samples, seed)
    return _bounds(estimate(values), found, confidence)


def estimate(values: Float[np.ndarray, "*two n"]) -> float:
    """The mean of the values, or Spearman's correlation of two lists; NaN where there is none."""
    return _correlation(values) if values.ndim == 2 else float(values.mean())


def difference(
    before: Float[np.ndarray, "*two n"],
    after: Float[np.ndarray, "*as_many others"],
    *,
    confidence: float = 0.95,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Interval:
    """How much larger a metric is after, over the same queries: each is drawn with both values.

    Raises:
      ValueError: The lists are of different queries.
    """
    if before.shape != after.shape:
        raise ValueError(f"{before.shape[-1]} and {after.shape[-1]} values are no pairs.")
    if before.ndim == 1:
        return interval(after - before, confidence=confidence, samples=samples, seed=seed)
    both = np.concatenate([before, after])

    def gain(x: np.ndarray) -> float:
        return _correlation(x[2:]) - _correlation(x[:2])

    return _bounds(gain(both), _resampled(gain, both, samples, seed), confidence)


def _means(values: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """Means of resampled values. How often each value is drawn is a multinomial number."""
    different, counts = np.unique(values.astype(np.float64), return_counts=True)
    draw, shares = np.random.default_rng(seed), counts / counts.sum()
    step = max(1, _HELD // len(different))
    parts = [
        draw.multinomial(len(values), shares, size=min(step, samples - start)) @ different
        for start in range(0, samples, step)
    ]
    return np.concatenate(parts) / len(values)


def _resampled(
    statistic: Callable[[np.ndarray], float], lists: np.ndarray, samples: int, seed: int
) -> np.ndarray:
    draw, count = np.random.default_rng(seed), lists.shape[1]
    return np.array([statistic(lists[:, draw.integers(count, size=count)]) for _ in range(samples)])


def _correlation(lists: np.ndarray) -> float:
    found = spearman(lists[0], lists[1])
    return np.nan if found is None else found


def _bounds(value: float, found: np.ndarray, confidence: float) -> Interval:
    low, high = np.nanquantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))
