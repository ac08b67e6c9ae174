"""Seeds that experiments are repeated over, and what differences between runs may be."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from contrastive.sweeps.seeds import Mean, mean

SEEDS = (0, 1, 2)  # of what is trained in seconds, in both forms


def possible(found: Mean, count: int, rng: np.random.Generator) -> np.ndarray:
    """Values that a mean may have, as its interval says: Student's over runs, else normal."""
    spread = stats.t(found.runs - 1) if found.runs > 1 else stats.norm()
    error = (found.high - found.low) / 2 / spread.ppf(0.975)
    return found.value + error * np.asarray(spread.rvs(count, random_state=rng))


def difference(before: Sequence[float], after: Sequence[float]) -> Mean:
    """How much larger runs are than their partners of the same seed."""
    return mean(np.asarray(after, np.float64) - np.asarray(before, np.float64))
