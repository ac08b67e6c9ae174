"""Ranks, recall and ties against the plainest possible counting."""

import itertools
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest

from contrastive import geometry
from contrastive.evaluation import placing
from contrastive.evaluation.ranking import Ranks, rank, rank_scores
from contrastive.evaluation.retrieval import chance_recall, retrieval_metrics


def unit_rows(seed: int, n: int, dim: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def recall_by_enumeration(scores: np.ndarray, right: np.ndarray, k: int) -> float:
    """Mean over all orders that respect the scores (items that tie stand in any order)."""
    hits = total = 0
    for order in itertools.permutations(range(len(scores))):
        ordered = scores[list(order)]
        if np.all(ordered[:-1] >= ordered[1:]):
            total += 1
            hits += bool(right[list(order)][:k].any())
    return hits / total


def test_D03_ties_are_ranked_by_expectation():
    """A collapsed model scores exactly chance; the target does not win ties."""
    same = rank_scores(np.ones((4, 4)), np.arange(4), np.arange(4))
    assert len(same.recall(1)) == 4
    np.testing.assert_allclose(same.recall(1), 0.25)
    np.testing.assert_allclose(same.expected(), 2.5)
    scores = np.array([[1.0, 1, 1], [5, 5, 5], [0, 0, 1]])
    ranks = rank_scores(scores, np.arange(3), np.arange(3))
    np.testing.assert_allclose(ranks.recall(1), [1 / 3, 1 / 3, 1])
    np.testing.assert_allclose(ranks.expected(), [2, 2, 1])
    pessimistic = ranks.greater + ranks.equal + ranks.targets
    np.testing.assert_array_equal(pessimistic, [3, 3, 1])


def test_D03_permuting_items_and_blocks_changes_nothing():
    rng = np.random.default_rng(0)
    gallery = np.repeat(unit_rows(1, 20, 8), 3, axis=0)  # every item three times: ties
    queries = gallery[rng.permutation(60)]
    gallery_ids = np.arange(60)
    query_ids = rng.permutation(60)
    expected = retrieval_metrics(queries, gallery, query_ids, gallery_ids)
    for rows, cols in ((1, 1), (7, 13), (60, 60), (1024, 8192)):
        order = rng.permutation(60)
        got = retrieval_metrics(
            queries, gallery[order], query_ids, gallery_ids[order], block_rows=rows, block_cols=cols
        )
        assert got == expected


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_recall_equals_enumeration_of_all_orders(k: int):
    rng = np.random.default_rng(2)
    for _ in range(20):
        scores = rng.integers(0, 3, size=5).astype(float)
        right = rng.random(5) < 0.5
        right[rng.integers(5)] = True
        ranks = rank_scores(scores[None], np.array([1]), right.astype(np.int64) * 2 - 1)
        assert ranks.recall(k)[0] == pytest.approx(recall_by_enumeration(scores, right, k))


def test_expected_rank_of_the_first_of_several_tied_targets():
    """Two targets level with one rival, one above: the first stands at 2, 2 or 3."""
    ranks = Ranks(np.array([1]), np.array([1]), np.array([2]))
    assert ranks.expected()[0] == pytest.approx(1 + (1 + 1 + 2) / 3)


def test_several_captions_an_image_and_several_images_a_caption():
    gallery = np.eye(4, dtype=np.float32)
    queries = np.array([[0, 1, 0, 0], [0.6, 0, 0.8, 0]], np.float32)
    got = rank(queries, gallery, np.array([7, 8]), np.array([7, 7, 9, 8]))
    np.testing.assert_array_equal(got.greater, [0, 2])  # item 1 is right; 0 and 2 stand above 3
    np.testing.assert_array_equal(got.equal, [0, 1])  # item 1 is level with item 3 at 0
    np.testing.assert_array_equal(got.targets, [1, 1])


def test_ranks_equal_float64_counting():
    queries, gallery = unit_rows(3, 50, 16), unit_rows(4, 300, 16)
    query_ids, gallery_ids = np.arange(50), np.arange(300) % 75
    scores = queries.astype(np.float64) @ gallery.astype(np.float64).T
    plain = rank_scores(scores, query_ids, gallery_ids)
    fast = rank(queries, gallery, query_ids, gallery_ids, block_rows=16, block_cols=64)
    np.testing.assert_array_equal(fast.greater, plain.greater)
    np.testing.assert_array_equal(fast.equal, plain.equal)


def test_recall_equals_the_one_inside_compiled_programs():
    """On rows without near ties the two agree; with exact ties both rank them fairly."""
    queries, gallery = unit_rows(12, 40, 16), unit_rows(13, 120, 16)
    gallery = np.concatenate([gallery, gallery[:40]])  # a copy of every target under another id
    query_ids, gallery_ids = np.arange(40, dtype=np.int32), np.arange(160, dtype=np.int32)
    here = rank(queries, gallery, query_ids, gallery_ids)
    there = geometry.recall_at_k(
        jnp.asarray(queries),
        jnp.asarray(gallery),
        (1, 10, 50),
        query_ids=jnp.asarray(query_ids),
        key_ids=jnp.asarray(gallery_ids),
    )
    np.testing.assert_allclose([here.recall(k).mean() for k in (1, 10, 50)], there, atol=1e-6)


def test_near_ties_that_float32_cannot_tell_are_told():
    """Neighbours one unit in the last place away: float32 products may call them equal."""
    base = unit_rows(5, 1, 64)[0]
    gallery = np.stack([base, base, base])
    gallery[1, 0] = np.nextafter(base[0], np.float32(2))
    query = np.zeros((1, 64), np.float32)
    query[0, 0] = 1e-3
    got = rank(query, gallery, np.array([0]), np.array([0, 1, 2]))
    assert (got.greater[0], got.equal[0]) == (1, 1)


def test_D08_same_metrics_for_every_chunk_and_memory_grows_with_the_chunk():
    rng = np.random.default_rng(6)
    queries, gallery = unit_rows(7, 2_000, 64), unit_rows(8, 10_000, 64)
    ids = rng.permutation(10_000)[:2_000]
    results, peaks = {}, {}
    for chunk in (7, 256, 10_000):
        tracemalloc.start()
        results[chunk] = retrieval_metrics(
            queries,
            gallery,
            ids,
            np.arange(10_000),
            block_rows=2_000,
            block_cols=chunk,
        )
        peaks[chunk] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert results[7] == results[256] == results[10_000]
    assert peaks[256] < 2_000 * 10_000 * 4 / 8  # a small part of the full float32 matrix


def test_chunks_of_one_give_the_same_metrics():
    queries, gallery = unit_rows(9, 20, 64), unit_rows(10, 40, 64)
    ids = np.arange(20)
    whole = retrieval_metrics(queries, gallery, ids, np.arange(40))
    single = retrieval_metrics(queries, gallery, ids, np.arange(40), block_rows=1, block_cols=1)
    assert whole == single


def test_pairs_are_scored_a_bounded_number_at_a_time(monkeypatch):
    rows = np.repeat(unit_rows(11, 1, 8), 30, axis=0)
    whole = rank(rows, rows, np.arange(30), np.arange(30))
    monkeypatch.setattr(placing, "PAIR_BUDGET", 64)
    parts = rank(rows, rows, np.arange(30), np.arange(30))
    np.testing.assert_array_equal(whole.equal, 29)
    np.testing.assert_array_equal(parts.equal, 29)


def test_chance_is_what_a_random_order_gives():
    assert chance_recall(np.array([1, 1]), 1949, 10) == pytest.approx(10 / 1949)
    assert chance_recall(np.array([2]), 4, 2) == pytest.approx(1 - 1 / 6)


def test_recall_of_more_than_the_gallery_is_left_out():
    results = retrieval_metrics(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32),
                                np.arange(3), np.arange(3))  # fmt: skip
    assert results["recall@1"] == 1.0
    assert "recall@5" not in results
    assert (results["queries"], results["gallery"]) == (3, 3)


def test_what_cannot_be_ranked_is_named():
    rows = np.eye(2, dtype=np.float32)
    with pytest.raises(ValueError, match="0 queries"):
        rank(rows[:0], rows, np.arange(0), np.arange(2))
    with pytest.raises(ValueError, match=r"1 of 2 queries .* query 1 with id 5"):
        rank(rows, rows, np.array([0, 5]), np.arange(2))
    with pytest.raises(ValueError, match="gallery item 1 is not finite"):
        rank(rows, np.array([[1, 0], [np.nan, 0]], np.float32), np.arange(2), np.arange(2))
