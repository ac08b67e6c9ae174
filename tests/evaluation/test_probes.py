"""Probes, intervals and shapes of embeddings on data whose answer is known."""

import numpy as np
import pytest

from contrastive.errors import DataError
from contrastive.evaluation.bootstrap import difference, interval
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.probes import few_shot, knn, linear_probe
from contrastive.evaluation.shape import (
    alarm,
    effective_rank,
    geometry_metrics,
    histograms,
    spectrum,
)


def clusters(seed: int, n: int, noise: float, classes: int = 3, dim: int = 16):
    """Unit rows around one centre a class, and labels 10, 20, …"""
    centres = np.random.default_rng(0).normal(size=(classes, dim))
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    rows = centres[labels] + noise * rng.normal(size=(n, dim))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return rows, 10 * (labels + 1)


def test_probes_read_off_what_is_there_and_no_more():
    train, test = clusters(1, 150, 0.3), clusters(2, 100, 0.3)
    for probe in (knn, linear_probe):
        got = probe(*train, *test)
        assert got["top1"] == 1.0
        assert got["top1_chance"] == pytest.approx(1 / 3)
        assert (got["images"], got["classes"]) == (100, 3)
    assert few_shot(*train, *test, shots=5)["top1"] > 0.95
    shuffled = np.random.default_rng(3).permutation(test[1])
    for got in (knn(*train, test[0], shuffled), linear_probe(*train, test[0], shuffled)):
        assert abs(got["top1"] - 1 / 3) < 0.15
        assert got["top1_low"] < got["top1"] < got["top1_high"]


def test_knn_equals_a_plain_vote():
    (train, labels), (test, wanted) = clusters(4, 40, 1.5), clusters(5, 25, 1.5)
    got = knn(train, labels, test, wanted, k=5)
    cosines = test @ train.T
    for i in range(len(test)):
        near = np.argsort(-cosines[i])[:5]
        votes = {c: np.exp(cosines[i, near] / 0.07)[labels[near] == c].sum() for c in (10, 20, 30)}
        assert got.each["top1"][i] == (max(votes, key=votes.get) == wanted[i])


def test_the_penalty_is_chosen_on_a_part_of_the_training_examples():
    """Few noisy examples in many dimensions: hardly any penalty overfits."""
    train, test = clusters(6, 60, 3.0, dim=100), clusters(7, 300, 3.0, dim=100)
    got = linear_probe(*train, *test)
    assert got["penalty"] in [10.0**-i for i in range(1, 8)]
    fixed = [linear_probe(*train, *test, penalties=(x,))["validation_top1"] for x in (0.1, 1e-7)]
    assert got["validation_top1"] >= max(fixed)


def test_linear_probe_is_at_the_minimum_of_its_loss():
    from contrastive.evaluation import probes

    rows, labels = clusters(8, 80, 1.0)
    seen = labels // 10 - 1
    weights = probes._fit(rows, seen, 3, 1e-2, None)
    x = np.concatenate([rows, np.ones((80, 1))], axis=1)
    logits = x @ weights
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    slope = x.T @ (p - np.eye(3)[seen]) / 80
    slope[:-1] += 1e-2 * weights[:-1]
    assert np.abs(slope).max() < 1e-4


