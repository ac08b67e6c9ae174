"""One model on every mesh: the same losses, with parameters and moments cut as the rules say."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from contrastive.errors import ConfigError
from contrastive.mesh import MeshConfig, batch_sharding, make_mesh
from contrastive.objectives import (
    LossConfig,
    make_objective,
    make_partition,
    scale_limit,
    start_values,
)
from contrastive.temperature import path_names
from contrastive.towers import (
    TextTransformerConfig,
    TwoTower,
    TwoTowerConfig,
    VisionTransformerConfig,
)
from contrastive.training import rules
from contrastive.training.loop import to_device
from contrastive.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from contrastive.training.state import abstract_state, init_state
from contrastive.training.step import make_train_step

STEPS, BATCH = 20, 16
SHAPE = {"width": 16, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.1}
CONFIG = TwoTowerConfig(
    image=VisionTransformerConfig(**SHAPE, patch_size=4, pooling="cls", remat="full"),
    text=TextTransformerConfig(**SHAPE, causal=True, pooling="last"),
    embedding_dim=8,
)
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=3, clip_norm=1.0)
MESHES = {
    "1": {"data": 1},
    "8": {},
    "2x4": {"fsdp": 4},
    "2x2x2": {"fsdp": 2, "tensor": 2},
    "slices": {"slice": 2, "fsdp": 2},
}


def batches():
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        length = rng.integers(2, 9, (BATCH, 1))
        text = np.where(np.arange(8) < length, rng.integers(1, 20, (BATCH, 8)), 0)
        yield {
            "image": rng.integers(0, 256, (BATCH, 8, 8, 3)).astype(np.uint8),
            "text": text.astype(np.int32),
            "id": np.arange(BATCH, dtype=np.int32) // 2,  # every content comes twice
        }


def build_for(loss):
    scale, bias = start_values(loss, BATCH)

    def build(rngs):
        return TwoTower(
            CONFIG,
            image_size=8,
            text_length=8,
            vocabulary_size=20,
            pad_id=0,
            scale_init=scale,
            bias_init=bias,
            rngs=rngs,
        )

    return build


def run(name, loss):
    """Losses of a few steps, and the state after them."""
    count = 1 if name == "1" else 8
    mesh = make_mesh(MeshConfig(**MESHES[name]), jax.devices()[:count])
    schedule = make_schedule(OPTIMIZER, STEPS)
    optimizer = make_optimizer(OPTIMIZER, schedule, max_scale=scale_limit(loss))
    graphdef, state = init_state(build_for(loss), optimizer, mesh, 0, average=True)
    objective = make_objective(loss, make_partition(loss, mesh))
    step = make_train_step(
        graphdef, objective, optimizer, seed=0, average_decay=0.9, schedule=schedule
    )
    losses = []
    with jax.set_mesh(mesh):
        compiled = None
        for batch in batches():
            put = to_device(batch, batch_sharding(mesh))
            if compiled is None:
                fast = {"xla_backend_optimization_level": 0}
                compiled = step.lower(state, put).compile(fast)
            state, metrics = compiled(state, put)
            losses.append(float(metrics["loss"]))
    return losses, state


ONE = {}


def one_device(loss):
    if loss.name not in ONE:
        losses, state = run("1", loss)
        ONE[loss.name] = losses, jax.tree.map(np.asarray, state)
    return ONE[loss.name]


@pytest.mark.parametrize(
    "mesh, loss",
    [
        pytest.param("8", "clip", marks=pytest.mark.slow),
        ("2x4", "clip"),
        ("2x2x2", "clip"),
        pytest.param("slices", "clip", marks=pytest.mark.slow),
        pytest.param("2x2x2", "siglip", marks=pytest.mark.slow),
        pytest.param("2x4", "siglip", marks=pytest.mark.slow),
    ],
)
def test_every_mesh_gives_the_same_losses(mesh, loss):
    config = LossConfig(name=loss, exchange="ring")
    losses, state = run(mesh, config)
    expected, whole = one_device(LossConfig(name=loss))
    assert abs(expected[0] - expected[-1]) > 0.01  # something is learned
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    found = by_name(state.average)
    for name, value in by_name(whole.average).items():
        if not name.endswith("qkv_bias"):  # keys' have no gradient but noise, which Adam scales up
            np.testing.assert_allclose(np.asarray(found[name]), value, atol=2e-4, err_msg=name)


def by_name(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(path_names(path)): leaf for path, leaf in leaves}


def specs(tree):
    return {name: leaf.sharding.spec for name, leaf in by_name(tree).items()}


def test_parameters_moments_and_average_are_cut_alike():
    """Each device holds its part only, in the state and in its abstract twin."""
    mesh = make_mesh(MeshConfig(**MESHES["2x2x2"]), jax.devices())
    optimizer = optax.adamw(1e-3)
    build = build_for(LossConfig())
    _, state = init_state(build, optimizer, mesh, 0, average=True)
    _, abstract = abstract_state(build, optimizer, mesh, average=True)
    up = "text/transformer/blocks/mlp/up/kernel"
    parameters = specs(state.parameters)
    assert parameters[up] == PartitionSpec(None, "fsdp", "tensor")
    assert parameters["image/transformer/blocks/attention/qkv"] == PartitionSpec(
        None, "fsdp", None, "tensor", None
    )
    moments = state.optimizer[0]
    assert specs(moments.mu) == specs(moments.nu) == specs(state.average) == parameters
    kernel = state.parameters["text"]["transformer"]["blocks"]["mlp"]["up"]["kernel"][...]
    assert kernel.addressable_shards[0].data.size * 4 == kernel.size
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


@pytest.mark.parametrize("mesh", ["1", "2x2x2"])
@pytest.mark.parametrize("name", rules.DEFAULTS)
def test_every_rule_leaves_parameters_and_moments_where_they_are(name, mesh):
    mesh = make_mesh(MeshConfig(**MESHES[mesh]), jax.devices()[: 1 if mesh == "1" else 8])
    optimizer = make_optimizer(
        OptimizerConfig(name=name), lambda step: jnp.float32(0.1), max_scale=100.0
    )
    _, state = abstract_state(build_for(LossConfig()), optimizer, mesh, average=False)
    with jax.set_mesh(mesh), jax.numpy_dtype_promotion("standard"):
        update = jax.eval_shape(
            optimizer.update, state.parameters, state.optimizer, state.parameters
        )
    for found, wanted in zip(update, (state.parameters, state.optimizer), strict=True):
        assert whole_specs(found) == whole_specs(wanted)


def whole_specs(tree):
    """How each array is cut, one entry a dimension."""
    return {
        name: (*leaf.sharding.spec, *[None] * (leaf.ndim - len(leaf.sharding.spec)))
        for name, leaf in by_name(tree).items()
    }


@pytest.mark.parametrize("axis, entries", [("fsdp", "embed"), ("tensor", "heads")])
def test_a_mesh_that_does_not_divide_the_parameters_is_named(axis, entries):
    mesh = make_mesh(MeshConfig(**{axis: 3}), jax.devices()[:3])
    with pytest.raises(ConfigError, match=rf"config\.mesh\.{axis} = 3 does not divide .*{entries}"):
        abstract_state(build_for(LossConfig()), optax.sgd(1e-3), mesh, average=False)


def test_the_initialisation_does_not_depend_on_the_mesh():
    whole, parts = (
        init_state(
            build_for(LossConfig()),
            optax.sgd(1.0),
            make_mesh(MeshConfig(**MESHES[name]), jax.devices()[: 1 if name == "1" else 8]),
            3,
            average=False,
        )[1]
        for name in ("1", "2x2x2")
    )
    assert isinstance(whole.parameters, nnx.State)
    for a, b in zip(*map(jax.tree.leaves, (whole, parts)), strict=True):
        assert jnp.issubdtype(a.dtype, jnp.number)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
