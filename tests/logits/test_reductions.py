"""Both reductions against float64, over exchanges, meshes, dtypes and blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from contrastive.logits import LogitPartition, logsumexp, softplus

EXCHANGES = ("dense", "gather", "ring")
MESHES = ("1", "2", "4", "8", "2x4")
TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 2e-2}


def gradients(function, problem, put, *scalars):
    """Value and gradients with respect to rows, columns and scalars."""
    args = (put(problem.x), put(problem.y), *scalars)
    return jax.jit(jax.value_and_grad(function, tuple(range(len(args)))))(*args)


def check(tools, got, expected, tolerance):
    (value, grads), (true_value, true_grads) = got, expected
    errors = [tools.relative(g, t) for g, t in zip(grads, true_grads, strict=True)]
    assert tools.relative(value, true_value) < tolerance
    assert max(errors) < tolerance, errors


def weighed(stats, on_rows, on_columns):
    """The scalar that :meth:`Problem.logsumexp` differentiates."""
    total = 0.0
    for side, weight in ((stats, on_rows), (stats.columns, on_columns)):
        if side is None:
            continue
        for n in (side.logsumexp, side.same_logsumexp, side.same_sum):
            if n is not None:
                total = total + jnp.sum(weight * jnp.where(n == -jnp.inf, 0.0, n))
    return total


def reduce_rows(tools, problem, partition, put, *, two_way=True, same=False, put_columns=None):
    """Value and gradients of logsumexp under a partition."""
    labels = problem.labels(put, put_columns)
    on_rows, on_columns = put(problem.on_rows), (put_columns or put)(problem.on_columns)

    def value(x, y, scale):
        stats = logsumexp(
            x,
            y,
            scale,
            paired=problem.paired,
            two_way=two_way,
            same=same,
            partition=partition,
            **labels,
        )
        return weighed(stats, on_rows, on_columns)

    args = (put(problem.x), (put_columns or put)(problem.y), problem.scale)
    return jax.jit(jax.value_and_grad(value, (0, 1, 2)))(*args)


def sum_softplus(problem, partition, put, *, weights=None, same=False):
    """Value and gradients of softplus under a partition."""
    ids = None if problem.row_ids is None else put(problem.row_ids)
    weights = None if weights is None else put(weights)

    def value(x, y, scale, bias):
        kwargs = {"ids": ids, "weights": weights, "same": same, "partition": partition}
        return softplus(x, y, scale, bias, **kwargs)[0]

    return gradients(value, problem, put, problem.scale, problem.bias)


@pytest.mark.parametrize("blocks", [(None, None), (5, 3)], ids=["auto", "ragged"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_logsumexp_equals_float64(tools, exchange, mesh, dtype, blocks):
    if exchange == "dense" and blocks[0]:
        pytest.skip("dense ignores blocks")
    problem = tools.Problem(56, 56, 12, dtype=dtype)
    mesh = tools.make_mesh(mesh)
    partition = LogitPartition(mesh, mesh.axis_names, exchange, *blocks)
    got = reduce_rows(tools, problem, partition, tools.cut(mesh))
    check(tools, got, problem.logsumexp(), TOLERANCE[dtype])


@pytest.mark.parametrize("blocks", [(None, None), (5, 3)], ids=["auto", "ragged"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_softplus_equals_float64(tools, exchange, mesh, dtype, blocks):
    if exchange == "dense" and blocks[0]:
        pytest.skip("dense ignores blocks")
    problem = tools.Problem(56, 56, 12, dtype=dtype)
    mesh = tools.make_mesh(mesh)
    partition = LogitPartition(mesh, mesh.axis_names, exchange, *blocks)
    weights = np.where(problem.row_exists, np.linspace(0.5, 2, 56), 0).astype(np.float32)
    got = sum_softplus(problem, partition, tools.cut(mesh), weights=weights)
    check(tools, got, problem.softplus(weights), TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
@pytest.mark.parametrize("blocks", [(None, None), (1, 1), (4, 8), (3, None), (None, 5), (100, 100)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("mesh", [*MESHES, "2x2x2"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_full_cross(tools, exchange, mesh, dtype, blocks, kind, masked):
    problem = tools.Problem(24, 24, 7, dtype=dtype, masked=masked)
    mesh = tools.make_mesh(mesh, kind)
    partition = LogitPartition(mesh, mesh.axis_names, exchange, *blocks)
    put = tools.cut(mesh)
    for two_way, same in ((True, False), (False, False), (True, True)):
        got = reduce_rows(tools, problem, partition, put, two_way=two_way, same=same)
        check(tools, got, problem.logsumexp(two_way, same), TOLERANCE[dtype])
    weights = np.ones(24) if problem.row_exists is None else problem.row_exists
    weights = weights.astype(np.float32)
    for same in (False, True):
        got = sum_softplus(problem, partition, put, weights=weights, same=same)
        check(tools, got, problem.softplus(weights, same), TOLERANCE[dtype])


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
def test_nested_over_three_axes(tools, exchange, kind):
    problem = tools.Problem(24, 24, 7)
    mesh = tools.make_mesh("2x2x2", kind)
    partition = LogitPartition(mesh, mesh.axis_names, exchange, 2, 2)
    got = reduce_rows(tools, problem, partition, tools.cut(mesh))
    check(tools, got, problem.logsumexp(), 1e-5)
    got = sum_softplus(problem, partition, tools.cut(mesh), weights=np.float32(problem.row_exists))
    check(tools, got, problem.softplus(problem.row_exists), 1e-5)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("axes", [("fsdp",), ("data",), ("fsdp", "data")], ids="-".join)
def test_any_subset_of_the_axes_in_any_order(tools, exchange, axes):
    problem = tools.Problem(24, 24, 7)
    mesh = tools.make_mesh("2x4")
    partition = LogitPartition(mesh, axes, exchange, 4, 5)
    got = reduce_rows(tools, problem, partition, tools.cut(mesh, axes))
    check(tools, got, problem.logsumexp(), 1e-5)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("two_way", [False, True], ids=["one-way", "two-way"])
def test_entries_of_the_own_content(tools, exchange, two_way):
    problem = tools.Problem(24, 24, 7)
    mesh = tools.make_mesh("2x4")
    partition = LogitPartition(mesh, exchange=exchange, block_rows=2, block_cols=5)
    got = reduce_rows(tools, problem, partition, tools.cut(mesh), two_way=two_way, same=True)
    check(tools, got, problem.logsumexp(two_way, same=True), 1e-5)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("held", ["cut", "whole", "cannot be cut"])
def test_columns_that_are_no_pairs(tools, exchange, held):
    """A pool of other size than the batch, cut over the devices or whole on each."""
    problem = tools.Problem(16, 35 if held == "cannot be cut" else 40, 7)
    mesh = tools.make_mesh("8")
    partition = LogitPartition(mesh, exchange=exchange, block_rows=2, block_cols=3)
    put_columns = tools.cut(mesh) if held == "cut" else jnp.asarray
    got = reduce_rows(
        tools, problem, partition, tools.cut(mesh), two_way=False, put_columns=put_columns
    )
    check(tools, got, problem.logsumexp(two_way=False), 1e-5)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("mesh", ["2", "8", "2x4"])
def test_columns_that_are_the_rows(tools, exchange, mesh):
    """Symmetric logits, from rows alone: both sides' gradients land on the rows."""
    problem = tools.Problem(24, 24, 7)
    problem.y = problem.x
    mesh = tools.make_mesh(mesh)
    put = tools.cut(mesh)
    partition = LogitPartition(mesh, exchange=exchange, block_rows=2, block_cols=2)
    labels = {k: v for k, v in problem.labels(put).items() if k.startswith("row")}

    def value(x, scale):
        stats = logsumexp(x, None, scale, partition=partition, **labels)
        return weighed(stats, put(problem.on_rows), None)

    got = jax.jit(jax.value_and_grad(value, (0, 1)))(put(problem.x), problem.scale)
    true_value, (dx, dy, d_scale) = problem.logsumexp(two_way=False)
    check(tools, got, (true_value, (dx + dy, d_scale)), 1e-5)


