"""Gradient caching: the same gradients in any number of chunks, in the memory of one."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from contrastive import mesh as mesh_lib
from contrastive.errors import ConfigError
from contrastive.losses import clip_loss
from contrastive.mesh import MeshConfig
from contrastive.microbatches import encode_rows
from contrastive.objectives import LossConfig, make_objective
from contrastive.planning import hlo
from contrastive.planning.collectives import collectives
from contrastive.towers import TextTransformerConfig, TwoTower, TwoTowerConfig
from contrastive.towers.convnet import ConvTowerConfig
from contrastive.towers.vit import VisionTransformerConfig
from contrastive.training.state import abstract_state

BATCH = 64


def two_towers(image, dropout, rngs):
    config = TwoTowerConfig(
        image=image,
        text=TextTransformerConfig(width=32, heads=2, depth=1, dropout=dropout),
        embedding_dim=16,
    )
    return TwoTower(
        config, image_size=16, text_length=8, vocabulary_size=50, pad_id=0,
        bias_init=-10.0, rngs=rngs,
    )  # fmt: skip


@functools.cache
def towers(image, dropout):
    return nnx.split(two_towers(image, dropout, nnx.Rngs(0)))


CONV = ConvTowerConfig(widths=(8, 16))
VIT = VisionTransformerConfig(patch_size=4, width=32, heads=2, depth=2, dropout=0.5)


def make_batch(rows=BATCH):
    rng = np.random.default_rng(1)
    return {
        "image": rng.integers(0, 256, (rows, 16, 16, 3), dtype=np.uint8),
        "text": rng.integers(1, 50, (rows, 8), dtype=np.int32),
        "id": np.arange(rows, dtype=np.int32) // 2,
    }


def slope(microbatches, *, image, dropout, devices=1, loss="clip", step=0, fsdp=1):
    """Loss and gradient of one step, on the host."""
    mesh = mesh_lib.make_mesh(MeshConfig(fsdp=fsdp), jax.devices()[:devices])
    graphdef, parameters = towers(image, dropout)
    objective = make_objective(LossConfig(name=loss), microbatches=microbatches)

    def value(parameters, batch):
        key = jax.random.fold_in(jax.random.key(3), step)
        return objective(nnx.merge(graphdef, parameters), batch, key)[0]

    with jax.set_mesh(mesh):
        put = jax.device_put(make_batch(), mesh_lib.batch_sharding(mesh))
        build = functools.partial(two_towers, image, dropout)
        _, state = abstract_state(build, optax.sgd(1.0), mesh, average=False)
        parameters = jax.tree.map(
            lambda x, like: jax.device_put(x, like.sharding), parameters, state.parameters
        )
        loss, gradient = jax.jit(jax.value_and_grad(value))(parameters, put)
    return float(loss), jax.device_get(gradient)


def assert_equal(got, want):
    assert got[0] == pytest.approx(want[0], rel=1e-6)
    for (path, a), (_, b) in zip(
        *(jax.tree_util.tree_leaves_with_path(x[1]) for x in (got, want)), strict=True
    ):
        scale = max(np.abs(b).max(), 1e-3)
        assert np.abs(a - b).max() / scale < 2e-5, jax.tree_util.keystr(path)


@pytest.fixture(scope="module")
def whole():
    return slope(1, image=CONV, dropout=0.5)


@pytest.mark.parametrize("devices, microbatches", [(1, 2), (1, 4), (1, 8), (8, 4)])
def test_A08_every_gradient_equals_that_of_the_whole_step_with_dropout(
    whole, devices, microbatches
):
    assert_equal(slope(microbatches, image=CONV, dropout=0.5, devices=devices), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "devices, fsdp, microbatches", [(1, 1, 4), (8, 1, 2), (8, 1, 8), (8, 4, 4)]
)
def test_A08_with_dropout_in_both_towers(devices, fsdp, microbatches):
    want = slope(1, image=VIT, dropout=0.5)
    assert_equal(slope(microbatches, image=VIT, dropout=0.5, devices=devices, fsdp=fsdp), want)


def test_A08_without_dropout_and_for_the_sigmoid_loss():
    want = slope(1, image=CONV, dropout=0.0, loss="siglip")
    assert_equal(slope(4, image=CONV, dropout=0.0, loss="siglip"), want)


def test_A08_two_steps_drop_different_things(whole):
    other = slope(4, image=CONV, dropout=0.5, step=1)
    assert abs(other[0] - whole[0]) > 1e-4


def test_A06_chunks_do_not_change_the_objective():
    rows = [np.array(x, np.float32) for x in (
        [(1, 0), (0, 1), (1, 1), (1, -1)], [(2, 1), (-1, 2), (1, 2), (1, -3)]
    )]  # fmt: skip

    def unit(_, x, rows):
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def loss(k, images, texts):
        a, b = (encode_rows(unit, (), x, k) for x in (images, texts))
        return clip_loss(a, b, 10.0)

    value, slopes = jax.value_and_grad(lambda *x: loss(2, *x), (0, 1))(*map(jnp.asarray, rows))
    assert float(value) == pytest.approx(0.360630305903, rel=1e-5)
    image, text = (np.asarray(x) for x in slopes)
    np.testing.assert_allclose(image[0], [0, -0.35259098], atol=1e-5)
    np.testing.assert_allclose(text[2], [-0.32377915, 0.16188958], atol=1e-5)
    a, b = (unit((), jnp.asarray(x), None) for x in rows)
    halves = [clip_loss(a[s], b[s], 10.0) for s in (slice(0, 2), slice(2, 4))]
    assert float(sum(halves)) / 2 == pytest.approx(0.002841294525, rel=1e-3)  # what it is not


def test_the_rows_keep_their_order_and_numbers_on_a_mesh():
    mesh = mesh_lib.make_mesh(MeshConfig(), jax.devices())
    x = np.arange(32, dtype=np.float32)[:, None]

    def encode(_, x, rows):
        return x * 1000 + rows[:, None].astype(jnp.float32)

    with jax.set_mesh(mesh):
        put = jax.device_put(x, mesh_lib.batch_sharding(mesh))
        rows = jax.jit(lambda x: encode_rows(encode, (), x, 4))(put)
        assert rows.sharding.is_equivalent_to(mesh_lib.batch_sharding(mesh), 2)
    np.testing.assert_array_equal(rows[:, 0], np.arange(32) * 1001)


def compiled(microbatches, rows):
    graphdef, parameters = towers(VIT, 0.5)
    objective = make_objective(LossConfig(), microbatches=microbatches)

    def value(parameters, batch):
        return objective(nnx.merge(graphdef, parameters), batch, jax.random.key(0))[0]

    step = jax.jit(jax.value_and_grad(value))
    batch = jax.tree.map(jnp.asarray, make_batch(rows))
    return step.trace(parameters, batch)


def test_the_activations_are_those_of_one_chunk():
    temporary = {
        k: compiled(k, 256).lower().compile().memory_analysis().temp_size_in_bytes for k in (1, 8)
    }
    alone = compiled(1, 32).lower().compile().memory_analysis().temp_size_in_bytes
    assert temporary[1] > 5 * temporary[8]
    assert temporary[8] < 1.5 * alone + 4 * 256 * 256 * 4  # a chunk, and the logits of the batch


def bytes_summed(microbatches, **sizes):
    """Bytes of the sums over the replicas outside the loss in a compiled step, loops counted as
    often as they go round, and bytes of the parameters that a device holds."""
    mesh = mesh_lib.make_mesh(MeshConfig(**sizes), jax.devices())
    objective = make_objective(LossConfig(), microbatches=microbatches)
    build = functools.partial(two_towers, VIT, 0.5)
    graphdef, state = abstract_state(build, optax.sgd(1.0), mesh, average=False)

    def value(parameters, batch):
        return objective(nnx.merge(graphdef, parameters), batch, jax.random.key(0))[0]

    def put(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=mesh_lib.batch_sharding(mesh))

    with jax.set_mesh(mesh):
        step = jax.jit(jax.value_and_grad(value))
        batch = jax.tree.map(put, make_batch())
        text = step.lower(state.parameters, batch).compile().as_text()
    rows = [r for r in collectives(hlo.parse(text), dict(mesh.shape), mesh.size) if not r.loss]
    own = sum(
        math.prod(x.sharding.shard_shape(x.shape)) * 4 for x in jax.tree.leaves(state.parameters)
    )
    sums = [r for r in rows if r.kind == "all-reduce" and "data" in r.axes]
    return sum(r.payload_bytes for r in sums), own


@pytest.mark.parametrize("sizes", [{"data": 8}, {"data": 2, "fsdp": 4}])
def test_gradients_are_summed_over_the_replicas_once(sizes):
    summed, own = bytes_summed(4, **sizes)
    assert own <= summed < 1.05 * own


def test_the_loss_is_computed_once(count_products):
    logits = [count_products(compiled(k, BATCH).jaxpr, (BATCH, BATCH)) for k in (1, 8)]
    assert logits[0] == logits[1] > 0


def test_a_batch_that_does_not_divide_is_refused_with_its_sizes():
    with pytest.raises(ConfigError, match=r"microbatches = 3 .* 64 rows .* multiple of 3"):
        slope(3, image=CONV, dropout=0.0)
