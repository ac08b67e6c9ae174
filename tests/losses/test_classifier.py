"""Sentence-BERT's softmax objective against the float64 oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from contrastive import reference
from contrastive.losses.classifier import classifier_loss, pair_features


def arrays(batch=8, dim=5, classes=3, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = (batch, dim), (batch, dim), (3 * dim, classes), (classes,)
    u, v, kernel, bias = (jnp.asarray(rng.normal(size=s), dtype) for s in shapes)
    labels = jnp.asarray(rng.integers(0, classes, batch), jnp.int32)
    weights = jnp.asarray([1.0, 0.5, 2, 0, 1, 1, 0, 3], jnp.float32)
    return u, v, kernel, labels, bias, weights


def compare(u, v, kernel, labels, bias, weights, rtol=1e-5):
    function = jax.jit(
        jax.value_and_grad(
            lambda u, v, kernel, bias: classifier_loss(
                u, v, kernel, labels, bias=bias, weights=weights
            ),
            (0, 1, 2, 3),
        )
    )
    loss, grads = function(u, v, kernel, bias)
    expected, by_name = reference.classifier_loss(u, v, kernel, labels, bias=bias, weights=weights)
    assert float(loss) == pytest.approx(expected, rel=rtol)
    for name, grad in zip(("first", "second", "kernel", "bias"), grads, strict=True):
        gap = np.linalg.norm(np.asarray(grad, np.float64) - by_name[name])
        assert gap <= rtol * np.linalg.norm(by_name[name]), name


def test_equals_the_oracle():
    compare(*arrays())
    compare(*arrays(dtype=jnp.bfloat16), rtol=2e-2)


def test_features_and_a_hand_example():
    u, v = jnp.array([[1.0, -2.0]]), jnp.array([[3.0, 1.0]])
    np.testing.assert_array_equal(pair_features(u, v), [[1, -2, 3, 1, 2, 3]])
    kernel = jnp.zeros((6, 3)).at[4, 1].set(1.0)  # class 1 scores |u - v| in the first dimension
    loss = classifier_loss(u, v, kernel, jnp.array([1]))
    assert float(loss) == pytest.approx(np.log(1 + 2 * np.exp(-2)))


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_cut_over_devices(kind):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    u, v, kernel, labels, bias, weights = arrays()

    def place(x):
        spec = PartitionSpec("data", *[None] * (x.ndim - 1))
        return jax.device_put(x, NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        compare(place(u), place(v), kernel, place(labels), bias, place(weights))


def test_rows_that_do_not_exist_may_hold_anything():
    u, v, kernel, labels, bias, weights = arrays()
    spoiled = jnp.where(weights[:, None] > 0, u, jnp.nan)
    labels = jnp.where(weights > 0, labels, -1)
    compare(spoiled, v, kernel, labels, bias, weights)
    nothing = classifier_loss(spoiled, v, kernel, labels, weights=0 * weights)
    assert float(nothing) == 0.0


def test_a_label_that_is_no_class_shows():
    u, v, kernel, labels, *_ = arrays()
    assert np.isnan(classifier_loss(u, v, kernel, labels.at[0].set(3)))
    with pytest.raises(ValueError, match=r"\(14, 3\)"):
        classifier_loss(u, v, kernel[:-1], labels)


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_named():
    u, v, kernel, labels, bias, weights = arrays()
    batch = u.shape[0]
    for wrong, error, message in (
        ({"labels": labels[:1]}, ValueError, rf"labels are \[1\], expected \[{batch}\]"),
        ({"labels": labels[:, None]}, ValueError, rf"labels are \[{batch}, 1\]"),
        ({"labels": labels.astype(jnp.float32)}, TypeError, "integer dtype, got float32"),
        ({"bias": bias[:1]}, ValueError, r"bias is \[1\], expected \[3\]"),
        ({"weights": weights[:1]}, ValueError, r"weights are \[1\]"),
        ({"kernel": kernel[:, 0]}, ValueError, "kernel"),
        ({"first": u[:0], "second": v[:0], "labels": labels[:0]}, ValueError, "no rows"),
    ):
        with pytest.raises(error, match=message):
            classifier_loss(**{"first": u, "second": v, "kernel": kernel, "labels": labels} | wrong)


def test_confident_rows_keep_their_digits():
    u = jnp.ones((1, 1))
    kernel = jnp.array([[40.0, 0.0], [0, 0], [0, 0]])
    loss = classifier_loss(u, u, kernel, jnp.array([0]))
    assert float(loss) == pytest.approx(np.exp(-40.0), rel=1e-5)
