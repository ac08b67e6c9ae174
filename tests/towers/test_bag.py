"""The bag-of-tokens tower: a weighted sum, whatever the order, the padding and the devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive import mesh as mesh_lib
from contrastive.errors import ConfigError, SizeError
from contrastive.mesh import MeshConfig
from contrastive.towers import BagConfig, BagTower, layers
from contrastive.towers.bag import hashed_bigrams

PLAIN = BagConfig(width=8, hidden=0)
FULL = BagConfig(width=8, hidden=16, bigrams=12, dropout=0.3)


def tower_of(config, output=8):
    return BagTower(
        config, length=6, vocabulary_size=20, pad_id=0, end_id=2, output=output, rngs=nnx.Rngs(0)
    )


def texts(rows=8, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, 20, (rows, 6), dtype=np.int32)
    for row, length in enumerate(rng.integers(1, 5, rows)):
        tokens[row, length] = 2
        tokens[row, length + 1 :] = 0
    return jnp.asarray(tokens)


def test_it_is_the_weighted_sum_over_the_root_of_the_length():
    tower, tokens = tower_of(PLAIN), texts()
    tower.token_bias[...] = jnp.linspace(-1, 1, 20)
    rows = tower(tokens, dtype=jnp.dtype("float32"))
    table, bias = np.asarray(tower.tokens[...]), np.asarray(tower.token_bias[...])
    for row, ids in zip(rows, np.asarray(tokens), strict=True):
        ids = ids[: list(ids).index(2) + 1]
        want = sum(np.exp(bias[i]) * table[i] for i in ids) / np.sqrt(len(ids))
        np.testing.assert_allclose(row, want, atol=1e-5)


def test_bigrams_tell_orders_apart_and_the_mlp_starts_at_nothing():
    tokens = jnp.array([[5, 6, 7, 2, 0, 0], [7, 6, 5, 2, 0, 0]], jnp.int32)
    dtype = jnp.dtype("float32")
    rows = tower_of(PLAIN)(tokens, dtype=dtype)
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    np.testing.assert_allclose(tower_of(BagConfig(width=8, hidden=16))(tokens, dtype=dtype), rows)
    ordered = tower_of(dataclasses.replace(PLAIN, bigrams=64))(tokens, dtype=dtype)
    assert np.abs(ordered[0] - ordered[1]).max() > 0.01
    many = jnp.asarray(np.random.default_rng(0).integers(0, 20, (2000, 6), dtype=np.int32))
    found = np.bincount(np.asarray(hashed_bigrams(many, 16)).ravel(), minlength=16)
    assert found.min() > 0.3 * found.mean()  # every row of the table is used


def test_padding_changes_nothing_and_dropout_leaves_tokens_out():
    tower, tokens, dtype = tower_of(FULL), texts(), jnp.dtype("float32")
    rows = tower(tokens, dtype=dtype)
    longer = jnp.pad(tokens, [(0, 0), (0, 3)])
    np.testing.assert_allclose(tower(longer, dtype=dtype), rows, atol=1e-6)
    keys = layers.row_keys(jax.random.key(1), tokens)
    dropped = tower(tokens, dtype=dtype, keys=keys)
    assert np.abs(dropped - rows).max() > 0.05
    np.testing.assert_array_equal(tower(tokens[2:], dtype=dtype, keys=keys[2:]), dropped[2:])


def test_one_device_equals_eight_with_parameters_cut():
    tower, tokens = tower_of(FULL), texts(16)
    graphdef, parameters = nnx.split(tower)

    def value(parameters, tokens):
        rows = nnx.merge(graphdef, parameters)(tokens, dtype=jnp.dtype("float32"))
        return jnp.sum(jnp.sin(rows * 3))

    want = jax.device_get(jax.value_and_grad(value)(parameters, tokens))
    mesh = mesh_lib.make_mesh(MeshConfig(fsdp=4), jax.devices())
    spec = jax.sharding.PartitionSpec

    def place(leaf):
        axes = leaf.get_metadata()["out_sharding"]
        cut = spec(*("fsdp" if axis == "embed" else None for axis in axes))
        return leaf.replace(jax.device_put(leaf[...], jax.sharding.NamedSharding(mesh, cut)))

    parameters = jax.tree.map(place, parameters, is_leaf=lambda x: isinstance(x, nnx.Variable))
    with jax.set_mesh(mesh):
        cut = jax.device_put(tokens, mesh_lib.batch_sharding(mesh))
        found = jax.device_get(jax.jit(jax.value_and_grad(value))(parameters, cut))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_bfloat16_stays_near_float32():
    tower, tokens = tower_of(FULL), texts()
    wide, narrow = (tower(tokens, dtype=jnp.dtype(d)) for d in ("float32", "bfloat16"))
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, atol=0.05)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"width": 0}, "width = 0 has to be at least 1"),
        ({"dropout": 1.0}, "below 1"),
        ({"epsilon": 0.0}, "epsilon = 0.0 has to be positive"),
    ],
)
def test_settings_that_cannot_be(options, words):
    with pytest.raises(ConfigError, match=words):
        BagConfig(**options)


def test_a_width_that_is_not_the_embedding_needs_a_projection():
    with pytest.raises(SizeError, match="width 8 and embedding size 12"):
        tower_of(PLAIN, output=12)
    linear = dataclasses.replace(PLAIN, projection="linear")
    assert tower_of(linear, output=12)(texts(), dtype=jnp.dtype("float32")).shape == (8, 12)
