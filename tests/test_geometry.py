"""Unit rows and the measures of a space of embeddings."""

import functools

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import contrastive
from contrastive import reference
from contrastive.geometry import (
    alignment,
    hardness_weights,
    mutual_information_bound,
    normalize,
    ranks,
    recall_at_k,
    uniformity,
)
from contrastive.logits import LogitPartition


def test_A19_float16_rows_are_raised_before_the_norm():
    rows = normalize(jnp.full((1, 4), 300.0, jnp.float16))
    assert rows.dtype == jnp.float32
    np.testing.assert_allclose(rows, [[0.5, 0.5, 0.5, 0.5]], rtol=1e-6)


def test_A20_a_zero_row_has_a_finite_gradient():
    rows = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    gradient = jax.jit(jax.grad(lambda x: normalize(x)[:, 0].sum()))(rows)
    np.testing.assert_allclose(gradient[1], [0.128, -0.096], rtol=1e-6)
    np.testing.assert_array_equal(gradient[0], 0.0)
    np.testing.assert_array_equal(normalize(rows)[0], 0.0)


def test_A20_second_derivatives_are_finite_too():
    hessian = jax.hessian(lambda x: jnp.sum(normalize(x)[:, 0] ** 3))(jnp.array([[0.0, 0.0]]))
    assert np.isfinite(hessian).all()


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e12, 3e38])
def test_rows_of_any_size(size):
    rows = jnp.array([[size, -size, size / 2]], jnp.float32)
    np.testing.assert_allclose(normalize(rows), [[2 / 3, -2 / 3, 1 / 3]], rtol=3e-7)


@hypothesis.given(
    hnp.arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32)),
    hnp.arrays(np.float32, (3, 5), elements=st.floats(-1, 1, width=32)),
)
@hypothesis.settings(max_examples=50, deadline=None)
def test_unit_length_and_a_perpendicular_gradient(rows, direction):
    rows = np.where(np.abs(rows).max(1, keepdims=True) < 1e-2, 0, rows).astype(np.float32)
    unit, pull = jax.vjp(normalize, jnp.asarray(rows))
    length = np.linalg.norm(np.asarray(unit, np.float64), axis=-1)
    np.testing.assert_allclose(length, np.any(rows != 0, axis=-1), atol=3e-7)
    (gradient,) = pull(jnp.asarray(direction))
    dots = np.sum(np.asarray(gradient, np.float64) * rows, axis=-1)
    np.testing.assert_allclose(dots, 0, atol=2e-6)


def test_any_leading_axes_and_numpy():
    rows = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    unit = contrastive.normalize(rows)
    assert unit.shape == (2, 3, 4)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=-1), 1, rtol=1e-6)


# --- measures over all pairs of rows --------------------------------------------------------------


def unit(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(reference.normalize(np.random.default_rng(seed).normal(size=shape)), dtype)


def mesh_of(kind, *sizes):
    names = ("data", "fsdp")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(sizes))


