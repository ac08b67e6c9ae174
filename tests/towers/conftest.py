"""Modules with made-up parameters, and programs that compile fast: compiling is most of a test."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx


@pytest.fixture
def fill():
    """``fill(build)``: the module that ``build()`` describes, with NumPy's random parameters.

    Every parameter is moved off its start (a bias of zero would hide that it is missing), and
    nothing is compiled.
    """

    def make(build, seed=0):
        graphdef, state = nnx.split(nnx.eval_shape(build))
        rng = np.random.default_rng(seed)

        def draw(path, leaf):
            center = 1.0 if "scale" in jax.tree_util.keystr(path) else 0.0
            fan = 1 if leaf.ndim < 2 else np.prod(leaf.shape[-2:]) / leaf.shape[-1]
            values = center + rng.normal(0.0, 0.5 / np.sqrt(fan), leaf.shape)
            if "variance" in jax.tree_util.keystr(path):
                values = np.abs(values) + 0.5
            return jnp.asarray(values, jnp.float32)

        return nnx.merge(graphdef, jax.tree_util.tree_map_with_path(draw, state))

    return make


@pytest.fixture
def quick():
    """``jax.jit`` that hardly optimises."""
    return functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
