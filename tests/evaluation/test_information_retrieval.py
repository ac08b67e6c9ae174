"""Measures over judged items against the plainest computation, ties included."""

import itertools
import math

import numpy as np
import pytest

from contrastive.errors import DataError
from contrastive.evaluation.information_retrieval import information_retrieval_metrics
from contrastive.evaluation.relevance import Relevance


def of_order(gains: list[float], all_gains: list[float]) -> dict[str, float]:
    """The measures of one order, as textbooks write them."""
    right = [gain > 0 for gain in gains]
    total = sum(gain > 0 for gain in all_gains)
    discounts = [1 / math.log2(rank + 1) for rank in range(1, 11)]
    ideal = sorted(all_gains, reverse=True)
    dcg, best = (sum(map(math.prod, zip(x, discounts, strict=False))) for x in (gains, ideal))
    first = next((rank for rank, hit in enumerate(right, 1) if hit), math.inf)
    precisions = [
        sum(right[:rank]) / rank if right[rank - 1] else 0.0 for rank in range(1, len(right) + 1)
    ]
    return {
        "ndcg@10": dcg / best,
        "mrr@10": 1 / first if first <= 10 else 0.0,
        "map": sum(precisions) / total,
        "recall@1": sum(right[:1]) / total,
        "recall@10": sum(right[:10]) / total,
        "precision@10": sum(right[:10]) / 10,
        "success@1": float(any(right[:1])),
    }


def rows_with_scores(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Queries and items whose products are these scores."""
    return np.eye(len(scores), dtype=np.float32), scores.T.astype(np.float32).copy()


def judged(gains: np.ndarray) -> Relevance:
    rows, items = np.nonzero(gains)
    return Relevance.from_pairs(rows, items, gains[rows, items].astype(float), queries=len(gains))


def test_measures_equal_the_textbook_over_a_sorted_list():
    rng = np.random.default_rng(0)
    scores, gains = rng.normal(size=(30, 60)), rng.choice([0, 0, 0, 1, 2, 3], size=(30, 60))
    gains[:, 0] = 1
    queries, corpus = rows_with_scores(scores)
    got = information_retrieval_metrics(queries, corpus, judged(gains))
    for i in range(30):
        order = np.argsort(-scores[i])
        wanted = of_order(gains[i][order].tolist(), gains[i].tolist())
        for name, value in wanted.items():
            assert got.each[name][i] == pytest.approx(value, abs=1e-12), name
    assert got["ndcg@10"] == pytest.approx(np.mean(got.each["ndcg@10"]))


def test_ties_give_the_mean_over_all_orders():
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 3, size=(25, 6)).astype(float)
    gains = rng.choice([0, 0, 1, 2], size=(25, 6))
    gains[:, 2] = 1
    got = information_retrieval_metrics(*rows_with_scores(scores), judged(gains))
    for i in range(25):
        found = [
            of_order(gains[i][list(order)].tolist(), gains[i].tolist())
            for order in itertools.permutations(range(6))
            if (np.diff(scores[i][list(order)]) <= 0).all()
        ]
        for name in found[0]:
            mean = np.mean([one[name] for one in found])
            assert got.each[name][i] == pytest.approx(mean, abs=1e-12), (name, i)


def test_what_is_not_in_the_corpus_counts_as_never_found():
    qrels = {"a": {"x": 1, "gone": 1}, "b": {"y": 0}}
    relevance = Relevance.from_judgements(qrels, ["a", "b"], ["x", "y"])
    got = information_retrieval_metrics(
        np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), relevance
    )
    assert got["recall@10"] == 0.5
    assert got["map"] == 0.5
    assert (got["queries"], got["queries_without_right_items"]) == (1, 1)


def test_judgements_of_other_queries_are_an_error():
    with pytest.raises(DataError, match=r"1 judged queries .* 'z'"):
        Relevance.from_judgements({"z": {"x": 1}}, ["a"], ["x"])
    with pytest.raises(DataError, match="none of the 2 right items is among the 1 items"):
        Relevance.from_judgements({"a": {"x": 1, "y": 2}}, ["a"], ["X"])
    empty = Relevance.from_judgements({"a": {"x": 0}}, ["a"], ["x"])
    rows = np.eye(1, dtype=np.float32)
    with pytest.raises(DataError, match="none of the 1 queries"):
        information_retrieval_metrics(rows, rows, empty)


def test_a_collapsed_model_scores_chance():
    rows = np.ones((50, 4), np.float32) / 2
    relevance = Relevance.from_ids(np.arange(50), np.arange(50))
    got = information_retrieval_metrics(rows, rows, relevance)
    assert got["recall@10"] == pytest.approx(got["recall@10_chance"]) == pytest.approx(0.2)
    assert got["mrr@10"] == pytest.approx(sum(1 / r for r in range(1, 11)) / 50)
    assert got["map"] == pytest.approx(sum(1 / r for r in range(1, 51)) / 50)