def place(mesh, tree):
    def put(x):
        spec = PartitionSpec(mesh.axis_names, *[None] * (x.ndim - 1))
        return jax.device_put(x, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


BLOCKS = LogitPartition(exchange="gather", block_rows=5, block_cols=7)
PARTITIONS = {
    "whole": (None, None),
    "blocks": (None, BLOCKS),
    "gather 2x2": ((AxisType.Explicit, 2, 2), None),
    "gather auto": (
        (AxisType.Auto, 4),
        lambda mesh: LogitPartition(mesh=mesh, exchange="gather", block_cols=3),
    ),
    "ring 8": (
        (AxisType.Explicit, 8),
        lambda mesh: LogitPartition(mesh=mesh, exchange="ring", block_rows=2, block_cols=1),
    ),
    "ring 4x2 auto": (
        (AxisType.Auto, 4, 2),
        lambda mesh: LogitPartition(mesh=mesh, exchange="ring"),
    ),
}


def evaluate(name, function, *args, **kwargs):
    """``function`` under jit, its arrays cut as the named partition says."""
    shape, partition = PARTITIONS[name]
    if shape is None:
        return jax.jit(lambda a, k: function(*a, **k, partition=partition))(args, kwargs)
    mesh = mesh_of(*shape)
    partition = None if partition is None else partition(mesh)
    with jax.set_mesh(mesh):
        return jax.jit(lambda a, k: function(*a, **k, partition=partition))(
            *place(mesh, (args, kwargs))
        )


def weighted(batch):
    rng = np.random.default_rng(7)
    ids = jnp.asarray(rng.integers(-1, batch // 2, batch), jnp.int32)
    weights = jnp.asarray(rng.uniform(0.2, 2, batch) * (rng.random(batch) > 0.25), jnp.float32)
    return ids, weights


def test_F7_alignment():
    a, b = unit(0, 9, 4), unit(1, 9, 4)
    _, weights = weighted(9)
    assert float(alignment(a, b)) == pytest.approx(reference.alignment(a, b), rel=1e-6)
    assert float(alignment(a, a)) == 0.0
    spoiled = jnp.where(weights[:, None] > 0, a, jnp.nan)
    value, grad = jax.value_and_grad(lambda x: alignment(x, b, weights=weights))(spoiled)
    assert float(value) == pytest.approx(reference.alignment(a, b, weights), rel=1e-6)
    share = np.asarray(weights)[:, None] / float(weights.sum())
    np.testing.assert_allclose(grad, 2 * share * (np.asarray(a) - np.asarray(b)), atol=1e-7)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("full", [False, True])
def test_F7_uniformity_is_the_oracles(name, full):
    x = unit(0, 16, 4)
    weights = weighted(16)[1] if full else None
    spoiled = x if weights is None else jnp.where(weights[:, None] > 0, x, jnp.nan)
    kwargs = {} if weights is None else {"weights": weights}

    def both(x, partition=None, **kwargs):
        return jax.value_and_grad(lambda y: uniformity(y, partition=partition, **kwargs))(x)

    value, grad = evaluate(name, both, spoiled, **kwargs)
    assert float(value) == pytest.approx(reference.uniformity(x, 2.0, weights), rel=1e-5)
    # By formula: softmax over the pairs of exp(-t d²), gradient -4 t Σ_j p_ij (x_i - x_j) / 2,
    # along the sphere (unit rows: the part along the row itself is not defined by the rows).
    kept = np.ones(16, bool) if weights is None else np.asarray(weights) > 0
    y = np.where(kept[:, None], np.asarray(x, np.float64), 0)
    p = np.exp(4 * y @ y.T) * kept * kept[:, None]
    np.fill_diagonal(p, 0)
    p /= p.sum()
    expected = 8 * p @ y
    np.testing.assert_allclose(grad, expected, atol=1e-5 * np.abs(expected).max())


def test_F7_uniformity_at_its_ends():
    same = jnp.tile(unit(0, 1, 4), (9, 1))
    assert float(uniformity(same)) == pytest.approx(0.0, abs=1e-6)
    opposite = jnp.array([[1.0, 0], [-1, 0]])
    assert float(uniformity(opposite)) == pytest.approx(-8.0, rel=1e-6)
    assert float(uniformity(opposite, t=0.5)) == pytest.approx(-2.0, rel=1e-6)
    for weights in (jnp.array([1.0, 0]), jnp.zeros(2)):
        value, grad = jax.value_and_grad(lambda x, w=weights: uniformity(x, weights=w))(opposite)
        assert float(value) == -np.inf
        np.testing.assert_array_equal(grad, 0.0)


@pytest.mark.parametrize("name", PARTITIONS)
def test_F4_mutual_information_bound(name):
    q, p = unit(0, 16, 4), unit(1, 16, 4)
    scores = 5 * np.asarray(q, np.float64) @ np.asarray(p, np.float64).T
    value = evaluate(name, functools.partial(mutual_information_bound, scale=5.0), q, p)
    assert float(value) == pytest.approx(reference.nce_mi_estimate(scores), rel=1e-5, abs=1e-6)


def test_F4_the_bound_reaches_log_n_and_counts_what_exists():
    eye = jnp.eye(8)
    assert float(mutual_information_bound(eye, eye, 50.0)) == pytest.approx(np.log(8), rel=1e-6)
    weights = jnp.asarray([1.0, 1, 1, 0, 0, 0, 0, 0])
    bound = mutual_information_bound(eye, eye, 50.0, weights=weights)
    assert float(bound) == pytest.approx(np.log(3), rel=1e-6)


@pytest.mark.parametrize("name", PARTITIONS)
def test_F5_hardness_weights_are_the_oracles(name):
    q, p = unit(0, 16, 4), unit(1, 16, 4)
    ids, _ = weighted(16)
    expected = reference.hardness_weights(q, p, 20.0, ids=ids)
    for k in (5, 16) if name in ("blocks", "ring 8") else (1,):
        run = functools.partial(hardness_weights, scale=20.0, k=k)
        found = evaluate(name, run, q, p, ids=ids)
        np.testing.assert_allclose(found.total, expected.sum(1), rtol=2e-5, atol=1e-7)
        hardest = -np.sort(-expected, axis=1)[:, :k]
        np.testing.assert_allclose(found.hardest, hardest, rtol=2e-5, atol=1e-7)


def test_F5_low_temperature_concentrates():
    q, p = unit(0, 64, 8), unit(1, 64, 8)
    shares = []
    for scale in (1.0, 10.0, 100.0):
        found = hardness_weights(q, p, scale, 3)
        shares.append(float(jnp.mean(found.hardest.sum(1) / found.total)))
    assert shares[0] < 0.1 < shares[1] < 0.7 < 0.9 < shares[2]
    with pytest.raises(ValueError, match="k = 65"):
        hardness_weights(q, p, 1.0, 65)


def test_rows_without_negatives_have_no_hardness():
    q = unit(0, 4, 3)
    found = hardness_weights(q, q, 10.0, 2, ids=jnp.zeros(4, jnp.int32))
    np.testing.assert_array_equal(found.hardest, 0.0)
    np.testing.assert_array_equal(found.total, 0.0)
    weights = jnp.asarray([1.0, 0, 1, 0])
    spoiled = jnp.where(weights[:, None] > 0, q, jnp.nan)
    found = hardness_weights(spoiled, spoiled, 10.0, 2, weights=weights)
    np.testing.assert_array_equal(found.hardest[1], 0.0)
    np.testing.assert_array_equal(found.total[3], 0.0)
    np.testing.assert_array_equal(found.hardest[:, 1], 0.0)  # a single rival each


# --- retrieval ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTITIONS)
def test_D03_collapsed_rows_score_exactly_chance(name):
    same = jnp.tile(unit(0, 1, 33), (16, 1))
    found = evaluate(name, functools.partial(recall_at_k, k=(1, 4, 16, 99)), same, same)
    np.testing.assert_array_equal(found, np.float32([1 / 16, 4 / 16, 1, 1]))


@pytest.mark.parametrize("size, dim", [(4, 4), (37, 100), (500, 512), (513, 7)])
def test_D03_collapse_whatever_the_tile(size, dim):
    same = jnp.tile(unit(1, 1, dim), (size, 1))
    for partition in (None, LogitPartition(block_rows=37, block_cols=64)):
        found = jax.jit(lambda x, p=partition: ranks(x, x, partition=p))(same)
        np.testing.assert_array_equal(found.greater, 0)
        np.testing.assert_array_equal(found.equal, size - 1)


def test_D03_mixed_ties():
    scores = jnp.array([[1.0, 1, 1], [5, 5, 5], [0, 0, 1]])
    found = ranks(scores, jnp.eye(3))
    assert [x.shape for x in found] == [(3,)] * 3
    np.testing.assert_array_equal(found.greater + found.equal + 1, [3, 3, 1])  # pessimistic
    np.testing.assert_allclose(found.expected(), [2, 2, 1])
    np.testing.assert_allclose(found.recall(1), [1 / 3, 1 / 3, 1])
    np.testing.assert_allclose(recall_at_k(scores, jnp.eye(3), 1), 5 / 9, rtol=1e-6)
    order = jnp.array([2, 0, 1])
    moved = recall_at_k(scores[order], jnp.eye(3)[order], 1)
    np.testing.assert_allclose(moved, 5 / 9, rtol=1e-6)


def test_scores_that_float32_cannot_tell_apart_tie():
    target = np.float32([0.6, 0.8])
    for step, equal in ((np.spacing(np.float32(0.8)), 1), (1e-5, 0)):
        keys = jnp.asarray(np.stack([target, target + np.float32([0, step])]))
        found = ranks(keys[:1], keys, query_ids=jnp.array([5]), key_ids=jnp.array([5, 6]))
        assert (int(found.greater[0]), int(found.equal[0])) == (1 - equal, equal)


def lattice(seed, *shape):
    """Rows of few whole numbers: products are exact and ties are many."""
    return jnp.asarray(np.random.default_rng(seed).integers(-1, 2, shape), jnp.float32)


@pytest.mark.parametrize("name", PARTITIONS)
def test_D03_recall_of_pairs_is_the_oracles(name):
    q, p = lattice(0, 16, 4), lattice(1, 16, 4)
    scores = np.asarray(q) @ np.asarray(p).T
    found = evaluate(name, functools.partial(recall_at_k, k=(1, 3, 8)), q, p)
    expected = [reference.recall_at_k(scores, np.eye(16), k).mean() for k in (1, 3, 8)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", PARTITIONS)
def test_D03_recall_of_contents_is_the_oracles(name):
    """Several captions a picture: more keys than queries, the best of each query's targets."""
    q, p = lattice(0, 16, 3), lattice(1, 24, 3)
    rng = np.random.default_rng(2)
    query_ids, key_ids = np.arange(16), np.concatenate([np.arange(16), rng.integers(-1, 16, 8)])
    args = {"query_ids": query_ids, "key_ids": key_ids}
    args = {name: jnp.asarray(x, jnp.int32) for name, x in args.items()}
    target = query_ids[:, None] == key_ids[None]
    scores = np.asarray(q) @ np.asarray(p).T
    found = evaluate(name, functools.partial(recall_at_k, k=(1, 2, 5, 24)), q, p, **args)
    expected = [reference.recall_at_k(scores, target, k).mean() for k in (1, 2, 5, 24)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[-1] == 1.0


@hypothesis.given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 12))
@hypothesis.settings(max_examples=15, deadline=None)
def test_D03_chunked_equals_full(seed, block_rows, block_cols):
    q, p = lattice(seed, 12, 3), lattice(seed + 1, 12, 3)
    whole = ranks(q, p)
    cut = ranks(q, p, partition=LogitPartition(block_rows=block_rows, block_cols=block_cols))
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)


def test_64_bit_ids():
    q, p = lattice(0, 6, 4), lattice(1, 6, 4)
    narrow = np.array([3, 1, 4, 1, 5, 9])
    wide = jnp.asarray((narrow + (narrow << 33)).view(np.uint32).reshape(6, 2))
    small = jnp.asarray(narrow, jnp.int32)
    for one, other in zip(
        ranks(q, p, query_ids=wide, key_ids=wide),
        ranks(q, p, query_ids=small, key_ids=small),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_recall_of_queries_that_exist():
    q, p = lattice(0, 8, 4), lattice(1, 8, 4)
    weights = jnp.asarray([1.0, 2, 0, 1, 1, 0, 3, 1])
    spoiled = [jnp.where(weights[:, None] > 0, x, jnp.nan) for x in (q, p)]
    kept = np.asarray(weights) > 0
    scores = (np.asarray(q) @ np.asarray(p).T)[kept][:, kept]
    rows = reference.recall_at_k(scores, np.eye(kept.sum()), 2)
    found = recall_at_k(*spoiled, 2, weights=weights)
    assert float(found) == pytest.approx(np.average(rows, weights=np.asarray(weights)[kept]))
    ids = jnp.arange(8)
    by_ids = recall_at_k(
        *spoiled, 2, query_ids=ids, key_ids=ids, weights=weights, key_weights=weights
    )
    assert float(by_ids) == float(found)


def test_nan_never_looks_good():
    q = unit(0, 5, 4)
    found = ranks(q, q.at[1].set(jnp.nan))
    np.testing.assert_array_equal(found.greater[jnp.array([0, 2, 3, 4])] >= 1, True)
    assert np.isnan(recall_at_k(q, q.at[1].set(jnp.nan), 1))
    assert np.isnan(recall_at_k(q.at[1].set(jnp.nan), q, 1))
    ids = jnp.arange(5)
    assert np.isnan(recall_at_k(q, q, 1, query_ids=ids, key_ids=ids.at[2].set(-1)))


def test_numpy_rows_are_taken_as_they_are():
    q, p = (np.asarray(unit(seed, 6, 4)) for seed in (0, 1))
    ids, weights = np.arange(6, dtype=np.int32), np.ones(6, np.float32)
    for function, args in (
        (alignment, (q, p)),
        (uniformity, (q,)),
        (mutual_information_bound, (q, p, 5.0)),
        (hardness_weights, (q, p, 5.0, 2)),
        (recall_at_k, (q, p, 1)),
    ):
        plain = function(*args, weights=weights)
        moved = function(*(jnp.asarray(x) if x is q or x is p else x for x in args))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), plain, moved)
    assert recall_at_k(q, q, 1, query_ids=ids, key_ids=ids) == 1.0
    with pytest.raises(TypeError, match="int64"):
        recall_at_k(q, q, 1, query_ids=ids.astype(np.int64), key_ids=ids)


def test_what_does_not_fit_is_named():
    q, p, ids = unit(0, 4, 3), unit(1, 5, 3), jnp.arange(4)
    with pytest.raises(ValueError, match="4 queries and 5 keys"):
        recall_at_k(q, p, 1)
    with pytest.raises(ValueError, match="both sides"):
        recall_at_k(q, q, 1, query_ids=ids)
    for k in (0, ()):
        with pytest.raises(ValueError, match="at least the first"):
            recall_at_k(q, q, k)
    mesh = mesh_of(AxisType.Auto, 8)
    with pytest.raises(ValueError, match=r"4 rows cannot be cut evenly over 8"):
        recall_at_k(q, q, 1, partition=LogitPartition(mesh=mesh))


@pytest.mark.usefixtures("unchecked")
def test_shapes_and_dtypes_that_do_not_fit_are_named():
    q, p, ids = unit(0, 4, 3), unit(1, 4, 3), jnp.arange(4, dtype=jnp.int32)
    one = jnp.ones(1)
    for wrong in (
        lambda: alignment(q, p, weights=one),
        lambda: uniformity(q, weights=one),
        lambda: hardness_weights(q, p, 5.0, 2, weights=one),
        lambda: recall_at_k(q, p, 1, weights=one),
        lambda: recall_at_k(q, p, 1, query_ids=ids, key_ids=ids, key_weights=one),
    ):
        with pytest.raises(ValueError, match=r"weights are \[1\], expected \[4\]"):
            wrong()
    with pytest.raises(ValueError, match="no rows"):
        alignment(q[:0], p[:0])
    with pytest.raises(ValueError, match=r"\[3\]"):
        uniformity(q[0])
    with pytest.raises(ValueError, match=r"\[4, 3\] and float32 \[4, 2\]"):
        recall_at_k(q, p[:, :2], 1, query_ids=ids, key_ids=ids)
    with pytest.raises(TypeError, match=r"query_ids \(int32\).*key_ids \(uint32\)"):
        recall_at_k(q, p, 1, query_ids=ids, key_ids=jnp.zeros((4, 2), jnp.uint32))


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_taken_as_they_are():
    q, p = (np.asarray(unit(seed, 4, 3)) for seed in (0, 1))
    assert recall_at_k(q, p, np.int64(2)) == recall_at_k(q, p, 2)
    assert uniformity(q.astype(np.float64)) == uniformity(q)


MEASURES = {
    "uniformity": lambda a, b, p: uniformity(a, partition=p),
    "uniformity gradient": lambda a, b, p: jax.grad(lambda x: uniformity(x, partition=p))(a),
    "information": lambda a, b, p: mutual_information_bound(a, b, 20.0, partition=p),
    "hardness": lambda a, b, p: hardness_weights(a, b, 20.0, 8, partition=p),
    "recall": lambda a, b, p: recall_at_k(a, b, (1, 5, 10), partition=p),
}


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("name", MEASURES)
def test_a_million_rows_fit(name, devices):
    """Read from the compiler: some numbers a row, some tiles, what goes round the ring."""
    rows, dim = 2**20, 64
    partition, sharding = None, None
    if devices > 1:
        mesh = mesh_of(AxisType.Auto, devices)
        partition = LogitPartition(mesh=mesh, exchange="ring")
        sharding = NamedSharding(mesh, PartitionSpec("data"))
    shape = jax.ShapeDtypeStruct((rows, dim), jnp.float32, sharding=sharding)
    function = jax.jit(lambda a, b: MEASURES[name](a, b, partition))
    used = function.lower(shape, shape).compile().memory_analysis().temp_size_in_bytes
    travelling = 0 if devices == 1 else 4 * rows // devices * dim * 4
    assert used < travelling + 48 * 2**20  # the rows themselves are 256 MiB
