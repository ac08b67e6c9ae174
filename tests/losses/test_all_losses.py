"""Every loss under every partition against the float64 reference: value and every gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from contrastive import losses

NAMES = [
    "clip",
    "info_nce",
    "info_nce, hard negatives",
    "info_nce, own negatives",
    "info_nce, queue",
    "nt_xent",
    "gte",
    "decoupled",
    "decoupled, one way",
    "multi_positive",
    "multi_positive, one way",
    "sigmoid",
    "sigmoid, multi-positive",
]


def test_no_loss_is_left_out(bench):
    assert list(bench.LOSSES) == NAMES
    elsewhere = {"classifier_loss", "pair_features", "triplet_loss"}  # have files of their own
    elsewhere |= {"label_loss", "relevance_loss"}  # tests/objectives/test_judged.py
    tried = {getattr(loss, "func", loss).__name__ for loss, *_ in bench.LOSSES.values()}
    assert tried | elsewhere == set(losses.__all__)


@pytest.mark.parametrize("partition", ["none", "gather 2x2", "ring 8"])
@pytest.mark.parametrize("name", NAMES)
def test_loss_equals_float64(bench, name, partition):
    batch = bench.Batch(name)
    batch.check(batch.got(*bench.partitioned(partition)), 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_loss_of_well_aligned_pairs_at_scale_100(bench, name):
    """Losses down to 1e-20 and their gradients, where logsumexp − positive cancels to nothing."""
    batch = bench.Batch(name, scale=100.0, noise=0.05)
    batch.check(batch.got(*bench.partitioned("gather one")), 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_loss_of_bfloat16_rows(bench, name):
    batch = bench.Batch(name, dtype=jnp.bfloat16)
    value, grads = batch.got(*bench.partitioned("ring 2"))
    batch.check((value, grads), 2e-2)
    assert value.dtype == jnp.float32
    for grad, arg in zip(grads, batch.args.values(), strict=True):
        assert grad.dtype == arg.dtype


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
@pytest.mark.parametrize(
    "partition",
    [
        f"{e} {m}"
        for e in ("dense", "gather", "ring")
        for m in ("one", "1", "2", "4", "8", "2x4", "2x2x2")
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_full_cross(bench, name, partition, kind):
    for settings, tolerance in (
        ({}, 1e-5),
        ({"scale": 100.0, "noise": 0.05}, 1e-4),
        ({"dtype": jnp.bfloat16}, 2e-2),
    ):
        batch = bench.Batch(name, **settings)
        batch.check(batch.got(*bench.partitioned(partition, kind)), tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_loss_with_statistics_equals_float64(bench, name):
    batch = bench.Batch(name)
    partition, put = bench.partitioned("ring 4")

    def with_statistics(args):
        options = {n: put(v) for n, v in batch.options.items()}
        return batch.loss(**args, **options, partition=partition, return_statistics=True)

    args = {n: put(v) for n, v in batch.args.items()}
    (value, stats), grads = jax.jit(jax.value_and_grad(with_statistics, has_aux=True))(args)
    batch.check((value, [grads[n] for n in batch.names]), 1e-5)
    exists = batch.options.get("weights", np.ones(24)) > 0
    x, y = (np.asarray(batch.args[n], np.float64) for n in batch.names[:2])
    positive = float(batch.args["scale"]) * (x * y).sum(1) + float(batch.args.get("bias", 0.0))
    np.testing.assert_allclose(np.asarray(stats.positive)[exists], positive[exists], rtol=1e-5)
    assert 0 <= float(stats.accuracy()) <= 1
    assert (np.asarray(stats.count)[exists] >= 0).all()
    one_way = "info_nce" in name or "one way" in name or name == "gte"
    assert (stats.columns is None) == one_way


def test_accuracy_of_clip_is_recall_at_1_in_the_batch(bench):
    batch = bench.Batch("clip", noise=1.2)
    batch.options = {}
    _, stats = batch.loss(**batch.args, return_statistics=True)
    s = np.asarray(batch.args["images"]) @ np.asarray(batch.args["texts"]).T
    right = np.arange(24)
    expected = (s.argmax(1) == right).mean(), (s.argmax(0) == right).mean()
    assert 0.2 < expected[0] < 0.9
    np.testing.assert_allclose((stats.accuracy(), stats.columns.accuracy()), expected, rtol=1e-6)


@pytest.mark.parametrize("dim", [4, 65])
def test_accuracy_of_a_collapsed_model_is_chance(bench, dim):
    row = bench.unit(np.random.default_rng(0), dim).astype(np.float32)
    x = jnp.tile(row, (40, 1))
    for name in ("none", "gather one", "ring 8"):
        partition, put = bench.partitioned(name)
        for loss, extra in ((bench.LOSSES["clip"][0], ()), (bench.LOSSES["sigmoid"][0], (-5.0,))):
            _, stats = jax.jit(
                lambda x, f=loss, e=extra, p=partition: f(
                    x, x, 20.0, *e, partition=p, return_statistics=True
                )
            )(put(x))
            assert float(stats.accuracy()) == pytest.approx(1 / 40)
            assert float(stats.columns.accuracy()) == pytest.approx(1 / 40)


@pytest.mark.parametrize("dim", [65, 129])
def test_accuracy_of_a_collapsed_model_is_chance_among_given_negatives(bench, dim):
    """The positive and its rivals come from different products, which round differently."""
    row = jnp.asarray(bench.unit(np.random.default_rng(0), dim), jnp.float32)
    x, hard = jnp.tile(row, (24, 1)), jnp.tile(row, (24, 2, 1))
    for partition in (bench.partitioned("none")[0], bench.partitioned("gather one")[0]):
        for options, rivals in (
            ({"negatives": x[:16], "in_batch": False}, 16),
            ({"negatives": hard}, 23 + 48),
            ({"negatives": hard, "share_negatives": False}, 23 + 2),
        ):
            _, stats = jax.jit(
                lambda x, o=options, p=partition: losses.info_nce(
                    x, x, 20.0, **o, partition=p, return_statistics=True
                )
            )(x)
            assert float(stats.accuracy()) == pytest.approx(1 / (rivals + 1)), options.keys()


def test_accuracy_counts_existing_rows_only(bench):
    x = jnp.eye(4)
    weights = jnp.array([1.0, 0.0, 3.0, 1.0])
    y = jnp.eye(4)[jnp.array([0, 1, 3, 2])]
    _, stats = bench.LOSSES["clip"][0](x, y, 1.0, weights=weights, return_statistics=True)
    np.testing.assert_allclose(stats.accuracy(), 1 / 3)
