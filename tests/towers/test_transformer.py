"""Blocks, the scanned stack, attention and its masks."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive.errors import ConfigError
from contrastive.towers import layers
from contrastive.towers.transformer import (
    Attention,
    AttentionPool,
    BlockInit,
    Mlp,
    Transformer,
    TransformerConfig,
)

CONFIG = TransformerConfig(width=16, depth=3, heads=2, mlp_ratio=2.0)


def sequences(batch=3, length=5, width=16, seed=0):
    x = np.random.default_rng(seed).normal(size=(batch, length, width))
    return jnp.asarray(x, jnp.float32)


def softmax_attention(attention, x, context, mask):
    """Attention head by head, in float64."""
    f = functools.partial(np.asarray, dtype=np.float64)
    kernel, bias, out = f(attention.qkv[...]), f(attention.qkv_bias[...]), f(attention.out[...])
    x, context, result = f(x), f(context), 0.0
    for h in range(kernel.shape[2]):
        q = x @ kernel[:, 0, h] + bias[0, h]
        k, v = (context @ kernel[:, i, h] + bias[i, h] for i in (1, 2))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True)) * mask
        weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
        result = result + weights @ v @ out[h]
    return result + f(attention.out_bias[...])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_against_numpy(causal, fill, quick):
    attention, x = fill(lambda: Attention(CONFIG, rngs=nnx.Rngs(0))), sequences()
    valid = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1]], bool)[:, None]
    mask = valid & np.tri(5, dtype=bool) if causal else valid & np.ones((5, 5), bool)
    result = quick(functools.partial(attention, causal=causal))(x, mask=jnp.asarray(valid))
    np.testing.assert_allclose(result, softmax_attention(attention, x, x, mask), atol=1e-5)


def test_cross_attention_against_numpy(fill, quick):
    attention = fill(lambda: Attention(CONFIG, rngs=nnx.Rngs(0)))
    x, context = sequences(length=2), sequences(seed=1)
    expected = softmax_attention(attention, x, context, np.ones((3, 2, 5)))
    np.testing.assert_allclose(quick(attention.__call__)(x, context), expected, atol=1e-5)


def test_A21_fully_masked_query_gets_zeros(fill, quick):
    """jax.nn.dot_product_attention alone returns the plain average of all values."""
    attention = fill(lambda: Attention(CONFIG, rngs=nnx.Rngs(0)))
    attention.out_bias[...] = jnp.zeros(16)
    mask = jnp.array([[[True] * 5], [[False] * 5], [[True] * 5]])

    def loss(x):
        y = attention(x, mask=mask)
        return jnp.sum(y**2), y

    (_, y), gradient = quick(jax.value_and_grad(loss, has_aux=True))(sequences())
    assert not np.any(y[1])
    assert np.all(np.any(y[::2], axis=-1))
    assert np.all(np.isfinite(gradient))
    assert not np.any(gradient[1])


def unrolled(transformer, x, *, mask=None, keys=None):
    graphdef, stacked = nnx.split(transformer.blocks)
    each = None if keys is None else layers.split_row_keys(keys, transformer.depth)
    for i in range(transformer.depth):
        block = nnx.merge(graphdef, jax.tree.map(lambda p, i=i: p[i], stacked))
        x = block(x, mask=mask, keys=None if each is None else each[i])
    return x


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_scan_equals_the_unrolled_loop(rate, fill, quick):
    config = dataclasses.replace(CONFIG, dropout=rate)
    graphdef, state = nnx.split(fill(lambda: Transformer(config, rngs=nnx.Rngs(0))))
    x = sequences()
    keys = layers.row_keys(jax.random.key(0), x)
    mask = jnp.array([[[True] * 5], [[True, True, False, False, False]], [[True] * 5]])

    def run(call, state, x):
        return jnp.sum(jnp.sin(call(nnx.merge(graphdef, state), x, mask=mask, keys=keys)))

    values = [
        quick(jax.value_and_grad(functools.partial(run, call), argnums=(0, 1)))(state, x)
        for call in (Transformer.__call__, unrolled)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *values)


def test_the_program_does_not_grow_with_depth(fill):
    def products(depth):
        config = dataclasses.replace(CONFIG, depth=depth)
        transformer = fill(lambda: Transformer(config, rngs=nnx.Rngs(0)))
        return str(jax.make_jaxpr(lambda x: transformer(x))(sequences())).count("dot_general")

    assert products(2) == products(6)


def test_stacked_layers_start_different():
    kernel = np.asarray(Mlp(CONFIG, stack=(3,), rngs=nnx.Rngs(0)).up.kernel[...])
    assert kernel.shape == (3, 16, 32)
    assert np.abs(np.corrcoef(kernel.reshape(3, -1))[0, 1:]).max() < 0.2


def test_remat_keeps_fewer_bytes(fill, quick):
    """More recomputation, less memory, the same gradient."""
    x, bytes_kept, gradients = sequences(32, 64, 16), {}, {}
    for remat in ("none", "dots", "full"):
        config = dataclasses.replace(CONFIG, depth=8, remat=remat)
        transformer = fill(lambda config=config: Transformer(config, rngs=nnx.Rngs(0)))
        graphdef, state = nnx.split(transformer)

        def loss(state, x, graphdef=graphdef):
            return jnp.sum(nnx.merge(graphdef, state)(x) ** 2)

        step = quick(jax.grad(loss)).lower(state, x).compile()
        bytes_kept[remat] = step.memory_analysis().temp_size_in_bytes
        gradients[remat] = step(state, x)
    assert bytes_kept["full"] < 0.75 * bytes_kept["dots"]
    assert bytes_kept["dots"] < 0.5 * bytes_kept["none"]
    for remat in ("dots", "full"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3),
            gradients["none"],
            gradients[remat],
        )


def test_attention_pool_ignores_the_order_and_masked_positions(fill, quick):
    pool, x = quick(fill(lambda: AttentionPool(CONFIG, rngs=nnx.Rngs(0))).__call__), sequences()
    result = pool(x)
    np.testing.assert_allclose(pool(x[:, ::-1]), result, atol=1e-5)
    longer = jnp.concatenate([x, 9.0 * jnp.ones((3, 2, 16))], axis=1)
    mask = jnp.arange(7)[None] < jnp.full((3, 1), 5)
    np.testing.assert_allclose(pool(longer, mask=mask), result, atol=1e-5)
    assert np.abs(pool(longer) - result).max() > 1e-2


def test_initialization_of_the_two_papers():
    config = TransformerConfig(width=64, depth=6, heads=2)
    deviations = {}
    for name in ("clip", "siglip"):
        init = BlockInit.of(dataclasses.replace(config, init=name))
        deviations[name] = [
            float(jnp.std(draw(jax.random.key(0), (200, 200), jnp.float32)))
            for draw in (init.qkv, init.out, init.up, init.down, init.mlp_bias)
        ]
    residual = 64**-0.5 * 12**-0.5
    clip = [64**-0.5, residual, 128**-0.5, residual, 0.0]
    siglip = [(2 / 128) ** 0.5] * 2 + [(2 / 320) ** 0.5] * 2 + [1e-6]
    np.testing.assert_allclose(deviations["clip"], clip, rtol=0.02)
    np.testing.assert_allclose(deviations["siglip"], siglip, rtol=0.02)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"width": 10, "heads": 4}, "heads = 4 does not divide config.model.width = 10"),
        ({"depth": 0}, "depth = 0 has to be at least 1"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"mlp_ratio": 0.001}, "leaves no hidden unit at width 128"),
    ],
)
def test_config_errors(change, message):
    with pytest.raises(ConfigError, match=message):
        TransformerConfig(**change)
