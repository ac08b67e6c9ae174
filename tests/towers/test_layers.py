"""The small layers against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from contrastive.towers import layers


def rows(*shape, seed=0, mean=0.0):
    return np.random.default_rng(seed).normal(mean, 1.0, shape).astype(np.float32)


@pytest.mark.parametrize(
    "epsilon, expected", [(1e-5, 0.3015113), (1e-6, 0.7071068), (1e-7, 0.9534626)]
)
def test_C03_layer_norm_epsilon(epsilon, expected):
    norm = layers.LayerNorm(2, epsilon=epsilon, rngs=nnx.Rngs(0))
    result = norm(jnp.array([[0.001, -0.001]], jnp.float32))
    np.testing.assert_allclose(result, [[expected, -expected]], atol=1e-6)


def test_C03_layer_norm_of_rows_with_a_large_mean():
    """mean(x²) − mean(x)² has no correct digit here."""
    x = rows(4, 64, mean=10_000.0)
    norm = layers.LayerNorm(64, epsilon=1e-6, rngs=nnx.Rngs(0))
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(norm(jnp.asarray(x)), exact, atol=2e-3)


def test_layer_norm_gain_and_bias():
    norm = layers.LayerNorm(3, epsilon=1e-6, rngs=nnx.Rngs(0))
    norm.scale[...], norm.bias[...] = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.1, 0.2, 0.3])
    x = rows(2, 5, 3)
    z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(norm(jnp.asarray(x)), z * [1, 2, 3] + [0.1, 0.2, 0.3], atol=1e-5)


@pytest.mark.parametrize(
    "name, formula",
    [
        ("gelu", lambda x: x * scipy.special.ndtr(x)),
        (
            "gelu_tanh",
            lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        ),
        ("quick_gelu", lambda x: x * scipy.special.expit(1.702 * x)),
    ],
)
def test_activations(name, formula):
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    result = layers.activation(name)(jnp.asarray(x))
    np.testing.assert_allclose(result, formula(x.astype(np.float64)), atol=1e-6)


def test_initializers_have_the_stated_deviations():
    key, shape = jax.random.key(0), (200, 200)
    assert np.std(layers.normal(0.02)(key, shape, jnp.float32)) == pytest.approx(0.02, rel=0.02)
    drawn = layers.uniform(0.3)(key, shape, jnp.float32)
    assert np.std(drawn) == pytest.approx(0.3 / np.sqrt(3), rel=0.02)
    assert np.abs(drawn).max() <= 0.3


# --- Pooling


@pytest.mark.parametrize("pool", [layers.masked_mean, layers.masked_max, layers.masked_last])
def test_A21_all_masked_row_pools_to_zeros_without_gradient(pool):
    x = jnp.ones((2, 3, 4), jnp.float32)
    mask = jnp.array([[False, False, False], [True, True, False]])
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(pool(x, mask)))(x)
    assert pool(x, mask)[0].tolist() == [0.0] * 4
    assert value == 4.0
    assert not np.any(gradient[0])
    assert np.all(np.isfinite(gradient))


def test_masked_pooling_against_numpy():
    x, mask = rows(3, 5, 4), np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 1]], bool)
    mean = np.stack([r[m].mean(0) for r, m in zip(x, mask, strict=True)])
    top = np.stack([r[m].max(0) for r, m in zip(x, mask, strict=True)])
    args = jnp.asarray(x), jnp.asarray(mask)
    np.testing.assert_allclose(layers.masked_mean(*args), mean, atol=1e-6)
    np.testing.assert_array_equal(layers.masked_max(*args), top)
    np.testing.assert_array_equal(layers.masked_last(*args), x[[0, 1, 2], [2, 3, 4]])


def test_masked_positions_may_hold_nan():
    x = rows(1, 3, 4)
    x[0, 2] = np.nan
    mask = jnp.array([[True, True, False]])
    for pool in (layers.masked_mean, layers.masked_max, layers.masked_last):
        assert np.all(np.isfinite(pool(jnp.asarray(x), mask)))


def test_bfloat16_mean_is_summed_in_float32():
    """1 + 1/128 is exact in bfloat16; a bfloat16 sum of 1024 of them is not."""
    x = jnp.full((1, 1024, 1), 1.0078125, jnp.bfloat16)
    mask = jnp.ones((1, 1024), bool)
    assert layers.masked_mean(x, mask)[0, 0] == 1.0078125


# --- Dropout


def masks(seed, rows, rate=0.5, shape=(16, 4), count=1):
    rows = jnp.asarray(rows, jnp.int32)
    x = jnp.ones((len(rows), *shape), jnp.float32)
    keys = layers.row_keys(jax.random.key(seed), x, rows)
    return jnp.stack(layers.keep_masks(x, rate, keys, count))


def test_A08_dropout_is_a_function_of_key_and_row(quick):
    whole, again, other, pair, order = quick(
        lambda: [
            masks(0, range(8)),
            masks(0, range(8)),
            masks(1, range(8)),
            masks(0, [4, 5]),
            masks(0, [7, 2]),
        ]
    )()
    np.testing.assert_array_equal(whole, again)
    np.testing.assert_array_equal(whole[:, 4:6], pair)
    np.testing.assert_array_equal(whole[:, [7, 2]], order)
    assert np.any(whole != other)
    assert np.any(whole[:, 0] != whole[:, 1])


def test_dropout_rate_and_scale():
    x = jnp.full((16, 4096), 3.0, jnp.float32)
    keys = layers.row_keys(jax.random.key(0), x)
    mask, other = layers.keep_masks(x, 0.25, keys, 2)
    y = np.asarray(layers.drop(x, 0.25, mask))
    assert set(np.unique(y)) == {0.0, 4.0}
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.01)
    assert (mask & other).mean() == pytest.approx(0.75**2, abs=0.01)
    assert layers.keep_masks(x, 0.0, keys) == layers.keep_masks(x, 0.5, None) == [None]
    assert layers.drop(x, 0.25, None) is x


def test_projection_none_needs_equal_sizes():
    assert layers.projection("none", 8, 8, rngs=nnx.Rngs(0)) is None
    with pytest.raises(ValueError, match="width 8 and embedding size 16"):
        layers.projection("none", 8, 16, rngs=nnx.Rngs(0))


def test_the_exact_gelu_of_sharded_towers_is_the_usual_one():
    """Under shard_map JAX's own has no gradient, so there is a second one."""
    x = jnp.linspace(-6.0, 6.0, 401)
    ours, usual = (
        jax.vmap(jax.value_and_grad(f))(x)
        for f in (layers._gelu, lambda v: jax.nn.gelu(v, approximate=False))
    )
    for a, b in zip(ours, usual, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
