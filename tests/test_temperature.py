"""The log-scale: start values, and a limit that holds after every update in any chain."""

import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from contrastive.temperature import (
    clip_log_scale,
    initial_bias,
    initial_log_scale,
    is_log_scale,
    path_names,
    project_log_scale,
)

LIMIT = math.log(100.0)


def step(tx, params, grads, state=None):
    """One jitted update. Optax itself mixes dtypes, so promotion is not strict here."""
    state = tx.init(params) if state is None else state

    @jax.jit
    def run(params, grads, state):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    with jax.numpy_dtype_promotion("standard"):
        return run(params, grads, state)


def assert_at_limit(value):
    """At 4.6051702 to within one float32 step, and never above ln 100."""
    assert value.dtype == jnp.float32
    assert abs(float(value) - 4.6051702) < 5e-7
    assert float(value) <= LIMIT
    assert math.exp(float(value)) <= 100.0


CHAINS = {
    "sgd": lambda: optax.chain(optax.sgd(1.0), clip_log_scale()),
    "momentum": lambda: optax.chain(optax.sgd(1.0, momentum=0.9), clip_log_scale()),
    "adam": lambda: optax.chain(optax.adam(1.0), clip_log_scale()),
    "adamw clipped": lambda: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1.0, weight_decay=1e-4), clip_log_scale()
    ),
    "lion": lambda: optax.chain(optax.lion(1.0), clip_log_scale()),
    "apply_if_finite outside": lambda: optax.apply_if_finite(
        optax.chain(optax.sgd(1.0), clip_log_scale()), 3
    ),
    "apply_if_finite inside": lambda: optax.chain(
        optax.apply_if_finite(optax.sgd(1.0), 3), clip_log_scale()
    ),
    "masked decay": lambda: optax.chain(
        optax.sgd(1.0),
        optax.masked(optax.add_decayed_weights(0.1), {"log_scale": False, "w": True}),
        clip_log_scale(),
    ),
    "masked clip": lambda: optax.chain(
        optax.sgd(1.0), optax.masked(clip_log_scale(), {"log_scale": True, "w": False})
    ),
    "partition": lambda: optax.partition(
        {
            "scale": optax.chain(optax.sgd(1.0), clip_log_scale()),
            "rest": optax.chain(optax.adam(1e-3), clip_log_scale()),
        },
        {"log_scale": "scale", "w": "rest"},
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_A14_limit_after_the_update_in_every_chain(name):
    params = {"log_scale": jnp.float32(4.6), "w": jnp.ones((3,))}
    grads = {"log_scale": jnp.float32(-0.1), "w": jnp.ones((3,))}
    after, state = step(CHAINS[name](), params, grads)
    assert_at_limit(after["log_scale"])
    assert not np.allclose(after["w"], 1.0)
    after, state = step(CHAINS[name](), after, grads, state)
    assert_at_limit(after["log_scale"])


def test_A14_without_the_hook_the_scale_leaves():
    params = {"log_scale": jnp.float32(4.6)}
    after, _ = step(optax.sgd(1.0), params, {"log_scale": jnp.float32(-0.1)})
    np.testing.assert_allclose(after["log_scale"], 4.7, rtol=1e-6)


@pytest.mark.parametrize("inside", [True, False])
def test_A14_accumulation_moves_only_on_real_updates(inside):
    if inside:
        tx = optax.MultiSteps(optax.chain(optax.sgd(1.0), clip_log_scale()), 2)
        tx = tx.gradient_transformation()
    else:
        tx = optax.chain(
            optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation(), clip_log_scale()
        )
    params, grads = {"log_scale": jnp.float32(4.6)}, {"log_scale": jnp.float32(-0.1)}
    after, state = step(tx, params, grads)
    assert float(after["log_scale"]) == float(np.float32(4.6))
    after, _ = step(tx, after, grads, state)
    assert_at_limit(after["log_scale"])


def test_a_rejected_update_changes_nothing():
    tx = optax.apply_if_finite(optax.chain(optax.sgd(1.0), clip_log_scale()), 3)
    params = {"log_scale": jnp.float32(4.6)}
    after, state = step(tx, params, {"log_scale": jnp.float32(jnp.nan)})
    assert float(after["log_scale"]) == float(np.float32(4.6))
    after, _ = step(tx, after, {"log_scale": jnp.float32(-0.1)}, state)
    assert_at_limit(after["log_scale"])


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_an_update_that_is_not_finite_stays_visible(bad):
    after, _ = step(
        optax.chain(optax.sgd(1.0), clip_log_scale()),
        {"log_scale": jnp.float32(4.6)},
        {"log_scale": jnp.float32(bad)},
    )
    assert not np.isfinite(after["log_scale"])


def test_A15_a_value_restored_above_the_limit_returns_and_moves():
    restored = {"log_scale": jnp.float32(4.7)}
    params, changes = project_log_scale(restored)
    before, after = changes["log_scale"]
    assert before == pytest.approx(109.947, rel=1e-5)
    assert after == pytest.approx(100.0, rel=1e-6)
    assert float(jnp.exp(params["log_scale"])) == pytest.approx(100.0, rel=1e-6)  # first forward
    assert_at_limit(params["log_scale"])
    gradient = jax.grad(lambda p: 0.3 * jnp.exp(p["log_scale"]))(params)
    assert float(gradient["log_scale"]) == pytest.approx(30.0, rel=1e-6)
    tx = optax.chain(optax.sgd(1e-3), clip_log_scale())
    params, _ = step(tx, params, gradient)
    assert float(params["log_scale"]) == pytest.approx(LIMIT - 0.03, abs=1e-6)
    assert project_log_scale(params)[1] == {}


def test_A15_one_update_brings_an_unprojected_value_back():
    tx = optax.chain(optax.sgd(1e-3), clip_log_scale())
    params, state = step(tx, {"log_scale": jnp.float32(4.7)}, {"log_scale": jnp.float32(1.0)})
    assert_at_limit(params["log_scale"])
    params, _ = step(tx, params, {"log_scale": jnp.float32(1.0)}, state)
    assert float(params["log_scale"]) == pytest.approx(LIMIT - 1e-3, abs=1e-6)


def test_A17_log_scale_and_scale():
    log_scale = jnp.float32(initial_log_scale())
    assert float(log_scale) == pytest.approx(2.6592600, rel=1e-7)
    assert float(jnp.exp(log_scale)) == pytest.approx(14.2857143, rel=1e-6)
    assert float(jnp.exp(log_scale)) * 0.5 == pytest.approx(7.1428571, rel=1e-6)


def test_start_values():
    assert initial_log_scale("sigmoid") == math.log(10.0)
    assert initial_log_scale(20.0) == math.log(20.0)
    assert initial_bias() == -10.0
    assert initial_bias(-3.0) == -3.0
    assert initial_bias("batch_size", 8) == pytest.approx(-1.945910, abs=5e-7)  # A13
    for bad in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="positive"):
            initial_log_scale(bad)
    for bad in (None, 1):
        with pytest.raises(ValueError, match="at least 2"):
            initial_bias("batch_size", bad)


