"""The best k of every query against a plain sort."""

import importlib.util

import numpy as np
import pytest

from contrastive.errors import UserError
from contrastive.evaluation.neighbours import neighbours, recall_of


def unit_rows(seed: int, n: int, dim: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("blocks", [(1024, 8192), (3, 7), (1, 1)])
def test_the_best_stand_first_whatever_the_blocks(blocks):
    queries, gallery = unit_rows(0, 10, 8), unit_rows(1, 40, 8)
    gallery[30] = gallery[2]  # the lower number first
    got = neighbours(queries, gallery, 5, block_rows=blocks[0], block_cols=blocks[1])
    scores = queries @ gallery.T
    scores[:, 30] = scores[:, 2]
    np.testing.assert_array_equal(got.items, np.argsort(-scores, axis=1, kind="stable")[:, :5])
    np.testing.assert_allclose(got.scores, -np.sort(-scores, axis=1)[:, :5], rtol=1e-5)


def test_a_row_is_no_neighbour_of_itself():
    rows = unit_rows(2, 12, 8)
    got = neighbours(rows, rows, 11, without_self=True, block_rows=5, block_cols=4)
    assert not (got.items == np.arange(12)[:, None]).any()
    assert (
        np.sort(got.items, axis=1) == [[j for j in range(12) if j != i] for i in range(12)]
    ).all()
    assert recall_of(got, rows, rows, without_self=True) == 1.0


def test_recall_of_what_was_missed():
    queries, gallery = unit_rows(3, 6, 8), unit_rows(4, 50, 8)
    exact = neighbours(queries, gallery, 4)
    assert recall_of(exact, queries, gallery) == 1.0
    wrong = exact._replace(scores=exact.scores - np.array([0, 0, 0, 1], np.float32))
    assert recall_of(wrong, queries, gallery) == pytest.approx(0.75)


def test_approximate_search_finds_what_it_says():
    queries, gallery = unit_rows(5, 20, 16), unit_rows(6, 3000, 16)
    got = neighbours(queries, gallery, 10, method="approx", recall_target=0.5)
    assert recall_of(got, queries, gallery) >= 0.5


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="extra faiss")
def test_faiss_misses_more_the_less_it_searches():
    queries, gallery = unit_rows(7, 50, 16), unit_rows(8, 2000, 16)
    shares = [
        recall_of(
            neighbours(queries, gallery, 10, method="faiss", recall_target=target),
            queries,
            gallery,
        )
        for target in (0.05, 1.0)
    ]
    assert shares[1] == 1.0
    assert 0.05 < shares[0] < 0.95


@pytest.mark.skipif(importlib.util.find_spec("faiss") is not None, reason="extra faiss is here")
def test_faiss_is_an_extra():
    rows = unit_rows(9, 5, 8)
    with pytest.raises(UserError, match=r"pip install -e '\.\[faiss\]'"):
        neighbours(rows, rows, 2, method="faiss")


def test_what_cannot_be_searched_is_named():
    rows = unit_rows(10, 5, 8)
    with pytest.raises(ValueError, match="k = 6; there are 5 items"):
        neighbours(rows, rows, 6)
    with pytest.raises(ValueError, match="there are 4 items"):
        neighbours(rows, rows, 5, without_self=True)
    with pytest.raises(ValueError, match="recall_target = 0"):
        neighbours(rows, rows, 2, method="approx", recall_target=0.0)
    with pytest.raises(ValueError, match="query 0 is not finite"):
        neighbours(rows * np.float32(np.nan), rows, 2)
