"""ConvNeXt: that it computes what others do is tested in tests/parity and tests/pretrained."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive.errors import ConfigError, SizeError
from contrastive.towers import ConvNeXt, ConvNeXtConfig, layers
from contrastive.training.optimizer import OptimizerConfig, make_optimizer, make_schedule

SMALL = ConvNeXtConfig(widths=(4, 8), depths=(1, 2), layer_scale=0.5)


def pictures(batch=3, size=16):
    x = np.random.default_rng(0).normal(size=(batch, size, size, 3))
    return jnp.asarray(x, jnp.float32)


@pytest.fixture
def tower(fill):
    def make(config=SMALL, size=16):
        return fill(lambda: ConvNeXt(config, image_size=size, output=6, rngs=nnx.Rngs(0)))

    return make


def test_every_parameter_learns_and_bfloat16_is_close(tower, quick):
    """Stated bound: 3 % of the norm of a row."""
    graphdef, state = nnx.split(tower())

    def loss(state, x):
        rows = nnx.merge(graphdef, state)(x)
        return jnp.sum(rows.astype(jnp.float32) ** 2), rows

    slope = quick(jax.value_and_grad(loss, has_aux=True))
    (_, exact), gradient = slope(state, pictures())
    for path, leaf in nnx.to_flat_state(gradient):
        assert np.all(np.isfinite(leaf[...])), path
        assert np.any(leaf[...]), path
    low = quick(lambda x: nnx.merge(graphdef, state)(x))(pictures().astype(jnp.bfloat16))
    assert low.dtype == jnp.bfloat16
    error = np.linalg.norm(np.asarray(low, np.float32) - exact, axis=1)
    assert np.all(error <= 0.03 * np.linalg.norm(exact, axis=1))


def test_initialization_of_the_paper():
    """Normal with deviation 0.02, cut off at two deviations; biases of zero; factors of 1e-6."""
    config = ConvNeXtConfig(widths=(64, 64), depths=(1, 1))
    state = nnx.state(ConvNeXt(config, image_size=16, output=6, rngs=nnx.Rngs(0)))
    for path, leaf in nnx.to_flat_state(state):
        x = np.asarray(leaf[...])
        if path[-1] in ("kernel", "depthwise") and path[0] != "projection":
            assert np.abs(x).max() <= 0.0401, path
            assert abs(x.std() - 0.0176) < 0.0015, path
        elif path[-1] in ("bias", "depthwise_bias"):
            assert not x.any(), path
        elif path[-2] == "after":
            np.testing.assert_allclose(x, 1e-6)


def test_blocks_are_left_out_by_chance(tower, quick):
    """Stochastic depth: the same keys, the same blocks; without keys all of them, in full."""
    plain = quick(tower().__call__)(pictures())
    deep = tower(dataclasses.replace(SMALL, drop_path=0.9))
    np.testing.assert_allclose(quick(deep.__call__)(pictures()), plain, atol=1e-6)
    x = jnp.repeat(pictures(1), 64, axis=0)
    run = quick(lambda x, key: deep(x, keys=layers.row_keys(key, x)))
    rows = np.asarray(run(x, jax.random.key(0)))
    np.testing.assert_array_equal(run(x, jax.random.key(0)), rows)
    kinds = {tuple(np.round(row, 4)) for row in rows}
    assert 2 <= len(kinds) <= 4  # of three blocks the first always stays
    part = run(x[:8], jax.random.key(0))
    np.testing.assert_allclose(part, rows[:8], atol=1e-5)
    same = tower(dataclasses.replace(SMALL, drop_path=0.0))
    keys = layers.row_keys(jax.random.key(0), pictures())
    np.testing.assert_allclose(quick(same.__call__)(pictures(), keys=keys), plain, atol=1e-6)


def test_remat_keeps_fewer_bytes(tower, quick):
    """The same gradient of eight blocks from less memory, by the compiler."""
    found = {}
    for remat in ("none", "full"):
        config = ConvNeXtConfig(widths=(8,), depths=(8,), patch_size=2, remat=remat)
        graphdef, state = nnx.split(tower(config))

        def loss(state, x, graphdef=graphdef):
            return jnp.sum(nnx.merge(graphdef, state)(x) ** 2)

        step = quick(jax.grad(loss)).lower(state, pictures(8)).compile()
        found[remat] = step.memory_analysis().temp_size_in_bytes, step(state, pictures(8))
    assert found["full"][0] < 0.6 * found["none"][0]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3)
    jax.tree.map(close, found["none"][1], found["full"][1])


@pytest.mark.slow
def test_layers_have_their_rates(tower):
    """Layer decay by stages; depthwise kernels decay, factors and norms do not; Muon takes the
    products of the blocks."""
    config = OptimizerConfig(
        name="muon", learning_rate=1.0, weight_decay=0.0, warmup_steps=0, schedule="constant",
        layer_decay=0.5, clip_norm=None,
    )  # fmt: skip
    optimizer = make_optimizer(config, make_schedule(config, 10), max_scale=None)
    state = {"image": nnx.state(tower())}
    gradient = jax.tree.map(lambda x: jnp.ones_like(x) + 0.1 * x, state)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(gradient, optimizer.init(state), state)
    sizes = {
        "/".join(map(str, path)): float(np.abs(leaf[...]).max())
        for path, leaf in nnx.to_flat_state(updates["image"])
    }
    assert sizes["norm/scale"] == pytest.approx(1.0, rel=0.05)
    assert sizes["stages/1/blocks/norm/scale"] == pytest.approx(0.5, rel=0.05)
    assert sizes["stages/0/blocks/norm/scale"] == pytest.approx(0.25, rel=0.05)
    assert sizes["patches/kernel"] == pytest.approx(0.125, rel=0.05)
    assert sizes["stages/0/blocks/depthwise"] == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"depths": (1,)}, "as many stages"),
        ({"widths": (4, 0)}, "have to be positive"),
        ({"layer_scale": -1.0}, "layer_scale = -1.0 has to be positive"),
        ({"drop_path": 1.0}, "drop_path = 1.0"),
    ],
)
def test_contradictions(changes, words):
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(SMALL, **changes)


def test_pictures_that_are_too_small():
    with pytest.raises(SizeError, match="one place of 8 pixels"):
        nnx.eval_shape(lambda: ConvNeXt(SMALL, image_size=7, output=6, rngs=nnx.Rngs(0)))
