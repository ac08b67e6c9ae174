"""The experiments that compute numbers, against the seed document; those that train a little."""

import pathlib

import numpy as np
import pytest

from experiments.alignment_uniformity import experiment as alignment_uniformity
from experiments.common.outcome import load
from experiments.common.runner import NAMES, Context, run
from experiments.gradient_anatomy import experiment as gradient_anatomy
from experiments.learned_scale import experiment as learned_scale
from experiments.log_b import experiment as log_b
from experiments.mutual_information import experiment as mutual_information

ROOT = pathlib.Path(__file__).parents[2]


def found(experiment, tmp_path):
    outcome = experiment.run(Context(tmp_path, "short"))
    assert not outcome.missed, [(check.what, check.found) for check in outcome.missed]
    return outcome


def test_F2_F3_where_the_loss_starts_and_ends(tmp_path):
    outcome = found(log_b, tmp_path)
    by_size = {row[0]: row for row in outcome.tables[0].rows}
    np.testing.assert_allclose(by_size[2048][2], np.log(2048), rtol=0.01)
    assert by_size[2048][4] > np.log(2048) + 2  # tau = .05


def test_F4_the_bound_and_its_ceiling(tmp_path):
    found(mutual_information, tmp_path)


def test_F6_scales_of_three_difficulties(tmp_path):
    outcome = found(learned_scale, tmp_path)
    names = [row[0] for row in outcome.tables[0].rows]
    best = [row[2] for row in outcome.tables[0].rows]
    assert names == ["clean", "middle", "hard"]
    assert best[0] > best[1] > best[2]


def test_F1_F5_what_the_gradient_consists_of(tmp_path):
    found(gradient_anatomy, tmp_path)


@pytest.mark.slow
def test_F8_pulling_alone_collapses(tmp_path):
    found(alignment_uniformity, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large_m", "hard_negatives", "triplet"])
def test_F7_F10_the_slower_ones(name, tmp_path):
    outcome = run(name, tmp_path / name, "short")
    assert not outcome.missed, [(check.what, check.found) for check in outcome.missed]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_has_a_runner_and_says_what_to_expect(name):
    for file in ("__main__.py", "experiment.py", "README.md"):
        assert (ROOT / "experiments" / name / file).is_file(), file


def test_what_an_experiment_leaves_is_read_back_and_not_run_again(tmp_path):
    first = run("log_b", tmp_path / "log_b", "short")
    assert load(tmp_path / "log_b") == first
    for file in ("losses.csv", "losses.parquet", "losses.md", "losses.svg", "index.html"):
        assert (tmp_path / "log_b" / file).stat().st_size > 0, file
    again = run("log_b", tmp_path / "log_b", "short")
    assert again.seconds == first.seconds
    assert set(again.made) == {"date", "machine", "versions"}
