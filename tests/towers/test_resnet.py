"""Residual networks; that they compute what others do is tested in tests/parity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive.errors import ConfigError, SizeError
from contrastive.towers.resnet import ResNet, ResNetConfig, average_pool
from contrastive.training.optimizer import OptimizerConfig, make_optimizer, make_schedule

SMALL = {"stem": 4, "widths": (8, 16), "depths": (1, 2)}
PLAIN = ResNetConfig(**SMALL)
CLIP = ResNetConfig(**SMALL, form="clip", heads=2, projection="bias")


def pictures(batch=2, size=16):
    return jnp.asarray(np.random.default_rng(0).normal(size=(batch, size, size, 3)), jnp.float32)


@pytest.mark.parametrize("config", [PLAIN, CLIP], ids=["plain", "clip"])
def test_bfloat16_stays_near_float32(config, fill, quick):
    output = 16 if config is PLAIN else 6
    tower = fill(lambda: ResNet(config, image_size=16, output=output, rngs=nnx.Rngs(0)))
    rows = quick(tower.__call__)(pictures())
    low = quick(tower.__call__)(pictures().astype(jnp.bfloat16))
    assert rows.shape == (2, output)
    assert low.dtype == jnp.bfloat16
    error = jnp.linalg.norm(low.astype(jnp.float32) - rows) / jnp.linalg.norm(rows)
    assert error < 0.05


@pytest.mark.slow
def test_statistics_stay(quick):
    """No gradient, no decay: an update leaves them as they are."""
    tower = ResNet(PLAIN, image_size=16, output=16, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(tower)
    config = OptimizerConfig(
        learning_rate=0.1, weight_decay=0.5, warmup_steps=0, schedule="constant"
    )
    optimizer = make_optimizer(config, make_schedule(config, 10), max_scale=None)

    @quick
    def update(state):
        def loss(state):
            return jnp.sum(nnx.merge(graphdef, state)(pictures()) ** 2)

        gradients = jax.grad(loss)(state)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes numbers
            updates, _ = optimizer.update(gradients, optimizer.init(state), state)
        return updates

    for path, leaf in nnx.to_flat_state(update(state)):
        moved = bool(jnp.any(leaf[...] != 0))
        assert moved != (path[-1] in ("mean", "variance")), path


def test_average_pool_leaves_out_what_is_over():
    x = jnp.arange(30.0).reshape(1, 5, 6, 1)
    wanted = np.asarray(x)[:, :4].reshape(1, 2, 2, 3, 2, 1).mean(axis=(2, 4))
    np.testing.assert_allclose(average_pool(x, 2), wanted)


@pytest.mark.parametrize(
    "change,words",
    [
        ({"depths": (1,)}, "as many stages"),
        ({"widths": (8, 0)}, "have to be positive"),
        ({"form": "clip", "block": "basic", "heads": 2}, "bottlenecks"),
        ({"form": "clip", "heads": 3}, "heads = 3 does not divide 16"),
    ],
)
def test_contradictions(change, words):
    with pytest.raises(ConfigError, match=words):
        ResNetConfig(**(SMALL | change))


def test_attention_pooling_needs_a_whole_grid():
    with pytest.raises(SizeError, match="no multiple of 8"):
        nnx.eval_shape(lambda: ResNet(CLIP, image_size=20, output=6, rngs=nnx.Rngs(0)))
