"""Cases and facts by their numbers, edges, and what is refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from contrastive import losses, normalize, reference
from contrastive.logits import LogitPartition

SET_S = (
    np.array([[1, 0], [0, 1], [1, 1], [1, -1]], np.float32),
    np.array([[2, 1], [-1, 2], [1, 2], [1, -3]], np.float32),
)
SET_S_GRADIENTS = (
    [[0, -0.35259098], [0.77638528, 0], [0.39279291, -0.39279291], [0.00421473, 0.00421473]],
    [
        [-0.16295385, 0.32590771],
        [-0.11124224, -0.05562112],
        [-0.32377915, 0.16188958],
        [0.00114296, 0.00038099],
    ],
)
EVERYWHERE = [f"{e} {n}" for e in ("dense", "gather", "ring") for n in ("1", "2", "4")]


def raw_clip(images, texts, scale, **kwargs):
    return losses.clip_loss(normalize(images), normalize(texts), scale, **kwargs)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
@pytest.mark.parametrize("partition", EVERYWHERE)
def test_A01_E13_loss_and_gradients_of_set_s_on_1_2_and_4_devices(bench, partition, kind):
    partition, put = bench.partitioned(partition, kind)
    images, texts = map(put, SET_S)
    step = jax.jit(
        lambda a, b, s: jax.value_and_grad(raw_clip, (0, 1))(a, b, s, partition=partition)
    )
    for scale, loss in ((10.0, 0.360630305903), (1 / 0.07, 0.365489608492), (1.0, 0.905362337615)):
        value, grads = step(images, texts, scale)
        assert float(value) == pytest.approx(loss, rel=1e-5)
        if scale == 10.0:
            for grad, expected in zip(grads, SET_S_GRADIENTS, strict=True):
                np.testing.assert_allclose(grad, expected, atol=5e-6)


def test_A01_each_direction():
    images, texts = map(normalize, SET_S)
    one_way = losses.info_nce(images, texts, 10.0), losses.info_nce(texts, images, 10.0)
    np.testing.assert_allclose(one_way, (0.352592884303, 0.368667727503), rtol=1e-5)


@pytest.mark.parametrize("exchange", ["dense", "gather", "ring"])
def test_A04_labels_carry_the_device_offset(bench, exchange):
    partition, put = bench.partitioned(f"{exchange} 2")
    value = float(raw_clip(*map(put, SET_S), 10.0, partition=partition))
    assert value == pytest.approx(0.360630305903, rel=1e-5)
    # What labels 0, 1, 0, 1 would give.
    s = 10 * np.asarray(normalize(SET_S[0])) @ np.asarray(normalize(SET_S[1])).T
    wrong = (np.log(np.exp(s).sum(1)) - s[np.arange(4), [0, 1, 0, 1]]).mean() / 2
    wrong += (np.log(np.exp(s).sum(0)) - s[[0, 1, 0, 1], np.arange(4)]).mean() / 2
    assert abs(wrong - value) > 1


@pytest.mark.parametrize("scale", [1.0, 14.0, 100.0])
@pytest.mark.parametrize("name", ["clip_loss", "info_nce"])
def test_A09_the_level_of_the_loss_is_the_logarithm_of_the_batch(name, scale):
    loss = getattr(losses, name)
    rows = jnp.tile(normalize(np.array([[1.0, 2.0, -1.0]])), (8, 1))
    assert float(loss(rows, rows, scale)) == pytest.approx(2.0794415, rel=3e-6)
    assert float(loss(rows[:3], rows[:3], scale)) == pytest.approx(1.0986123, rel=3e-6)
    weights = jnp.arange(8) < 3
    padded = jnp.where(weights[:, None], rows, jnp.nan)
    value, grads = jax.value_and_grad(loss, (0, 1))(
        padded, padded, scale, weights=weights.astype(jnp.float32)
    )
    assert float(value) == pytest.approx(1.0986123, rel=3e-6)
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("partition", ["none", "gather one", "ring 4"])
def test_A11_sigmoid_sums_over_pairs_and_divides_by_the_batch(bench, partition):
    partition, put = bench.partitioned(partition)
    eye = put(np.eye(4, dtype=np.float32))
    value = losses.sigmoid_loss(eye, eye, 10.0, -10.0, partition=partition)
    assert float(value) == pytest.approx(0.693283377258, rel=1e-6)


def test_A13_sigmoid_loss_at_its_start():
    rows = jnp.tile(jnp.array([[1.0, 0.0]]), (8, 1)), jnp.tile(jnp.array([[0.0, 1.0]]), (8, 1))
    assert float(losses.sigmoid_loss(*rows, 10.0, -10.0)) == pytest.approx(10.000363191, rel=1e-6)
    assert float(losses.sigmoid_loss(*rows, 10.0, 0.0)) == pytest.approx(5.545177444, rel=1e-6)


@pytest.mark.parametrize("partition", ["none", "gather one", "ring 4"])
def test_A21c_a_masked_row_adds_nothing_and_is_not_counted(bench, partition):
    """Weight 0 masks a row with all its candidates; a row without negatives has loss 0, exactly."""
    partition, put = bench.partitioned(partition)
    images, texts = (np.asarray(normalize(x)) for x in SET_S)
    weights = put(np.array([1, 1, 0, 1], np.float32))
    kept = [0, 1, 3]
    args = put(images), put(texts)
    for loss, more in (
        (losses.clip_loss, ()),
        (losses.info_nce, ()),
        (losses.sigmoid_loss, (-3.0,)),
    ):
        step = jax.value_and_grad(loss, (0, 1))
        value, grads = jax.jit(
            lambda a, b, w, step=step, more=more: step(
                a, b, 10.0, *more, weights=w, partition=partition
            )
        )(*args, weights)
        expected, wanted = step(jnp.asarray(images[kept]), jnp.asarray(texts[kept]), 10.0, *more)
        assert float(value) == pytest.approx(float(expected), rel=1e-6)
        for grad, want in zip(grads, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(grad)[2], 0)
            np.testing.assert_allclose(np.asarray(grad)[kept], want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["clip_loss", "info_nce", "nt_xent", "gte_loss", "decoupled_loss"])
@pytest.mark.parametrize("partition", ["none", "ring 4"])
def test_A21c_rows_without_negatives(bench, name, partition):
    """Equal ids everywhere, or everything masked: nothing to learn, nothing that is not finite."""
    partition, put = bench.partitioned(partition)
    images, texts = (put(np.asarray(normalize(x))) for x in SET_S)
    same, nothing = put(np.zeros(4, np.int32)), put(np.zeros(4, np.float32))
    step = jax.jit(
        jax.value_and_grad(
            lambda a, b, s, i, w: (
                getattr(losses, name)(a, b, s, ids=i, weights=w, partition=partition)
                if name != "info_nce"
                else losses.info_nce(a, b, s, key_ids=i, weights=w, partition=partition)
            ),
            (0, 1, 2),
        )
    )
    other = put(np.arange(4, dtype=np.int32))
    for ids, weights in ((same, nothing + 1), (other, nothing)):
        value, grads = step(images, texts, jnp.float32(10), ids, weights)
        assert float(value) == 0
        for grad in grads:
            np.testing.assert_array_equal(grad, 0)


def test_A22_the_length_of_rows_changes_nothing():
    images, texts = SET_S[0].copy(), SET_S[1].copy()
    images[1] *= 7
    texts[3] *= 0.01
    assert float(raw_clip(images, texts, 10.0)) == pytest.approx(0.360630305903, rel=1e-6)


# --- facts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["none", "gather one", "ring 2"])
def test_F1_worked_example(bench, partition):
    partition, put = bench.partitioned(partition)
    cosines = np.array([[0.8, 0.2], [0.4, 0.6]], np.float32)
    eye = put(np.eye(2, dtype=np.float32))
    rows = jax.jit(jax.value_and_grad(lambda q, s: losses.info_nce(q, eye, s, partition=partition)))
    value, grad = rows(put(cosines), 2.0)
    assert float(value) == pytest.approx(0.38815, abs=5e-6)
    a_minus_i = [[-0.23148, 0.23148], [0.40131, -0.40131]]
    np.testing.assert_allclose(grad, a_minus_i, atol=5e-6)  # dQ = (A − I) P / (B tau), P = I
    assert float(rows(put(cosines.T), 2.0)[0]) == pytest.approx(0.37110, abs=5e-6)
    clip = jax.value_and_grad(
        lambda t: losses.clip_loss(put(cosines), eye, jnp.exp(t), partition=partition)
    )
    value, d_log_scale = jax.jit(clip)(jnp.float32(math.log(2)))
    assert float(value) == pytest.approx(0.37962, abs=5e-6)
    assert float(d_log_scale) == pytest.approx(-0.23358, abs=5e-6)
    for i, row_loss, row_term in ((0, 0.26328, -0.27777), (1, 0.51302, -0.16052)):
        only = put(np.where(np.arange(2) == i, 1, 1e-30).astype(np.float32))
        value, slope = jax.jit(
            jax.value_and_grad(
                lambda t, w=only: losses.info_nce(
                    put(cosines), eye, jnp.exp(t), weights=w, partition=partition
                )
            )
        )(jnp.float32(math.log(2)))
        assert float(value) == pytest.approx(row_loss, abs=5e-6)
        assert float(slope) == pytest.approx(row_term, abs=5e-6)


@pytest.mark.parametrize(
    "tau, random, identical", [(1.0, (5.545, 0.02), (4.56, 0.01)), (0.05, (8.7, 0.2), (1e-5, 9e-6))]
)
def test_F2_random_and_identical_pairs(bench, tau, random, identical):
    rng = np.random.default_rng(0)
    q, p = (jnp.asarray(bench.unit(rng, 256, 64), jnp.float32) for _ in range(2))
    for keys, (value, wobble) in ((p, random), (q, identical)):
        for loss in (losses.info_nce, losses.clip_loss):
            assert float(loss(q, keys, 1 / tau)) == pytest.approx(value, abs=wobble)


def test_F3_best_row_and_best_batch():
    keys = -jnp.ones((256, 1)).at[0].set(-1.0)
    weights = jnp.full(256, 1e-30).at[0].set(1.0)
    loss = losses.info_nce(jnp.ones((256, 1)), keys, 1.0, weights=weights)
    assert float(loss) == pytest.approx(3.570, abs=5e-4)
    assert math.exp(-float(loss)) == pytest.approx(0.02816, abs=5e-6)
    simplex = normalize(np.eye(256) - 1 / 256)
    loss = losses.info_nce(simplex, simplex, 1.0)
    assert float(loss) == pytest.approx(4.548, abs=5e-4)
    assert float(loss) == pytest.approx(math.log(1 + 255 * math.exp(-256 / 255)), rel=1e-6)


def test_F7_with_many_negatives_the_loss_is_alignment_and_uniformity(bench):
    """On the sphere in three dimensions E exp(x·y / tau) of uniform y is sinh(1/tau) · tau."""
    rng = np.random.default_rng(0)
    tau, many = 0.5, 400_000
    x = bench.unit(rng, 64, 3)
    y = bench.unit(rng, 64, 3) * 0.3 + x
    x, y = (jnp.asarray(normalize(v)) for v in (x, y))
    pool = jnp.asarray(bench.unit(rng, many, 3), jnp.float32)
    loss = losses.info_nce(
        x, y, 1 / tau, negatives=pool, in_batch=False, partition=LogitPartition(block_cols=4096)
    )
    limit = -float((x * y).sum(1).mean()) / tau + math.log(math.sinh(1 / tau) * tau)
    assert float(loss) - math.log(many) == pytest.approx(limit, abs=5e-3)


# --- edges ----------------------------------------------------------------------------------------

LOSS_ARGS = {
    "clip_loss": (), "info_nce": (), "nt_xent": (), "gte_loss": (), "sigmoid_loss": (-3.0,),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSS_ARGS)
def test_one_pair(name):
    x, y = jnp.array([[1.0, 0.0]]), jnp.array([[0.6, 0.8]])
    for partition in (None, LogitPartition(exchange="ring")):
        value = getattr(losses, name)(x, y, 10.0, *LOSS_ARGS[name], partition=partition)
        expected = math.log1p(math.exp(-3.0)) if name == "sigmoid_loss" else 0.0
        assert float(value) == pytest.approx(expected, rel=1e-6)


def test_decoupled_loss_of_one_pair_is_an_error():
    x = jnp.ones((1, 2))
    with pytest.raises(ValueError, match="batch of 1 pair"):
        losses.decoupled_loss(x, x, 1.0)


@pytest.mark.parametrize("name", LOSS_ARGS)
def test_one_dimension_and_zero_rows(bench, name):
    x = jnp.array([[1.0], [-1.0], [0.0], [1.0]])
    y = jnp.array([[1.0], [0.0], [0.0], [-1.0]])
    results = []
    for partition in ("none", "ring 4", "gather one"):
        partition, put = bench.partitioned(partition)
        step = jax.value_and_grad(getattr(losses, name), (0, 1, 2))
        value, grads = jax.jit(
            lambda a, b, s, step=step, p=partition: step(a, b, s, *LOSS_ARGS[name], partition=p)
        )(put(x), put(y), jnp.float32(100))
        assert all(np.isfinite(g).all() for g in grads)
        results.append((value, *grads))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("partition", ["none", "gather one"])
@pytest.mark.parametrize("name", ["clip_loss", "info_nce", "sigmoid_loss"])
def test_negatives_as_likely_as_the_positive_have_a_gradient(bench, name, partition):
    """Keys that collapsed: ``n_i = s_ii`` exactly, where the slope of softplus is ½, not 0."""
    x, y = jnp.eye(2), jnp.full((2, 2), 0.5)
    more = (-2.0,) if name == "sigmoid_loss" else ()  # every logit is 0
    partition, _ = bench.partitioned(partition)
    run = lambda a, b: getattr(losses, name)(a, b, 4.0, *more, partition=partition)  # noqa: E731
    grads = jax.jit(jax.grad(run, (0, 1)))(x, y)
    _, expected = getattr(reference, name)(x, y, 4.0, *more)
    for grad, truth in zip(grads, expected.values(), strict=False):
        np.testing.assert_allclose(grad, truth, atol=1e-6)
    assert np.abs(grads[1]).max() >= 0.5


def test_curvature_at_a_logit_of_zero(bench):
    """Second derivatives are exact where an entry's logit is 0: ½ · ¼ for each."""
    x = jnp.eye(2)
    for partition in ("none", "gather one"):
        partition, _ = bench.partitioned(partition)
        run = lambda b, p=partition: losses.sigmoid_loss(x, 0 * x, 4.0, b, partition=p)  # noqa: E731
        assert float(jax.jit(jax.grad(jax.grad(run)))(jnp.float32(0))) == pytest.approx(0.5)


