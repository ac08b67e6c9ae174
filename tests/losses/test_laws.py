"""Laws that hold for any batch."""

from functools import partial

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from contrastive import losses, normalize
from contrastive.logits import LogitPartition
from contrastive.logits.softplus import softplus_along

SETTINGS = hypothesis.settings(max_examples=25, deadline=None)
SHAPES = st.tuples(st.sampled_from([2, 5, 12]), st.sampled_from([1, 3]))
SCALES = st.sampled_from([0.5, 10.0, 100.0])
SEEDS = st.integers(0, 2**16)


def draw(seed, batch, dim):
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(2, batch, dim)).astype(np.float32)
    return x, x + 0.8 * noise


@jax.jit
def clip_step(images, texts, scale):
    return jax.value_and_grad(losses.clip_loss, (0, 1))(normalize(images), normalize(texts), scale)


@jax.jit
def sigmoid_step(images, texts, scale):
    return jax.value_and_grad(losses.sigmoid_loss, (0, 1))(
        normalize(images), normalize(texts), scale, -scale
    )


@jax.jit
def clip_slopes(images, texts, scale):
    return jax.grad(lambda a, b: losses.clip_loss(normalize(a), normalize(b), scale), (0, 1))(
        images, texts
    )


one_logarithm = jax.jit(softplus_along, static_argnums=1)
info_nce_slopes = jax.jit(jax.grad(losses.info_nce, (0, 1)))


@pytest.mark.parametrize("step", [clip_step, sigmoid_step], ids=["clip", "sigmoid"])
@SETTINGS
@hypothesis.given(shape=SHAPES, scale=SCALES, seed=SEEDS)
def test_permuting_the_pairs_permutes_the_gradients(step, shape, scale, seed):
    x, y = draw(seed, *shape)
    order = np.random.default_rng(seed).permutation(shape[0])
    value, grads = step(x, y, scale)
    again, moved = step(x[order], y[order], scale)
    np.testing.assert_allclose(again, value, rtol=2e-5, atol=1e-6)
    for grad, other in zip(grads, moved, strict=True):
        np.testing.assert_allclose(other, np.asarray(grad)[order], rtol=1e-3, atol=1e-5 * scale)


@SETTINGS
@hypothesis.given(shape=SHAPES, scale=SCALES, seed=SEEDS)
def test_gradient_of_raw_rows_is_perpendicular_to_them(shape, scale, seed):
    x, y = draw(seed, *shape)
    for grad, rows in zip(clip_slopes(x, y, scale), (x, y), strict=True):
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(grad, axis=1)
        inner = np.abs((np.asarray(grad) * rows).sum(1))
        assert (inner <= 1e-4 * np.maximum(lengths, scale * 1e-2)).all()


@SETTINGS
@hypothesis.given(batch=st.sampled_from([2, 5, 12]), scale=SCALES, seed=SEEDS)
def test_rows_of_a_minus_i_sum_to_zero(batch, scale, seed):
    """With keys that are the axes the gradient of the queries is A − I itself, up to 1/(B tau)."""
    queries = normalize(draw(seed, batch, batch)[0])
    eye = jnp.eye(batch)
    rows = info_nce_slopes(queries, eye, scale)[0]
    np.testing.assert_allclose(rows.sum(1), 0, atol=1e-6 * scale)
    columns = info_nce_slopes(eye, queries, scale)[1]  # Gᵀ
    np.testing.assert_allclose(columns.sum(0), 0, atol=1e-6 * scale)


@SETTINGS
@hypothesis.given(shape=SHAPES, scale=SCALES, seed=SEEDS)
def test_the_loss_is_never_negative_and_at_most_its_worst(shape, scale, seed):
    x, y = draw(seed, *shape)
    value, _ = clip_step(x, y, scale)
    assert 0 <= float(value) <= 2 * scale + np.log(shape[0]) + 1e-3


@partial(jax.jit, static_argnums=3)
def both_losses(images, texts, scale, partition):
    return (
        losses.clip_loss(images, texts, scale, partition=partition),
        losses.sigmoid_loss(images, texts, scale, -scale, partition=partition),
    )


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(
    batch=st.sampled_from([1, 4, 9]),
    blocks=st.tuples(st.sampled_from([1, 3, 10]), st.sampled_from([1, 4, 7])),
    scale=SCALES,
    seed=SEEDS,
)
def test_the_loss_does_not_depend_on_the_blocks(batch, blocks, scale, seed):
    x, y = map(normalize, draw(seed, batch, 3))
    got = both_losses(x, y, scale, LogitPartition(None, None, "gather", *blocks))
    expected = both_losses(x, y, scale, None)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    columns=st.sampled_from([1, 7, 64, 100, 128]),
    low=st.floats(-120, 0),
    high=st.floats(0, 120),
    seed=SEEDS,
)
def test_one_logarithm_for_many_entries_is_as_exact_as_many(columns, low, high, seed):
    x = np.random.default_rng(seed).uniform(low, high, (3, columns)).astype(np.float32)
    x[0, 0] = -np.inf  # an absent entry
    wide = x.astype(np.float64)
    exact = np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))
    # Below the smallest normal number nothing is left of an entry.
    for got in (one_logarithm(x, 1), one_logarithm(x.T.copy(), 0)):
        np.testing.assert_allclose(got, exact.sum(1), rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize(
    "partition, meshes", [("gather", ("1", "4", "8")), ("ring", ("2", "8", "2x4"))]
)
def test_tower_weights_get_the_same_gradient_on_any_number_of_devices(bench, partition, meshes):
    """Weights are whole on every device: their gradient sums over the rows of all."""
    rng = np.random.default_rng(0)
    pixels, words = rng.normal(size=(2, 16, 6)).astype(np.float32)
    weights = tuple(rng.normal(size=(2, 6, 5)).astype(np.float32))

    def loss(weights, images, texts, part):
        rows = [normalize(jnp.tanh(x @ w)) for w, x in zip(weights, (images, texts), strict=True)]
        return losses.clip_loss(*rows, 15.0, partition=part) + losses.sigmoid_loss(
            *rows, 15.0, -5.0, partition=part
        )

    expected = jax.grad(loss)(weights, pixels, words, None)
    for mesh in meshes:
        part, put = bench.partitioned(f"{partition} {mesh}")
        # The type says that weights are whole, and with them their gradients: sharded rows alone
        # would leave open where a product over them goes.
        whole = jax.device_put(weights, NamedSharding(part.mesh, PartitionSpec()))
        grads = jax.jit(jax.grad(loss), static_argnums=3)(whole, put(pixels), put(words), part)
        for got, want in zip(grads, expected, strict=True):
            assert bench.relative(got, want) < 1e-5
