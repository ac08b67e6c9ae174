"""Counts of what stands above and level, against plain float64 counting."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from contrastive.evaluation import placing
from contrastive.evaluation.placing import Shapes, place
from contrastive.evaluation.relevance import Relevance
from contrastive.evaluation.retrieval import r_precision, retrieval_metrics


def unit_rows(seed: int, n: int, dim: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def plain(queries, gallery, relevance, left_out=()):
    """Counts from the whole float64 matrix."""
    scores = queries.astype(np.float64) @ gallery.astype(np.float64).T
    for row, item in left_out:
        scores[row, item] = -np.inf
    above, level = [], []
    for row, item in zip(relevance.rows, relevance.items, strict=True):
        gap = scores[row] - scores[row, item]
        above.append(np.sum(gap > 1e-12))
        level.append(np.sum(np.abs(gap) <= 1e-12))
    return np.array(above), np.array(level)


def random_relevance(seed: int, queries: int, items: int, most: int) -> Relevance:
    """Some queries with no right item, some with many."""
    rng = np.random.default_rng(seed)
    pairs = [
        (i, j)
        for i in range(queries)
        for j in rng.choice(items, rng.integers(0, most + 1), replace=False)
    ]
    rows, columns = np.array(pairs).T
    return Relevance.from_pairs(rows, columns, queries=queries)


@pytest.mark.parametrize("most", [1, 5, 20])
@pytest.mark.parametrize("blocks", [(1024, 8192), (7, 16)])
def test_counts_equal_the_whole_matrix(most: int, blocks):
    queries, gallery = unit_rows(0, 40, 16), unit_rows(1, 150, 16)
    gallery[100:120] = gallery[:20]  # duplicates
    gallery[120:124] = 0  # and embeddings of nothing
    relevance = random_relevance(2, 40, 150, most)
    got = place(queries, gallery, relevance, block_rows=blocks[0], block_cols=blocks[1])
    above, level = plain(queries, gallery, relevance)
    np.testing.assert_array_equal(got.greater, above)
    np.testing.assert_array_equal(got.level, level)
    assert level.max() > 1


def test_devices_change_nothing():
    queries, gallery = unit_rows(3, 53, 8), unit_rows(4, 90, 8)
    relevance = random_relevance(5, 53, 90, 4)
    one = place(queries, gallery, relevance)
    for count in (3, 8):
        some = jax.devices()[:count]
        got = place(queries, gallery, relevance, devices=some, block_rows=4, block_cols=32)
        np.testing.assert_array_equal(got.greater, one.greater)
        np.testing.assert_array_equal(got.level, one.level)


def test_panels_smaller_than_either_side_change_nothing(monkeypatch):
    queries, gallery = unit_rows(6, 30, 8), unit_rows(7, 70, 8)
    relevance = random_relevance(8, 30, 70, 3)
    whole = place(queries, gallery, relevance)
    monkeypatch.setattr(placing, "PANEL_BYTES", 4 * 8 * 16)
    got = place(queries, gallery, relevance, block_rows=4, block_cols=5, devices=jax.devices()[:2])
    assert Shapes.of(30, 70, 8, block_rows=4, block_cols=5).panel_cols == 15
    np.testing.assert_array_equal(got.greater, whole.greater)
    np.testing.assert_array_equal(got.level, whole.level)


def test_rows_that_all_agree_are_scored_as_matrices(monkeypatch):
    """A collapsed model: every score is too close to call, and pair by pair would take forever."""
    rows = np.repeat(unit_rows(9, 1, 8), 300, axis=0)

    def never(*_):
        raise AssertionError("pair by pair")

    relevance = Relevance.from_ids(np.arange(300), np.arange(300))
    exact = placing._score_pairs
    monkeypatch.setattr(
        placing, "_score_pairs", lambda q, g, r, c: exact(q, g, r, c) if len(r) == 300 else never()
    )
    got = place(rows, rows, relevance)
    np.testing.assert_array_equal(got.greater, 0)
    np.testing.assert_array_equal(got.level, 300)


def test_rows_that_are_no_unit_rows_are_still_counted_exactly():
    queries, gallery = 100 * unit_rows(10, 20, 64), 30 * unit_rows(11, 400, 64)
    gallery[200:] = gallery[:200] * np.float32(1 + 2e-7)
    relevance = random_relevance(12, 20, 400, 3)
    got = place(queries, gallery, relevance)
    np.testing.assert_array_equal(got.greater, plain(queries, gallery, relevance)[0])


def test_excluded_items_take_no_place():
    rows = unit_rows(13, 25, 8)
    rows[5] = rows[6]
    relevance = Relevance.from_pairs(np.arange(25), (np.arange(25) + 1) % 25, queries=25)
    itself = Relevance.from_ids(np.arange(25), np.arange(25))
    got = place(rows, rows, relevance, excluded=itself)
    above, level = plain(rows, rows, relevance, [(i, i) for i in range(25)])
    np.testing.assert_array_equal(got.greater, above)
    np.testing.assert_array_equal(got.level, level)


def test_a_right_item_that_is_not_in_the_gallery_is_never_found():
    rows = unit_rows(14, 4, 8)
    relevance = Relevance.from_pairs(np.array([0, 0]), np.array([0, -1]), queries=4)
    got = place(rows, rows, relevance)
    assert got.greater[0] == 0
    assert got.greater[1] > 10**9


def test_r_precision_by_hand():
    """R = 2: the right items stand first and third, so one of the first two is right."""
    gallery = np.eye(4, dtype=np.float32)
    queries = np.array([[0.9, 0.8, 0.7, 0.1]], np.float32)
    relevance = Relevance.from_pairs(np.array([0, 0]), np.array([0, 2]), queries=1)
    assert r_precision(place(queries, gallery, relevance), relevance)[0] == 0.5
    tied = np.array([[0.9, 0.7, 0.7, 0.1]], np.float32)  # the second place is a coin toss
    assert r_precision(place(tied, gallery, relevance), relevance)[0] == 0.75
    got = retrieval_metrics(tied, gallery, np.array([1]), np.array([1, 0, 1, 0]))
    assert got["r_precision"] == 0.75
    assert got["r_precision_chance"] == 0.5
    np.testing.assert_array_equal(got.each["r_precision"], [0.75])


def test_D08_a_million_by_a_million_needs_less_than_two_gib_a_device():
    """By the compiler's account, both panels and everything temporary."""
    for devices in (1, 8):
        shapes = Shapes.of(10**6, 10**6, 512, devices=devices)
        memory = shapes.memory()
        total = (
            memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
        )
        assert total > 2 * shapes.panel_rows * 512 * 4 > 2**25  # the panels are part of it
        assert total < 2**27, (devices, total)
        assert shapes.panel_rows < 10**6


PROGRAM = """
import sys
import jax, numpy as np
port, index = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
from contrastive.evaluation.retrieval import retrieval_metrics
rng = np.random.default_rng(0)
rows = rng.normal(size=(2, 41, 8)).astype(np.float32)
a, b = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
ids = np.arange(41)
alone = retrieval_metrics(a, b, ids, ids)
both = retrieval_metrics(a, b, ids, ids, devices=jax.devices(), block_rows=4, block_cols=16)
assert jax.device_count() == 4 and alone == both, (alone, both)
print("equal", flush=True)
"""


def test_two_processes_rank_a_part_each_and_agree(tmp_path: pathlib.Path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    logs = [tmp_path / f"{index}.log" for index in range(2)]
    processes = []
    for index, log in enumerate(logs):
        with log.open("w") as file:
            command = [sys.executable, "-c", PROGRAM, str(port), str(index)]
            processes.append(
                subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)
            )
    try:
        codes = [process.wait(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], "".join(log.read_text()[-2000:] for log in logs)
    assert all("equal" in log.read_text() for log in logs)