def test_numpy_rows_are_taken_as_they_are(bench):
    batch = bench.Batch("info_nce, hard negatives")
    numpy = {n: np.asarray(v) for n, v in batch.args.items()}
    for partition in ("none", "gather one"):
        partition, _ = bench.partitioned(partition)
        one = batch.loss(**numpy, **batch.options, partition=partition)
        assert float(one) == float(batch.loss(**batch.args, **batch.options, partition=partition))


def test_ids_of_64_bits_equal_those_of_32(bench):
    batch = bench.Batch("clip")
    ids = batch.options["ids"]
    words = np.stack([ids >> 31, ids], 1).astype(np.uint32)  # -1 has all bits set
    value, grads = batch.got()
    batch.options["ids"] = words
    for partition in ("none", "ring 8"):
        again, others = batch.got(*bench.partitioned(partition))
        assert float(again) == pytest.approx(float(value), rel=1e-6)
        for a, b in zip(grads, others, strict=True):
            assert bench.relative(a, b) < 1e-5
    # Ids that differ in one word only are different.
    x = jnp.eye(4)
    apart = jnp.asarray([[0, 1], [1, 1], [0, 2], [2, 0]], jnp.uint32)
    assert float(losses.clip_loss(x, x, 5.0, ids=apart)) == float(losses.clip_loss(x, x, 5.0))


