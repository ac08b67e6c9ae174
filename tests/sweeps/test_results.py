"""Tables of a sweep whose trials differ in their seed."""

import math

import pytest

from contrastive.recipe import Recipe
from contrastive.sweeps.folder import State, Trial
from contrastive.sweeps.results import Row, cells_over_seeds, over_seeds


def rows(found):
    """Trials that are done, by rate and seed."""
    made = []
    for (rate, seed), value in found.items():
        settings = {"optimizer.learning_rate": rate, "seed": seed}
        trial = Trial(
            len(made), f"{rate}-{seed}", settings, Recipe(name="a", total_steps=1, batch_size=2)
        )
        results = {} if value is None else {"recall": value}
        made.append(Row(trial, State("failed" if value is None else "done"), results))
    return made


FOUND = {(0.1, 0): 0.5, (0.2, 0): 0.9, (0.1, 1): 0.7, (0.2, 1): 0.1, (0.1, 2): 0.6, (0.2, 2): None}


def test_settings_are_ranked_by_their_mean_over_seeds():
    (first, mean), (second, other) = over_seeds(rows(FOUND), "recall", "max")
    assert (first, second) == ("learning_rate=0.1", "learning_rate=0.2")
    assert (mean.value, mean.runs) == (pytest.approx(0.6), 3)
    reach = 4.302652729911275 * 0.1 / math.sqrt(3)  # Student's t of two degrees of freedom
    assert (mean.low, mean.high) == (pytest.approx(0.6 - reach), pytest.approx(0.6 + reach))
    assert (other.value, other.runs) == (pytest.approx(0.5), 2)  # what failed does not count
    assert over_seeds(rows(FOUND), "recall", "min")[0][0] == second
    head, lines = cells_over_seeds(rows(FOUND), "recall", "max")
    assert head == ["settings", "seeds", "mean recall [95 %]"]
    assert lines[0] == ["learning_rate=0.1", "3", "0.6 [0.3516, 0.8484]"]


def test_one_seed_has_no_such_table():
    assert over_seeds(rows({(0.1, 0): 0.5, (0.2, 0): 0.9}), "recall", "max") == []
