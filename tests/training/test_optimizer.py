"""The optimizer chain: schedule, decay by name, and the limit of the scale after the update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from contrastive.errors import ConfigError
from contrastive.training.optimizer import (
    OptimizerConfig,
    decay_mask,
    make_optimizer,
    make_schedule,
)

PARAMETERS = {
    "text": {"embedding": jnp.ones((4, 3)), "norm": {"scale": jnp.ones((2, 3))}},
    "image": {"dense": {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)}},
    "log_scale": jnp.float32(4.6),
}


def update(config, gradient, *, max_scale=100.0, steps=1):
    chain = make_optimizer(
        config, lambda step: jnp.float32(config.learning_rate), max_scale=max_scale
    )
    parameters, state = PARAMETERS, chain.init(PARAMETERS)
    for _ in range(steps):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = chain.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


def zeros():
    return jax.tree.map(jnp.zeros_like, PARAMETERS)


def test_schedule_warms_up_peaks_and_ends():
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=10, final_learning_rate=0.5)
    schedule = make_schedule(config, 100)
    rates = [float(schedule(step)) for step in (0, 5, 10, 55, 100)]
    np.testing.assert_allclose(rates, [0.0, 1.0, 2.0, 1.25, 0.5], rtol=1e-6)


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ConfigError, match="warmup_steps = 10"):
        make_schedule(OptimizerConfig(warmup_steps=10), 10)


def test_only_matrices_decay():
    assert decay_mask(PARAMETERS) == {
        "text": {"embedding": True, "norm": {"scale": False}},
        "image": {"dense": {"kernel": True, "bias": False}},
        "log_scale": False,
    }
    after = update(OptimizerConfig(learning_rate=0.5, weight_decay=0.1), zeros())
    np.testing.assert_allclose(after["image"]["dense"]["kernel"], 0.95, rtol=1e-6)
    np.testing.assert_array_equal(after["text"]["norm"]["scale"], 1.0)
    assert float(after["log_scale"]) == np.float32(4.6)


def test_A14_the_limit_of_the_scale_holds_after_the_update():
    gradient = zeros() | {"log_scale": jnp.float32(-0.1)}
    config = OptimizerConfig(learning_rate=0.5)
    limited = update(config, gradient, steps=3)["log_scale"]
    assert abs(float(limited) - 4.6051702) < 1e-6
    assert float(update(config, gradient, max_scale=None, steps=3)["log_scale"]) > 5.0


def test_clip_norm_bounds_the_gradient():
    # AdamW rescales, so the bound shows in the moments: two entries of one size stay equal, and
    # a gradient of norm 1e6 moves the parameters as one of norm 1 does.
    large = jax.tree.map(lambda x: 1e6 * jnp.ones_like(x), PARAMETERS)
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.0, eps=1.0)
    clipped = update(config, large)["image"]["dense"]["bias"]
    free = update(
        OptimizerConfig(learning_rate=0.1, weight_decay=0.0, eps=1.0, clip_norm=None), large
    )
    assert float(jnp.abs(clipped - 1.0).max()) < 0.03
    np.testing.assert_allclose(free["image"]["dense"]["bias"], 0.9, rtol=1e-4)


@pytest.mark.parametrize(
    "field", [{"learning_rate": 0.0}, {"b1": 1.0}, {"weight_decay": -1.0}, {"clip_norm": 0.0}]
)
def test_impossible_values_are_refused(field):
    with pytest.raises(ConfigError, match=f"config.optimizer.{next(iter(field))}"):
        OptimizerConfig(**field)