@pytest.mark.parametrize("same", [False, True], ids=["absent", "positive"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_softplus_of_equal_content(tools, exchange, same):
    problem = tools.Problem(24, 24, 7)
    problem.row_exists = problem.column_exists = None
    mesh = tools.make_mesh("4")
    partition = LogitPartition(mesh, exchange=exchange, block_rows=4, block_cols=5)
    got = sum_softplus(problem, partition, tools.cut(mesh), same=same)
    check(tools, got, problem.softplus(same=same), 1e-5)
    assert (problem.masks()[1] & ~np.eye(24, dtype=bool)).any()


@pytest.mark.parametrize("scale", [0.0, 15.0, 100.0, 1000.0])
@pytest.mark.parametrize("exchange", ["dense", "ring"])
def test_any_cosine_at_any_scale(tools, exchange, scale):
    """Opposite, equal and orthogonal rows in one tile: no overflow, no row without weights."""
    problem = tools.Problem(16, 16, 4, scale=scale, masked=False)
    axes = np.eye(4).repeat(4, 0).astype(np.float32)
    problem.x, problem.y = (
        jnp.asarray(axes),
        jnp.asarray(np.where(np.arange(16) % 3, -axes.T, axes.T).T),
    )
    mesh = tools.make_mesh("4")
    partition = LogitPartition(mesh, exchange=exchange)
    got = reduce_rows(tools, problem, partition, tools.cut(mesh))
    check(tools, got, problem.logsumexp(), max(1e-5, 1e-6 * scale))  # logits of 1000 are coarse
    assert all(np.isfinite(g).all() for g in got[1])


def statistics_of(logits, negative):
    there = np.where(negative, logits, -np.inf)
    top = there.max(1)
    return {
        "max": top,
        "ties": ((there == top[:, None]) & negative).sum(1),
        "min": np.where(negative, logits, np.inf).min(1),
        "sum": np.where(negative, logits, 0).sum(1),
        "count": negative.sum(1),
        "positive": np.diagonal(logits),
    }


@pytest.mark.parametrize("family", ["logsumexp", "softplus"])
@pytest.mark.parametrize(
    "mesh, exchange",
    [("1", "gather"), ("2x4", "ring"), ("8", "gather"), ("8", "dense"), ("2", "ring")],
)
def test_statistics_come_from_the_same_pass(tools, mesh, exchange, family):
    problem = tools.Problem(24, 24, 5)
    problem.x = jnp.asarray(np.sign(problem.x))  # whole numbers: ties, and exact sums
    problem.y = jnp.asarray(np.sign(problem.y))
    problem.scale = jnp.float32(2.0)
    mesh = tools.make_mesh(mesh)
    put = tools.cut(mesh)
    partition = LogitPartition(mesh, exchange=exchange, block_rows=2, block_cols=5)
    if family == "logsumexp":
        stats = jax.jit(
            lambda x, y: logsumexp(
                x,
                y,
                problem.scale,
                two_way=True,
                statistics=True,
                partition=partition,
                **problem.labels(put),
            )
        )(put(problem.x), put(problem.y))
        logits = problem.logits()[2]
    else:
        _, stats = jax.jit(
            lambda x, y: softplus(
                x,
                y,
                problem.scale,
                problem.bias,
                ids=put(problem.row_ids),
                weights=put(np.float32(problem.row_exists)),
                statistics=True,
                partition=partition,
            )
        )(put(problem.x), put(problem.y))
        logits = problem.logits()[2] + float(problem.bias)
        assert stats.logsumexp is None
    negative, _ = problem.masks()
    assert (~negative).all(1).any()  # some rows have no negatives
    here = problem.row_exists  # an absent row has no positive
    for side, s, mask in ((stats, logits, negative), (stats.columns, logits.T, negative.T)):
        for name, expected in statistics_of(s, mask).items():
            expected = np.where(here, expected, 0) if name == "positive" else expected
            np.testing.assert_array_equal(np.asarray(getattr(side, name)), expected, name)


def test_without_statistics_nothing_is_collected(tools):
    problem = tools.Problem(8, 8, 4)
    partition = LogitPartition()
    stats = logsumexp(problem.x, problem.y, problem.scale, partition=partition)
    assert (
        stats.max is stats.ties is stats.min is stats.sum is stats.count is stats.positive is None
    )
    assert (
        softplus(problem.x, problem.y, problem.scale, problem.bias, partition=partition)[1] is None
    )


@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_precision_is_highest_for_float32_and_native_for_bfloat16(exchange):
    def precisions(dtype, asked):
        x = jax.ShapeDtypeStruct((16, 8), dtype)
        partition = LogitPartition(exchange=exchange, precision=asked)
        return str(
            jax.make_jaxpr(
                jax.grad(
                    lambda x, y: logsumexp(
                        x, y, jnp.float32(1), partition=partition
                    ).logsumexp.sum()
                )
            )(x, x)
        )

    text = precisions(jnp.float32, None)
    assert text.count("Precision.HIGHEST") >= 3
    text = precisions(jnp.bfloat16, None)
    assert "HIGHEST" not in text
    assert "preferred_element_type=float32" in text
    assert "HIGHEST" not in precisions(jnp.float32, "default")


def test_logits_of_bfloat16_rows_are_not_rounded():
    """scale · cosine near 100 in bfloat16 would be off by up to 0.25."""
    x = jnp.asarray([[1.0, 0.0], [0.6015625, 0.796875]], jnp.bfloat16)
    for exchange in ("dense", "gather"):
        stats = logsumexp(x, x, jnp.float32(99.7), partition=LogitPartition(exchange=exchange))
        np.testing.assert_allclose(stats.logsumexp, np.float32(99.7) * 0.6015625, rtol=1e-6)
