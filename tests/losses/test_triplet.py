"""Triplet loss against the float64 oracle, in every way of mining and on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from contrastive import reference
from contrastive.losses import triplet
from contrastive.losses.triplet import triplet_loss


def rows(seed, *shape, dtype=jnp.float32):
    x = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True), dtype)


def options(batch, full):
    if not full:
        return {}
    rng = np.random.default_rng(9)
    ids = jnp.asarray(rng.integers(-1, batch // 2, batch), jnp.int32)
    weights = jnp.asarray(rng.uniform(0.2, 2, batch) * (rng.random(batch) > 0.2), jnp.float32)
    return {"ids": ids, "weights": weights}


def compare(args, kwargs, rtol=1e-5, run=None):
    """Value and all gradients against the oracle, norm-wise."""
    names = ("anchors", "positives", "negatives")[: len(args)]
    function = jax.value_and_grad(lambda *x: triplet_loss(*x, **kwargs), tuple(range(len(args))))
    loss, grads = (run or jax.jit)(function)(*args)
    expected, by_name = reference.triplet_loss(*args, **kwargs)
    np.testing.assert_allclose(float(loss), expected, rtol=rtol, atol=1e-7)
    for name, grad in zip(names, grads, strict=True):
        gap = np.linalg.norm(np.asarray(grad, np.float64) - by_name[name])
        assert gap <= rtol * np.linalg.norm(by_name[name]) + 1e-12, name
    return float(loss)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("mining", ["batch_hard", "batch_all"])
@pytest.mark.parametrize("margin", [0.05, 1.0])
def test_mining_equals_the_oracle(mining, margin, full, monkeypatch):
    monkeypatch.setattr(triplet, "_BLOCK_COLS", 8)  # three blocks, the last one short
    args = rows(0, 21, 6), rows(0, 21, 6) + 0.4 * rows(1, 21, 6)  # some anchors are satisfied
    compare(args, {"mining": mining, "margin": margin, **options(21, full)})


@pytest.mark.parametrize("negatives", [(21, 6), (21, 3, 6)])
def test_given_negatives_equal_the_oracle(negatives):
    args = rows(0, 21, 6), rows(1, 21, 6), rows(2, *negatives)
    compare(args, {"margin": 0.3, "weights": options(21, True)["weights"]})
    assert compare(args, {}) > 0


def test_worked_by_hand():
    anchors, positives = jnp.array([[0.0, 0]]), jnp.array([[3.0, 4]])
    assert float(triplet_loss(anchors, positives, jnp.array([[0.0, 2]]))) == pytest.approx(4.0)
    assert float(triplet_loss(anchors, positives, jnp.array([[0.0, 7]]))) == 0.0


@pytest.mark.parametrize("mining", ["given", "batch_hard", "batch_all"])
def test_points_that_meet_have_gradient_zero(mining):
    same = jnp.full((3, 2), 0.5)
    args = (same, same, same) if mining == "given" else (same, same)
    loss, grads = jax.value_and_grad(
        lambda *x: triplet_loss(*x, mining=mining), tuple(range(len(args)))
    )(*args)
    assert float(loss) == 1.0
    for grad in grads:
        np.testing.assert_array_equal(grad, 0.0)


@pytest.mark.parametrize("mining", ["batch_hard", "batch_all"])
def test_negatives_on_top_of_their_anchors(mining):
    """Inner products put them at a small distance, or at the root of a negative number."""
    anchors = 3 * rows(5, 12, 33)
    compare((anchors, jnp.roll(anchors, 1, axis=0)), {"mining": mining, "margin": 9.0})


def test_a_satisfied_negative_gives_no_gradient():
    args = jnp.array([[1.0, 0]]), jnp.array([[1.0, 0.1]]), jnp.array([[-1.0, 0]])
    grads = jax.grad(triplet_loss, (0, 1, 2))(*args)
    for grad in grads:
        np.testing.assert_array_equal(grad, 0.0)


@pytest.mark.parametrize("mining", ["given", "batch_hard", "batch_all"])
def test_rows_that_do_not_exist_may_hold_anything(mining):
    args = [rows(i, 8, 4) for i in range(3 if mining == "given" else 2)]
    weights = jnp.asarray([1.0, 1, 0, 1, 0, 0, 1, 1])
    spoiled = [jnp.where(weights[:, None] > 0, x, jnp.nan) for x in args]
    function = jax.value_and_grad(lambda *x: triplet_loss(*x, mining=mining, weights=weights))
    loss, grad = function(*args)
    spoiled_loss, spoiled_grad = function(*spoiled)
    assert float(loss) == float(spoiled_loss)
    np.testing.assert_array_equal(grad, spoiled_grad)
    np.testing.assert_array_equal(grad[weights == 0], 0.0)
    nothing = jax.grad(lambda *x: triplet_loss(*x, mining=mining, weights=0 * weights))(*spoiled)
    np.testing.assert_array_equal(nothing, 0.0)


@pytest.mark.parametrize("mining", ["batch_hard", "batch_all"])
def test_one_content_everywhere_leaves_no_negative(mining):
    ids = jnp.zeros((5,), jnp.int32)
    loss, grad = jax.value_and_grad(
        lambda x: triplet_loss(x, rows(1, 5, 3), mining=mining, ids=ids)
    )(rows(0, 5, 3))
    assert float(loss) == 0.0
    np.testing.assert_array_equal(grad, 0.0)
    alone = triplet_loss(rows(0, 1, 3), rows(1, 1, 3), mining=mining)
    assert float(alone) == 0.0


@pytest.mark.parametrize("mining", ["batch_hard", "batch_all"])
def test_64_bit_ids(mining):
    narrow = jnp.asarray([4, 4, 1, -1, -1, 2], jnp.int32)
    wide = np.asarray(narrow, np.int64).view(np.uint32).reshape(6, 2)
    anchors = rows(0, 6, 3)
    args = anchors, anchors[jnp.array([1, 0, 2, 3, 4, 5])]  # own content is the nearest other
    expected = triplet_loss(*args, mining=mining, ids=narrow)
    assert float(triplet_loss(*args, mining=mining, ids=jnp.asarray(wide))) == float(expected)
    assert float(expected) != float(triplet_loss(*args, mining=mining))


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("mining", ["given", "batch_hard", "batch_all"])
def test_cut_over_devices(mining, kind, monkeypatch):
    monkeypatch.setattr(triplet, "_BLOCK_COLS", 8)
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(kind, kind))
    args = [rows(i, 16, 4) for i in range(3 if mining == "given" else 2)]
    full = options(16, True)
    if mining == "given":
        del full["ids"]

    def place(x):
        spec = PartitionSpec(("data", "fsdp"), *[None] * (x.ndim - 1))
        return jax.device_put(x, NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        compare(
            [place(x) for x in args],
            {"mining": mining, "margin": 0.5, **jax.tree.map(place, full)},
        )


def test_bfloat16_rows():
    args = rows(0, 9, 8, dtype=jnp.bfloat16), rows(1, 9, 8, dtype=jnp.bfloat16)
    compare(args, {"mining": "batch_hard"}, rtol=2e-2)
    compare(args, {"mining": "batch_all"}, rtol=2e-2)


@pytest.mark.parametrize("mining", ["batch_hard", "batch_all"])
def test_memory_is_bounded(mining):
    """All distances of 4,096 pairs would be 64 MiB, several times in the backward pass."""
    shape = jax.ShapeDtypeStruct((4096, 64), jnp.float32)
    function = jax.jit(jax.grad(lambda a, p: triplet_loss(a, p, mining=mining), (0, 1)))
    compiled = function.lower(shape, shape).compile()
    tile = 4096 * 512 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 5 * tile + 6 * 4096 * 64 * 4


@pytest.mark.usefixtures("unchecked")
def test_errors_name_what_is_wrong():
    a, p = rows(0, 4, 3), rows(1, 4, 3)
    with pytest.raises(ValueError, match="negatives are missing"):
        triplet_loss(a, p)
    with pytest.raises(ValueError, match="were passed"):
        triplet_loss(a, p, a, mining="batch_hard")
    with pytest.raises(ValueError, match="they do nothing"):
        triplet_loss(a, p, a, ids=jnp.arange(4))
    for wrong in (rows(2, 4, 0, 3), rows(2, 4, 2, 4, 3), rows(2, 3, 3), rows(2, 4)):
        with pytest.raises(ValueError, match=r"\(4, 3\)"):
            triplet_loss(a, p, wrong)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mining", ["given", "batch_hard", "batch_all"])
def test_one_weight_and_one_id_a_row(mining):
    a, p = rows(0, 4, 3), rows(1, 4, 3)
    given = {"mining": mining, "negatives": a if mining == "given" else None}
    for weights in (jnp.ones(1), jnp.ones((4, 1))):
        with pytest.raises(ValueError, match=r"weights are \[.*\], expected \[4\]"):
            triplet_loss(a, p, **given, weights=weights)
    with pytest.raises(ValueError, match=r"ids is int32 \[1\], expected \[4\]"):
        triplet_loss(a, p, **given, ids=jnp.zeros(1, jnp.int32))
    given["negatives"] = None if given["negatives"] is None else a[:0]
    with pytest.raises(ValueError, match=r"\[0, 3\]: the batch has no rows"):
        triplet_loss(a[:0], p[:0], **given)


def test_a_devices_part_of_the_batch_is_refused():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    cut = PartitionSpec("data")
    inside = jax.shard_map(
        lambda x: triplet_loss(x, x, mining="batch_hard"), mesh=mesh, in_specs=cut, out_specs=cut
    )
    with pytest.raises(ValueError, match="outside shard_map"):
        inside(jax.device_put(rows(0, 4, 3), NamedSharding(mesh, cut)))
