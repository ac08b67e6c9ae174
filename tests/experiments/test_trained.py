"""The experiments that train, end to end: every part of them on a few trials of two steps."""

import dataclasses
import pathlib

import pytest

from contrastive.commands import sweep as command
from contrastive.sweeps.description import load_sweep
from experiments.common.runner import run
from experiments.sigmoid_vs_softmax import experiment as sigmoid_vs_softmax

ROOT = pathlib.Path(__file__).parents[2]
TINY = {"data.emoji.validation": False, "eval.pictures": 60, "log.every": 1}


@pytest.fixture
def tiny_sweeps(monkeypatch):
    """Sweeps with two steps a trial, of the trials that ``keep`` chooses."""
    monkeypatch.chdir(ROOT)

    def use(keep):
        def tiny(spec):
            sweep = load_sweep(spec)
            settings = tuple(
                {**one, "total_steps": 2} if "total_steps" in one else one
                for one in sweep.settings
                if keep(one)
            )
            settings = tuple({k: v for k, v in one.items() if k not in TINY} for one in settings)
            fixed = {**sweep.fixed, **TINY, "optimizer.warmup_steps": 1}
            if "total_steps" in fixed:
                fixed["total_steps"] = 2
            for one in settings:
                fixed = {k: v for k, v in fixed.items() if k not in one}
            return dataclasses.replace(sweep, settings=settings, fixed=fixed)

        monkeypatch.setattr(command, "load_sweep", tiny)

    return use


@pytest.mark.slow
def test_the_temperature(tiny_sweeps, tmp_path):
    def keep(one):
        fixed = bool(one["optimizer.multipliers"])
        return not fixed or one["loss.scale_init"] in (1.0, 100.0)

    tiny_sweeps(keep)
    outcome = run("temperature", tmp_path, "short")
    assert [row[0] for row in outcome.tables[0].rows] == [
        "tau = 0.01",
        "tau = 1",
        "learned, clip 100",
        "learned, no clip",
        "sigmoid from 10, −10",
        "sigmoid from 10, −log(B − 1)",
    ]
    assert (tmp_path / "scale.svg").is_file()
    assert not outcome.missed


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "data" / "debian").is_dir(), reason="no data: experiments.data")
def test_sigmoid_against_softmax(tiny_sweeps, tmp_path, monkeypatch):
    tiny_sweeps(
        lambda one: (
            one["batch_size"] in (32, 512)
            and one["optimizer.learning_rate"] > 1e-3
            and one["batch_size"] * one["total_steps"] < 41_000
        )
    )
    monkeypatch.setattr(sigmoid_vs_softmax, "COST", (64,))
    outcome = run("sigmoid_vs_softmax", tmp_path, "short")
    emoji, texts, crossings, masks, cost = outcome.tables
    assert [row[0] for row in emoji.rows] == [32, 512]
    assert [row[0] for row in texts.rows] == [32]
    assert [row[0] for row in masks.rows] == ["softmax", "sigmoid"]
    assert all("[" in str(row[3]) for row in masks.rows)  # with its interval
    assert len(crossings.rows) == 2
    assert len(cost.rows) == 1
