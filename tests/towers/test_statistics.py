"""Batch normalisation in towers: over the batch in training, by running statistics in evaluation.

That eight devices measure what one does is tested in `test_towers_sharding.py`, that PyTorch gets
the same in `tests/parity`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from contrastive import mesh as mesh_lib
from contrastive.errors import ConfigError
from contrastive.mesh import MeshConfig
from contrastive.objectives import LossConfig, Momentum, MomentumConfig, make_objective
from contrastive.towers import ResNetConfig, TwoTower, TwoTowerConfig, layers
from contrastive.towers.resnet import Normalisation
from contrastive.towers.statistics import BatchStatistic
from contrastive.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from contrastive.training.state import init_state
from contrastive.training.step import make_train_step

TINY = ResNetConfig(
    form="small", block="basic", stem=4, widths=(4, 8), depths=(1, 1), statistics="batch",
    momentum=0.8, projection="linear",
)  # fmt: skip
MODEL = TwoTowerConfig(image=TINY, embedding_dim=6)


def places(rows=5, seed=0, shift=3.0):
    x = np.random.default_rng(seed).normal(shift, 2.0, size=(rows, 4, 3, 8))
    return jnp.asarray(x, jnp.float32)


def norm_of(fill, **changes):
    config = dataclasses.replace(TINY, **changes)
    return fill(lambda: Normalisation(8, config, rngs=nnx.Rngs(0)))


def test_training_against_numpy(fill, quick):
    """Rows, gradients, and what comes out in the place of the gradient of running statistics, which
    has nothing to do with the loss."""
    norm = norm_of(fill)
    graphdef, state = nnx.split(norm)
    x = places()
    pull = jnp.asarray(np.random.default_rng(1).normal(size=x.shape), jnp.float32)

    def run(state, x, factor):
        y = nnx.merge(graphdef, state)(x, training=True)
        return factor * jnp.sum(y * pull), y

    slope = quick(jax.value_and_grad(run, argnums=(0, 1), has_aux=True))
    (_, y), (gradient, dx) = slope(state, x, 2.0)
    f = lambda a: np.asarray(a, np.float64)  # noqa: E731
    mean, variance = f(x).mean((0, 1, 2)), f(x).var((0, 1, 2))
    unit = (f(x) - mean) / np.sqrt(variance + norm.epsilon)
    np.testing.assert_allclose(y, unit * f(norm.scale[...]) + f(norm.bias[...]), atol=2e-5)
    g = 2.0 * f(pull) * f(norm.scale[...])  # by the formula of Ioffe & Szegedy 2015
    wanted = (g - g.mean((0, 1, 2)) - unit * (g * unit).mean((0, 1, 2))) / np.sqrt(
        variance + norm.epsilon
    )
    np.testing.assert_allclose(dx, wanted, atol=2e-5)
    for factor in (2.0, 0.0):
        (_, _), (gradient, _) = slope(state, x, factor)
        moves = 0.2 * (f(norm.mean[...]) - mean), 0.2 * (f(norm.variance[...]) - variance * 60 / 59)
        np.testing.assert_allclose(gradient["mean"][...], moves[0], atol=1e-5)
        np.testing.assert_allclose(gradient["variance"][...], moves[1], atol=1e-5)


def test_evaluation_takes_running_statistics(fill, quick):
    norm, fixed = norm_of(fill), norm_of(fill, statistics="fixed", momentum=0.9)
    wanted = quick(fixed.__call__)(places())
    np.testing.assert_allclose(quick(norm.__call__)(places()), wanted, atol=1e-6)
    alone = quick(norm.__call__)(places()[:1])
    np.testing.assert_allclose(alone, wanted[:1], atol=1e-6)  # no row sees another
    training = quick(lambda x: norm(x, training=True))(places())
    assert np.abs(training - wanted).max() > 0.1
    still = quick(lambda x: fixed(x, training=True))(places())
    np.testing.assert_allclose(still, wanted, atol=1e-6)


# --- A run


def build(rngs):
    sizes = {"image_size": 8, "text_length": 6, "vocabulary_size": 30, "pad_id": 0}
    return TwoTower(MODEL, pairs="views", rngs=rngs, **sizes)


def batch(seed=0, rows=8):
    rng = np.random.default_rng(seed)
    views = {n: rng.integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8) for n in ("view_a", "view_b")}
    return views | {"id": np.arange(rows, dtype=np.int32)}


def run(optimizer, *, momentum=None, average=None, steps=1):
    mesh = mesh_lib.make_mesh(MeshConfig(), jax.devices()[:1])
    keys = None if momentum is None else Momentum(momentum, "views", 6, 8, 10, 1)
    loss = LossConfig(name="nt_xent" if momentum is None else "info_nce")
    objective = make_objective(loss, pairs="views", momentum=momentum)
    graphdef, state = init_state(
        build, optimizer, mesh, 0, average=average is not None, momentum=keys
    )
    step = make_train_step(
        graphdef, objective, optimizer, seed=0, average_decay=average, momentum=keys
    )
    before = jax.device_get(state.parameters)
    metrics = {}
    with jax.set_mesh(mesh):
        for i in range(steps):
            put = jax.device_put(batch(i), mesh_lib.batch_sharding(mesh))
            state, metrics = step(state, put)
    return graphdef, before, jax.device_get(state), metrics


def statistics(parameters):
    leaves = jax.tree.leaves(parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return [leaf[...] for leaf in leaves if isinstance(leaf, BatchStatistic)]


def test_a_step_moves_them_towards_the_batch_and_the_optimizer_does_not():
    """Clipping, decay and a rate of nothing leave them alone; two views move them twice."""
    config = OptimizerConfig(
        learning_rate=1e-12, weight_decay=0.5, warmup_steps=0, schedule="constant", clip_norm=1e-6
    )
    optimizer = make_optimizer(config, make_schedule(config, 10), max_scale=None)
    graphdef, before, state, metrics = run(optimizer, average=0.9)
    model = nnx.merge(graphdef, before)
    kernel = np.asarray(model.image.stem[0].kernel[...], np.float64)
    wanted, size = np.zeros(4), 0
    for view in ("view_a", "view_b"):
        x = np.pad(batch()[view] / 127.5 - 1.0, ((0, 0), (1, 1), (1, 1), (0, 0)))
        y = sum(
            np.einsum("bhwc,co->bhwo", x[:, i : i + 8, j : j + 8], kernel[i, j])
            for i in range(3)
            for j in range(3)
        )
        wanted, size = wanted + 0.2 * y.mean((0, 1, 2)), size + 1
    moved = nnx.merge(graphdef, state.parameters).image.stem[0].norm
    np.testing.assert_allclose(moved.mean[...], wanted, atol=1e-5)  # they start from zero
    assert size == 2
    assert np.isfinite(metrics["gradient_norm"])
    for old, new, average in zip(
        *map(statistics, (before, state.parameters, state.average)), strict=True
    ):
        assert np.abs(new - old).max() > 1e-3
        decay = 1 / 10  # the warm-up of the average at step 0
        np.testing.assert_allclose(average, decay * old + (1 - decay) * new, atol=1e-6)


@pytest.mark.slow
def test_evaluation_comes_to_what_training_sees():
    """The same pictures again and again: running statistics become those of the batch."""
    optimizer = optax.sgd(0.0)
    graphdef, _, state, _ = run(optimizer, steps=1)
    step_state = state
    model = nnx.merge(graphdef, step_state.parameters)
    x = jnp.asarray(np.concatenate([batch()["view_a"], batch()["view_b"]]))
    first = np.asarray(model.encode_image(x))
    training = np.asarray(model.encode_image(x, deterministic=False, rngs=nnx.Rngs(dropout=0)))
    assert np.abs(first - training).max() > 0.05
    _, parameters = nnx.split(model)

    @jax.jit
    def follow(parameters):
        def rows(parameters):
            towers = nnx.merge(graphdef, parameters)
            return jnp.sum(towers.encode_image(x, deterministic=False, rngs=nnx.Rngs(dropout=0)))

        moves = jax.grad(rows)(parameters)
        return jax.tree.map(
            lambda p, m: jax.tree.map(jnp.subtract, p, m) if isinstance(p, BatchStatistic) else p,
            parameters,
            moves,
            is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
        )

    for _ in range(60):
        parameters = follow(parameters)
    last = np.asarray(nnx.merge(graphdef, parameters).encode_image(x))
    np.testing.assert_allclose(last, training, atol=0.02)


@pytest.mark.slow
def test_the_momentum_encoder_carries_its_own():
    decay = MomentumConfig(decay=0.9)
    _, before, state, _ = run(optax.sgd(0.1), momentum=decay, steps=2)
    for old, own, keys in zip(
        *map(statistics, (before, state.parameters, state.memory.parameters)), strict=True
    ):
        assert np.abs(own - old).max() > np.abs(keys - old).max() > 0


def test_chunks_are_refused_and_momentum_is_checked():
    from contrastive.recipe import Recipe, TrainConfig

    with pytest.raises(ConfigError, match=r"microbatches = 2: with .*\.statistics"):
        Recipe(name="x", total_steps=1, model=MODEL, train=TrainConfig(microbatches=2))
    with pytest.raises(ConfigError, match=r"momentum = 0.1 has to be in \[0.5, 1\)"):
        dataclasses.replace(TINY, momentum=0.1)
    with pytest.raises(ConfigError, match="momentum has no effect"):
        dataclasses.replace(TINY, statistics="fixed")


def test_the_small_form_keeps_the_places_of_small_pictures(fill, quick):
    from contrastive.towers.resnet import ResNet

    tower = fill(lambda: ResNet(TINY, image_size=8, output=6, rngs=nnx.Rngs(0)))
    assert tower.stem[0].kernel.shape == (3, 3, 3, 4)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 8, 8, 3)), jnp.float32)
    rows = quick(lambda x: tower(x, keys=layers.row_keys(jax.random.key(0), x)))(x)
    assert rows.shape == (5, 6)
