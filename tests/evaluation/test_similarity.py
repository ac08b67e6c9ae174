"""Correlations, thresholds and mined pairs."""

import numpy as np
import pytest

from contrastive.errors import DataError
from contrastive.evaluation.bitext import bitext_metrics, mine
from contrastive.evaluation.similarity import (
    pair_classification_metrics,
    similarity_metrics,
    spearman,
)


def rows_with_cosines(cosines) -> tuple[np.ndarray, np.ndarray]:
    c = np.asarray(cosines, np.float64)
    first = np.tile([1.0, 0.0], (len(c), 1)).astype(np.float32)
    return first, np.stack([c, np.sqrt(1 - c**2)], axis=1).astype(np.float32)


def test_D12_spearman_gives_equal_values_their_mean_rank():
    first, second = rows_with_cosines([0.1, 0.2, 0.3, 0.2])
    got = similarity_metrics(first, second, np.array([0.0, 1, 1, 5]))
    assert got["spearman"] == pytest.approx(0.5)
    assert spearman(np.array([1.0, 2, 2, 3, 5]), np.array([0.9, 0.1, 0.4, 0.4, 0.8])) == (
        pytest.approx(-0.131578947)
    )
    assert got.each["spearman"].shape == (2, 4)


def test_D12_constant_predictions_have_no_correlation():
    first, second = rows_with_cosines([0.3] * 4)
    got = similarity_metrics(first, second, np.arange(4.0))
    assert (got["spearman"], got["pearson"]) == (None, None)
    assert got["undefined"] == "all cosines are equal"
    got = similarity_metrics(*rows_with_cosines([0.3, 0.4]), np.ones(2))
    assert got["undefined"] == "all scores are equal"


def test_zero_embeddings_have_cosine_zero():
    first, second = rows_with_cosines([0.5, -0.5, 0.1])
    first[2] = 0
    got = similarity_metrics(first, second, np.array([2.0, 0, 1]))
    assert got["spearman"] == pytest.approx(1.0)


def test_what_cannot_be_correlated_is_named():
    first, second = rows_with_cosines([0.5, 0.1])
    with pytest.raises(DataError, match="2 pairs with 1 scores"):
        similarity_metrics(first, second, np.ones(1))
    with pytest.raises(ValueError, match="pair 1 is no number"):
        similarity_metrics(first, second, np.array([1, np.nan]))
    with pytest.raises(DataError, match="as many first rows"):
        similarity_metrics(first, second[:1], np.ones(2))


def test_thresholds_by_hand():
    """Cosines .9 .8 .7 .6 .5, the same: yes yes no yes no."""
    rows = rows_with_cosines([0.7, 0.9, 0.5, 0.8, 0.6])
    got = pair_classification_metrics(*rows, np.array([0, 1, 0, 1, 1]))
    assert got["average_precision"] == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert got["roc_auc"] == pytest.approx(5 / 6)
    assert got["f1"] == pytest.approx(6 / 7)  # at .55: 3 of 4 are right, all are found
    assert (got["precision"], got["recall"]) == (pytest.approx(0.75), 1.0)
    assert got["f1_threshold"] == pytest.approx(0.55)
    assert got["accuracy"] == pytest.approx(0.8)
    assert got["accuracy_majority"] == pytest.approx(0.6)


def test_equal_cosines_cannot_be_cut_in_two():
    rows = rows_with_cosines([0.5, 0.5, 0.5, 0.5])
    for labels in ([1, 1, 0, 0], [0, 0, 1, 1]):
        got = pair_classification_metrics(*rows, np.array(labels))
        assert got["average_precision"] == pytest.approx(0.5)
        assert got["roc_auc"] == pytest.approx(0.5)
        assert got["accuracy"] == pytest.approx(0.5)


def test_pairs_of_one_kind_are_an_error():
    rows = rows_with_cosines([0.5, 0.1])
    for labels, kind in ((np.ones(2), "the same"), (np.zeros(2), "not the same")):
        with pytest.raises(DataError, match=f"all 2 pairs are {kind}"):
            pair_classification_metrics(*rows, labels)
    with pytest.raises(DataError, match="needs a label"):
        pair_classification_metrics(*rows, np.array([1, 2]))


def translations(seed: int, n: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 32))
    both = rows, rows + noise * rng.normal(size=rows.shape)
    one, other = ((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in both)
    return one, other


def test_translations_are_found_both_ways_and_mined():
    first, second = translations(0, 60, 0.1)
    got = bitext_metrics(first, second)
    assert (got["accuracy"], got["accuracy_back"], got["f1"]) == (1, 1, 1)
    # Half of the first list has no translation: mining has to leave it out.
    got = bitext_metrics(first, second[:30], np.stack([np.arange(30)] * 2, axis=1))
    assert got["recall"] == 1.0
    assert got["f1"] > 0.9
    assert got["mined"] == 30  # a sentence is taken once


def test_the_surest_pairs_are_mined_first():
    first, second = translations(1, 40, 0.3)
    second[::2] = translations(2, 20, 0.0)[0]  # no translations
    pairs, margins = mine(first, second)
    assert (np.diff(margins) <= 0).all()
    assert (pairs[:15, 0] == pairs[:15, 1]).all()
    assert (pairs[:15, 0] % 2 == 1).all()


def test_bitext_of_a_collapsed_model_is_chance():
    rows = np.ones((20, 4), np.float32) / 2
    got = bitext_metrics(rows, rows)
    assert got["accuracy"] == pytest.approx(got["accuracy_chance"])
    with pytest.raises(DataError, match="20 and 19 sentences"):
        bitext_metrics(rows, rows[:19])
    with pytest.raises(DataError, match="no pairs"):
        bitext_metrics(rows, rows, np.zeros((0, 2), int))
