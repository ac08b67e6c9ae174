"""Intervals, tables, checks, plots and pages of experiments; the sweeps of those that train."""

import math
import pathlib
import types

import numpy as np
import pyarrow.parquet
import pytest
from scipy import stats

from contrastive.sweeps.description import load_sweep
from contrastive.sweeps.folder import make_trials
from experiments.common import plots, seeds
from experiments.common.outcome import (
    Check,
    Line,
    Outcome,
    Plot,
    Table,
    curve,
    load,
    number,
    save,
    shown,
)
from experiments.common.page import publish, report, write_page
from experiments.common.training import Trials
from experiments.sigmoid_vs_softmax import experiment as sigmoid_vs_softmax
from experiments.sigmoid_vs_softmax.experiment import crossing, crossing_interval
from experiments.temperature.measures import hardest_share, tolerance

ROOT = pathlib.Path(__file__).parents[2]
MADE = {"date": "2026-01-02", "machine": "a machine, 2 cores", "versions": "jax 0.12"}


@pytest.fixture
def outcome():
    means = Table("means", "Means.", ("a",), ((seeds.Mean(1.0, 0.5, 1.5, 3),),))
    return Outcome(
        name="demo",
        title="A title & more",
        question="Why?",
        published="elsewhere <b>",
        tables=(Table("numbers", "Some | numbers.", ("a", "b|c"), ((1, 0.5), (2, None))), means),
        plots=(Plot("shape", "A shape", "x", "y", (Line("one", (1.0, 2.0), (3.0, 4.0)),)),),
        checks=(
            number("It is a half.", 0.5, 0.5004, 0.001),
            Check("It rises.", "> 0", "−1", False),
            Check("Perhaps.", "> 0", "−1", False, "finding"),
        ),
        seconds=90.0,
        made=MADE,
    )


def test_intervals_over_seeds_are_students():
    found = seeds.mean([0.1, 0.2, 0.4])
    low, high = stats.t.interval(0.95, 2, loc=0.7 / 3, scale=stats.sem([0.1, 0.2, 0.4]))
    np.testing.assert_allclose(found[:3], (0.7 / 3, low, high))
    assert found.sure == 0
    assert seeds.difference([0.1, 0.2, 0.3], [0.2, 0.31, 0.4]).sure == 1
    one = seeds.mean([0.3])
    assert one.value == 0.3
    assert math.isnan(one.low)
    assert one.sure == 0
    assert str(one) == "0.3"


def test_numbers_are_met_to_their_digits():
    assert number("x", 0.5, 0.5009, 0.001).met
    assert not number("x", 0.5, 0.5011, 0.001).met
    assert not number("x", 0.5, math.nan, 0.001).met
    check = number("x", -0.23358, -0.233581, 6e-6)
    assert (check.expected, check.found) == ("−0.23358 ± 6e−06", "−0.23358")
    assert number("x", 49_995_000, 49_995_000.0, 0).found == "49,995,000"


def test_what_is_missed_is_what_had_to_be_there(outcome):
    assert [check.what for check in outcome.missed] == ["It rises."]
    assert [check.verdict for check in outcome.checks] == ["as expected", "MISSED", "not seen"]


def test_an_outcome_is_read_back_whole(outcome, tmp_path):
    assert load(tmp_path) is None
    save(outcome, tmp_path)
    assert load(tmp_path) == outcome


def test_tables_as_files(outcome, tmp_path):
    table, _ = outcome.tables
    table.write(tmp_path)
    assert (tmp_path / "numbers.csv").read_text() == '"a","b|c"\n1,0.5\n2,\n'
    assert "| a | b\\|c |\n| --- | --- |\n| 1 | 0.5 |" in (tmp_path / "numbers.md").read_text()


def test_means_are_numbers_in_files(tmp_path):
    rows = (("one", seeds.mean([1.0, 3.0])), ("two", seeds.mean([0.5])))
    Table("means", "Means.", ("a", "b"), rows).write(tmp_path)
    (first, second) = pyarrow.parquet.read_table(tmp_path / "means.parquet").to_pylist()
    assert first == {"a": "one", "b": 2.0, "b, low": rows[0][1].low, "b, high": rows[0][1].high}
    assert second == {"a": "two", "b": 0.5, "b, low": None, "b, high": None}
    assert "| one | 2 [−10.71, 14.71] |" in (tmp_path / "means.md").read_text()


@pytest.mark.parametrize(
    "cell, text",
    [
        (1234567, "1,234,567"),
        (-0.012345, "−0.01235"),
        (12345.6, "12,346"),
        (None, ""),
        (True, "yes"),
    ],
)
def test_cells(cell, text):
    assert shown(cell) == text


def test_plots_are_the_same_bytes_for_the_same_numbers():
    line = curve("one", [(1, 0.5), (10, 2.0)])
    plot = Plot("p", "A & B", "x", "y", (line, line), x_log=True, references=(("here", 1.0),))
    drawn = plots.svg(plot)
    assert drawn == plots.svg(plot)
    assert drawn.lstrip().startswith("<?xml")
    assert len(drawn) < 60_000


def test_a_page_needs_nothing_but_itself(outcome, tmp_path):
    text = write_page(tmp_path / "index.html", [outcome, outcome]).read_text()
    assert "data:image/svg+xml;base64," in text
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "A title &amp; more" in text
    assert "elsewhere &lt;b&gt;" in text
    assert '<td class="missed">MISSED</td>' in text
    assert "2026-01-02" in text