class _Model(nnx.Module):
    def __init__(self):
        self.tower = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        self.log_scale = nnx.Param(jnp.float32(4.7))


def test_every_form_of_a_parameter_tree():
    state = nnx.split(_Model())[1]
    trees = {
        "nnx": (state, lambda p: p["log_scale"][...]),
        "nested": ({"a": {"log_scale": jnp.float32(4.7)}}, lambda p: p["a"]["log_scale"]),
        "flat tuple": (
            {("a", "log_scale"): jnp.float32(4.7)},
            lambda p: p["a", "log_scale"],
        ),
        "flat string": ({"a/log_scale": jnp.float32(4.7)}, lambda p: p["a/log_scale"]),
        "bare": (jnp.float32(4.7), lambda p: p),
    }
    for tree, read in trees.values():
        zeros = jax.tree.map(jnp.zeros_like, tree)
        after, _ = step(optax.chain(optax.sgd(1.0), clip_log_scale()), tree, zeros)
        assert_at_limit(jnp.asarray(read(after)))
        projected, changes = project_log_scale(tree)
        assert_at_limit(jnp.asarray(read(projected)))
        assert len(changes) == 1
    kernel = state["tower"]["kernel"][...]
    np.testing.assert_array_equal(project_log_scale(state)[0]["tower"]["kernel"][...], kernel)


def test_selection_by_names():
    params = {"tau": jnp.float32(4.7), "log_scale": jnp.float32(4.7)}
    tx = clip_log_scale(where=lambda names: names[-1] == "tau")
    after, _ = step(tx, params, jax.tree.map(jnp.zeros_like, params))
    assert_at_limit(after["tau"])
    assert float(after["log_scale"]) == float(np.float32(4.7))
    assert is_log_scale(path_names((jax.tree_util.DictKey("model.log_scale"),)))
    assert not is_log_scale(("log_scale", "kernel"))
    with pytest.raises(ValueError, match="no parameter to clip among 1"):
        clip_log_scale().init({"temperature": jnp.float32(0.0)})


def test_lower_limit_and_no_limit():
    params, grads = {"log_scale": jnp.float32(0.5)}, {"log_scale": jnp.float32(3.0)}
    after, _ = step(optax.chain(optax.sgd(1.0), clip_log_scale(None, 1.5)), params, grads)
    assert float(after["log_scale"]) == pytest.approx(math.log(1.5), rel=1e-6)
    assert float(after["log_scale"]) >= math.log(1.5)
    after, _ = step(optax.chain(optax.sgd(1.0), clip_log_scale(None)), params, grads)
    assert float(after["log_scale"]) == -2.5


def test_limits_are_checked():
    for bad in ((0.0, None), (-1.0, None), (math.inf, None), (100.0, 0.0)):
        with pytest.raises(ValueError, match="positive"):
            clip_log_scale(*bad)
    with pytest.raises(ValueError, match="above max_scale"):
        clip_log_scale(10.0, 20.0)
    with pytest.raises(ValueError, match="needs the parameters"):
        clip_log_scale().update({"log_scale": jnp.float32(0.0)}, optax.EmptyState())


@pytest.mark.parametrize(
    "value_dtype, step_dtype, size",
    # A bfloat16 update of a parameter far away is coarser than the interval.
    [("float32", "float32", 1e4), ("bfloat16", "bfloat16", 16.0), ("float32", "bfloat16", 16.0)],
)
@hypothesis.given(
    value=st.floats(-1, 1, width=32),
    update=st.floats(-1, 1, width=32),
    limits=st.sampled_from([(100.0, None), (100.0, 0.3), (10.0, 2.0), (None, 0.01)]),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_the_result_is_always_within_the_limits(
    value_dtype, step_dtype, size, value, update, limits
):
    value, update = (
        jnp.asarray(size * x, t) for x, t in ((value, value_dtype), (update, step_dtype))
    )
    rewritten, _ = clip_log_scale(*limits).update(update, optax.EmptyState(), value)
    assert rewritten.dtype == step_dtype
    common = np.promote_types(value.dtype, update.dtype)
    end = float((value.astype(common) + rewritten.astype(common)).astype(value_dtype))
    high = math.inf if limits[0] is None else math.log(limits[0])
    low = -math.inf if limits[1] is None else math.log(limits[1])
    assert low <= end <= high
    free = float(value.astype(common) + update.astype(common))
    if low <= free <= high:
        assert float(rewritten) == float(update)
