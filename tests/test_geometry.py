"""Unit rows and the measures of a space of embeddings."""

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import contrastive
from contrastive.geometry import normalize


def test_A19_float16_rows_are_raised_before_the_norm():
    rows = normalize(jnp.full((1, 4), 300.0, jnp.float16))
    assert rows.dtype == jnp.float32
    np.testing.assert_allclose(rows, [[0.5, 0.5, 0.5, 0.5]], rtol=1e-6)


def test_A20_a_zero_row_has_a_finite_gradient():
    rows = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    gradient = jax.jit(jax.grad(lambda x: normalize(x)[:, 0].sum()))(rows)
    np.testing.assert_allclose(gradient[1], [0.128, -0.096], rtol=1e-6)
    np.testing.assert_array_equal(gradient[0], 0.0)
    np.testing.assert_array_equal(normalize(rows)[0], 0.0)


def test_A20_second_derivatives_are_finite_too():
    hessian = jax.hessian(lambda x: jnp.sum(normalize(x)[:, 0] ** 3))(jnp.array([[0.0, 0.0]]))
    assert np.isfinite(hessian).all()


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e12, 3e38])
def test_rows_of_any_size(size):
    rows = jnp.array([[size, -size, size / 2]], jnp.float32)
    np.testing.assert_allclose(normalize(rows), [[2 / 3, -2 / 3, 1 / 3]], rtol=3e-7)


@hypothesis.given(
    hnp.arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32)),
    hnp.arrays(np.float32, (3, 5), elements=st.floats(-1, 1, width=32)),
)
@hypothesis.settings(max_examples=50, deadline=None)
def test_unit_length_and_a_perpendicular_gradient(rows, direction):
    rows = np.where(np.abs(rows).max(1, keepdims=True) < 1e-2, 0, rows).astype(np.float32)
    unit, pull = jax.vjp(normalize, jnp.asarray(rows))
    length = np.linalg.norm(np.asarray(unit, np.float64), axis=-1)
    np.testing.assert_allclose(length, np.any(rows != 0, axis=-1), atol=3e-7)
    (gradient,) = pull(jnp.asarray(direction))
    dots = np.sum(np.asarray(gradient, np.float64) * rows, axis=-1)
    np.testing.assert_allclose(dots, 0, atol=2e-6)


def test_any_leading_axes_and_numpy():
    rows = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    unit = contrastive.normalize(rows)
    assert unit.shape == (2, 3, 4)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=-1), 1, rtol=1e-6)