def test_least_squares_equals_the_normal_equations():
    from contrastive.evaluation import probes

    rows, labels = clusters(9, 12, 1.0, dim=20)
    got = probes._least_squares(rows, labels // 10 - 1, 3)(0.5)(rows)
    x = rows.astype(np.float64) - rows.astype(np.float64).mean(axis=0)
    y = np.where(labels[:, None] == [10, 20, 30], 1.0, -1.0)
    w = np.linalg.solve(x.T @ x + 0.5 * np.eye(20), x.T @ (y - y.mean(axis=0)))
    np.testing.assert_allclose(got, x @ w + y.mean(axis=0), atol=1e-10)


def test_unlabelled_and_unknown_classes():
    (train, labels), (test, wanted) = clusters(10, 60, 0.2), clusters(11, 40, 0.2)
    part = np.where(wanted == 30, -1, wanted)
    assert knn(train, labels, test, part)["images"] == (wanted != 30).sum()
    keep = labels != 30  # never shown: those examples are wrong
    got = knn(train[keep], labels[keep], test, wanted)
    assert got["top1"] == pytest.approx((wanted != 30).mean())


def test_what_cannot_be_probed_is_named():
    rows, labels = clusters(12, 20, 0.2)
    one = np.zeros(20, int)
    with pytest.raises(DataError, match="all 20 training examples are of one class"):
        linear_probe(rows, one, rows, labels)
    assert knn(rows, one, rows, one)["top1"] == 1.0
    with pytest.raises(DataError, match="0 to test on"):
        knn(rows, labels, rows, one - 1)
    with pytest.raises(DataError, match=r"class \d+ has \d+ training examples; 19 are"):
        few_shot(rows, labels, rows, labels, shots=19)
    with pytest.raises(DataError, match="no class has two"):
        linear_probe(rows[:3], np.arange(3), rows[:3], np.arange(3))


def test_intervals_hold_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(13)
    inside = 0
    for seed in range(200):
        low, high = interval((rng.random(80) < 0.3).astype(float), samples=300, seed=seed)[1:]
        inside += low <= 0.3 <= high
    assert 0.88 < inside / 200 < 0.99


def test_paired_differences_are_tighter_than_two_intervals():
    rng = np.random.default_rng(14)
    before = rng.normal(size=300)
    after = before + 0.1 + 0.05 * rng.normal(size=300)
    value, low, high = difference(before, after)
    assert low < value < high
    assert low > 0.09
    assert interval(after).low < interval(before).high  # apart from each other they overlap
    ranks = np.stack([before, before + rng.normal(size=300)])
    better = np.stack([after, before + 0.1 * rng.normal(size=300)])
    assert difference(ranks, better, samples=100).low > 0
    with pytest.raises(ValueError, match="300 and 299"):
        difference(before, after[1:])
    with pytest.raises(ValueError, match="nothing to draw"):
        interval(before[:0])


def test_effective_rank_and_spectrum():
    assert effective_rank(spectrum(np.eye(7, dtype=np.float32))) == pytest.approx(7)
    same = np.repeat(np.eye(7, dtype=np.float32)[:1], 30, axis=0)
    assert effective_rank(spectrum(same)) == pytest.approx(1)
    assert effective_rank(spectrum(np.zeros((3, 7), np.float32))) == 0
    rows = np.random.default_rng(15).normal(size=(50, 6)).astype(np.float32)
    np.testing.assert_allclose(
        spectrum(rows), np.linalg.svd(rows.astype(float), compute_uv=False), rtol=1e-6
    )


def unit(seed: int, n: int, dim: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_geometry_of_two_towers():
    first, ids = unit(16, 200, 16), np.arange(200)
    apart = first * np.float32(0.6)
    apart[:, 0] += 0.8  # the other tower lives in a cone of its own
    apart /= np.linalg.norm(apart, axis=1, keepdims=True)
    got = geometry_metrics(first, apart, ids, scale=10.0)
    gap = np.linalg.norm(first.mean(axis=0) - apart.mean(axis=0))
    assert got["modality_gap"] == pytest.approx(gap, rel=1e-5)
    assert got["information_ceiling"] == pytest.approx(np.log(200))
    assert 0 < got["information_bound"] < got["information_ceiling"]
    twice = (np.concatenate([x, x]) for x in (first, apart, ids))  # no negatives of themselves
    again = geometry_metrics(*twice, scale=10.0)
    assert again["information_bound"] == pytest.approx(got["information_bound"], rel=1e-6)
    assert got["cosine_positive"] == pytest.approx((first * apart).sum(axis=1).mean(), rel=1e-5)
    assert abs(got["cosine_negative"]) < 0.1
    assert got["collapsed"] == 0
    assert "information_bound" not in geometry_metrics(first, apart, ids)
    drawn = histograms(first, apart, ids)
    assert drawn["cosines_positive"].sum() == pytest.approx(1)
    assert drawn["cosines_negative"].sum() == pytest.approx(1)
    assert drawn["spectrum_first"][0] == 1


def test_a_collapse_raises_the_alarm():
    ids = np.arange(100)
    same = np.repeat(unit(17, 1, 64), 100, axis=0)
    got = geometry_metrics(same, same, ids)
    assert got["collapsed"] == 1
    assert "all images have nearly the same embedding" in alarm(got, 100, 64)[0]
    flat = np.zeros((100, 64), np.float32)
    flat[:, :2] = unit(18, 100, 2)
    got = geometry_metrics(flat, flat, ids, names=("queries", "passages"))
    assert got["collapsed"] == 1
    assert (
        "queries use 2.0 of 64 dimensions" in alarm(got, 100, 64, names=("queries", "passages"))[0]
    )
    few = Measured(geometry_metrics(same[:10], same[:10], ids[:10]))
    assert few["collapsed"] == 0


def test_zero_embeddings_are_measured():
    zeros = np.zeros((60, 8), np.float32)
    got = geometry_metrics(zeros, zeros, np.arange(60), scale=1.0)
    assert got["effective_rank_images"] == 0
    assert got["collapsed"] == 1