def test_results_are_published_with_date_and_machine(outcome, tmp_path):
    source = tmp_path / "runs" / "demo"
    source.mkdir(parents=True)
    for table in outcome.tables:
        table.write(source)
    plots.write(outcome.plots[0], source)
    publish([outcome], tmp_path / "runs", tmp_path / "docs")
    page = (tmp_path / "docs" / "README.md").read_text()
    assert "[A title & more](demo/README.md) | short | 1 of 3 | It rises, Perhaps | 1.5 |" in page
    assert "| 2026-01-02 |" in page
    assert "a machine, 2 cores" in (tmp_path / "docs" / "demo" / "README.md").read_text()
    assert (tmp_path / "docs" / "demo" / "numbers.csv").is_file()
    assert "![A shape](shape.svg)" in report(outcome)
    assert (tmp_path / "docs" / "demo" / "shape.svg").is_file()


def test_where_two_curves_cross():
    assert crossing([32, 128, 512], [0.1, 0.05, -0.05]) == pytest.approx(256)
    assert crossing([32, 128], [0.1, 0.05]) is None
    assert crossing([32, 128], [-0.1, 0.05]) is None


def test_the_crossing_has_an_interval():
    def differences(*values, reach, runs):
        return [seeds.Mean(x, x - reach, x + reach, runs) for x in values]

    sure = crossing_interval([32, 128, 512], differences(0.1, 0.05, -0.05, reach=0.005, runs=1))
    assert 200 < sure[0] < 256 < sure[1] < 330
    assert sure[2] == 1
    unsure = crossing_interval([32, 128, 512], differences(0.1, 0.05, -0.05, reach=0.2, runs=3))
    assert unsure[0] < sure[0]
    assert unsure[1] > sure[1]
    assert 0.3 < unsure[2] < 0.95
    none = crossing_interval([32, 128], differences(0.5, 0.5, reach=0.01, runs=1))
    assert math.isnan(none[0])
    assert none[2] == 0


def test_tolerance_of_variants():
    from contrastive.data.emoji import load_concepts

    bases = [concept.base for concept in load_concepts()]
    first = next(i for i, base in enumerate(bases) if bases.count(base) == 2)
    other = bases.index(bases[first], first + 1)
    ids = np.array([first, other, 0])
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32)
    assert tolerance(rows, ids) == pytest.approx(1.0)


def test_weight_on_the_hardest():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for bias in (None, -50.0):  # a sigmoid that is far from saturated
        low, high = (hardest_share(rows, rows, scale, bias) for scale in (1.0, 50.0))
        assert 0.01 < low < 0.05
        assert high > 0.4


@pytest.mark.parametrize(
    "spec, count",
    [
        ("dense_retrieval/sweep.py:short", 3),
        ("dense_retrieval/sweep.py:full", 9),
        ("temperature/sweep.py:short", 9),
        ("temperature/sweep.py:full", 36),
        ("temperature/sweep.py:pod", 36),
        ("sigmoid_vs_softmax/sweep.py:emoji-short", 14),
        ("sigmoid_vs_softmax/sweep.py:texts-short", 12),
        ("sigmoid_vs_softmax/sweep.py:emoji-full", 42),
        ("sigmoid_vs_softmax/sweep.py:texts-full", 48),
        ("sigmoid_vs_softmax/sweep.py:pod", 60),
    ],
)
def test_the_sweeps_resolve_at_every_scale(spec, count, monkeypatch):
    monkeypatch.chdir(ROOT)
    trials = make_trials(load_sweep(f"experiments/{spec}"))
    assert len(trials) == count
    assert len({trial.name for trial in trials}) == count
    if "sigmoid" in spec:
        seen = {t.recipe.batch_size * t.recipe.total_steps for t in trials}
        assert max(seen) / min(seen) < 1.01  # equal examples
    if spec.endswith("softmax/sweep.py:pod"):
        assert {t.recipe.batch_size for t in trials} >= {512, 1_048_576}
    if spec.endswith("pod"):
        assert all("{split}" in trial.recipe.data.source for trial in trials)  # held-out pairs


def test_the_better_rate_counts_and_differences_are_paired_by_seed():
    metric = "recall@1"

    def row(seed, loss, rate, masked, value):
        settings = {"seed": seed, "batch_size": 32, "optimizer.learning_rate": rate}
        settings |= {"loss.name": loss, "loss.mask_duplicates": masked}
        return types.SimpleNamespace(
            trial=types.SimpleNamespace(settings=settings), results={metric: value}
        )

    trials = object.__new__(Trials)  # its folder is not read
    trials.rows = [
        row(seed, loss, rate, masked, 0.2 + 0.1 * seed + 100 * rate + gain + 0.01 * masked)
        for seed in (2, 0, 1)
        for loss, gain in (("clip", 0.0), ("siglip", 0.05 + 0.001 * seed))
        for rate in (1e-3, 3e-3)
        for masked in (False, True)
        if masked or rate > 1e-3
    ]
    (found,) = sigmoid_vs_softmax._by_size(trials, metric).values()
    assert {r.trial.settings["optimizer.learning_rate"] for r in found["rows"]["clip"]} == {3e-3}
    assert found["values"]["clip"].value == pytest.approx(0.61)
    assert found["difference"].value == pytest.approx(0.051)
    assert found["difference"].high - found["difference"].low < 0.01  # seeds differ by far more
    for name, _, _, gain in sigmoid_vs_softmax._masks(trials, metric).rows:
        assert str(gain).startswith("0.01 ["), name