def test_unknown_ids_equal_nothing():
    x = jnp.eye(4)
    unknown = jnp.full(4, -1, jnp.int32)
    assert float(losses.clip_loss(x, x, 5.0, ids=unknown)) == float(losses.clip_loss(x, x, 5.0))
    same = jnp.array([3, 3, -1, -1], jnp.int32)
    assert float(losses.clip_loss(x, x, 5.0, ids=same)) < float(losses.clip_loss(x, x, 5.0))


def test_weights_are_proportions(bench):
    batch = bench.Batch("clip")
    one, _ = batch.got()
    batch.options["weights"] = batch.options["weights"] * np.float32(1000)
    assert float(batch.got()[0]) == pytest.approx(float(one), rel=1e-6)


@pytest.mark.parametrize("loss", ["hard", "queue"])
def test_absent_negatives_may_hold_anything(bench, loss):
    name = {"hard": "info_nce, hard negatives", "queue": "info_nce, queue"}[loss]
    batch = bench.Batch(name)
    absent = batch.options["negative_weights"] == 0
    gone = batch.args["negatives"].at[jnp.asarray(absent)].set(jnp.nan)
    value, grads = batch.got()
    for partition in ("none", "ring 8"):
        batch.args["negatives"] = gone
        again, others = batch.got(*bench.partitioned(partition))
        assert float(again) == pytest.approx(float(value), rel=1e-6)
        np.testing.assert_array_equal(np.asarray(others[3])[absent], 0)
        for a, b in zip(grads, others, strict=True):
            assert bench.relative(a, b) < 1e-5


def test_shared_negatives_are_negatives_of_all(bench):
    batch = bench.Batch("info_nce, hard negatives")
    batch.options = {}
    q, k, scale, n = (batch.args[x] for x in batch.names)
    shared = losses.info_nce(q, k, scale, negatives=n)
    pool = losses.info_nce(q, k, scale, negatives=n.reshape(-1, n.shape[-1]))
    own = losses.info_nce(q, k, scale, negatives=n, share_negatives=False)
    plain = losses.info_nce(q, k, scale)
    assert float(shared) == pytest.approx(float(pool), rel=1e-6)
    assert plain < own < shared


def test_float16_rows_are_raised_to_float32(bench):
    batch = bench.Batch("clip", dtype=jnp.float16)
    value, grads = batch.got()
    batch.check((value, grads), 2e-3)
    assert grads[0].dtype == jnp.float16


def test_custom_gradients_are_reverse_mode_once_and_dense_any(bench):
    batch = bench.Batch("clip", batch=6, dim=3)
    x, y, scale = batch.args.values()

    def curvature(partition):
        loss = lambda s: losses.clip_loss(x, y, s, partition=partition)  # noqa: E731
        return jax.grad(jax.grad(loss))(scale)

    step = 1e-2
    first = jax.grad(losses.clip_loss, 2)
    expected = (first(x, y, scale + step) - first(x, y, scale - step)) / (2 * step)
    np.testing.assert_allclose(curvature(LogitPartition(exchange="dense")), expected, rtol=2e-2)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda s: losses.clip_loss(x, y, s, partition=LogitPartition()), (scale,), (scale,))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"keys": np.ones((3, 2), np.float32)}, ValueError, r"\[4, 2\] and \[3, 2\]"),
        ({"keys": jnp.ones((4, 2), jnp.bfloat16)}, TypeError, "float32 and bfloat16"),
        ({"key_ids": np.arange(4)}, TypeError, "key_ids is int64.*uint32"),
        ({"key_ids": np.arange(4, dtype=np.uint32)}, ValueError, r"uint32 \[4\], expected \[4, 2"),
        ({"key_ids": np.arange(3, dtype=np.int32)}, ValueError, r"int32 \[3\], expected \[4\]"),
        ({"weights": np.ones(5, np.float32)}, ValueError, r"weights are \[5\], expected \[4\]"),
        ({"weights": [1.0]}, ValueError, r"weights are \[1\], expected \[4\]"),
        ({"scale": jnp.ones(1)}, ValueError, r"scale is \[1\], expected a scalar"),
        ({"scale": jnp.ones(4)}, ValueError, r"scale is \[4\], expected a scalar"),
        (
            {"queries": jnp.ones((4, 2), jnp.int32), "keys": jnp.ones((4, 2), jnp.int32)},
            TypeError,
            "floating dtype, got int32",
        ),
        ({"negatives": np.ones((4, 0, 2), np.float32)}, ValueError, r"\[4, 0, 2\]: none at all"),
        ({"negatives": np.ones((0, 2), np.float32)}, ValueError, r"\[0, 2\]: none at all"),
        ({"negatives": jnp.ones((), jnp.float32)}, ValueError, r"negatives are \[\], expected"),
        ({"negatives": np.ones((3, 2), np.int32)}, TypeError, "negatives need a floating dtype"),
        ({"partition": "ring"}, TypeError, "partition = 'ring'; it is a LogitPartition"),
        ({"in_batch": False}, ValueError, "no negatives at all"),
        ({"share_negatives": False}, ValueError, "negatives = None"),
        ({"negative_weights": np.ones(4, np.float32)}, ValueError, "negatives = None"),
        ({"negatives": np.ones((5, 2, 2), np.float32)}, ValueError, r"\[5, 2, 2\], .* \[4, k, 2\]"),
        ({"negatives": np.ones((5, 3), np.float32)}, ValueError, r"\[5, 3\], expected .* \[m, 2\]"),
        (
            {"negatives": np.ones((5, 2), np.float32), "share_negatives": False},
            ValueError,
            "belongs to no query",
        ),
        (
            {"negatives": np.ones((1, 2), np.float32), "negative_ids": np.zeros(1, np.int32)},
            TypeError,
            "give both",
        ),
        (
            {"negatives": np.ones((5, 2), np.float32), "negative_weights": np.ones(4, np.float32)},
            ValueError,
            r"negative_weights are \[4\], expected \[5\]",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change, error, message):
    args = {"queries": np.ones((4, 2), np.float32), "keys": np.ones((4, 2), np.float32)} | change
    args = {
        n: jnp.asarray(v) if getattr(v, "dtype", None) == np.float32 else v for n, v in args.items()
    }
    with pytest.raises(error, match=message):
        losses.info_nce(**{"scale": 1.0} | args)


@pytest.mark.usefixtures("unchecked")
def test_sigmoid_multi_positive_needs_ids():
    x = jnp.ones((2, 2))
    with pytest.raises(ValueError, match="ids are not given"):
        losses.sigmoid_loss(x, x, 1.0, 0.0, multi_positive=True)
    with pytest.raises(ValueError, match=r"bias is \[2\], expected a scalar"):
        losses.sigmoid_loss(x, x, 1.0, jnp.ones(2))


def test_int64_ids_are_refused_in_64_bit_mode_too():
    x = jnp.ones((4, 2), jnp.float32)
    with jax.enable_x64(True), pytest.raises(TypeError, match="int64"):
        losses.clip_loss(x, x, jnp.float32(1), ids=jnp.arange(4))
