"""The momentum encoder and its queue: what is in them, whose gradients reach them, and that they
are a part of the state like any other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive import losses
from contrastive.errors import ConfigError
from contrastive.geometry import normalize
from contrastive.objectives import LossConfig, Momentum, MomentumConfig, make_objective
from contrastive.objectives.momentum import words
from contrastive.towers import HeadConfig, PredictorConfig

from .conftest import HEAD, Run, batch_of, configure

PLAIN = configure(head=HeadConfig(layers=1, output=12))
V2 = MomentumConfig(decay=0.75, queue=48)
V3 = MomentumConfig(decay=0.9, schedule="cosine", symmetric=True)


def batches(count, **options):
    return [batch_of("views", seed=seed, **options) for seed in range(count)]


def local(tree):
    """The same arrays on one device, of no mesh."""
    return jax.tree.map(jnp.asarray, jax.device_get(tree))


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def run():
    """Five steps, with what was there after each."""
    run, seen = Run(PLAIN, V2), []
    for batch in batches(5):
        before = jax.device_get(run.state)
        metrics = run.step(batch)
        seen.append((batch, before, jax.device_get(run.state), metrics))
    return run, seen


def test_the_momentum_encoder_moves_first_and_then_makes_the_keys(run):
    run, seen = run
    batch, before, after, _ = seen[2]
    for old, parameter, new in zip(
        leaves(before.memory.parameters),
        leaves(before.parameters),
        leaves(after.memory.parameters),
        strict=True,
    ):
        np.testing.assert_allclose(new, 0.75 * old + 0.25 * parameter, rtol=1e-5, atol=1e-7)
    model = nnx.merge(run.graphdef, local(after.memory.parameters))
    keys = normalize(model.head(model.encode_image(jnp.asarray(batch["view_b"]))))
    np.testing.assert_allclose(after.memory.queue.rows[:, 2], keys, atol=1e-5)


def test_the_queue_fills_and_then_forgets_the_oldest(run):
    _, seen = run
    filled = [after.memory.queue.filled.sum() for _, _, after, _ in seen]
    assert filled == [16, 32, 48, 48, 48]
    third, last = seen[2][2].memory.queue, seen[4][2].memory.queue
    np.testing.assert_array_equal(last.rows[:, 2], third.rows[:, 2])
    assert (last.rows[:, :2] != third.rows[:, :2]).any(axis=(0, 2)).all()
    np.testing.assert_array_equal(last.ids[:, 2, 1], seen[2][0]["id"])


def test_the_loss_is_info_nce_against_the_queue(run):
    run, seen = run
    batch, before, after, metrics = seen[1]
    model = nnx.merge(run.graphdef, local(before.parameters))
    query = normalize(model.head(model.encode_image(jnp.asarray(batch["view_a"]))))
    queue = before.memory.queue
    want = losses.info_nce(
        query,
        jnp.asarray(after.memory.queue.rows[:, 1]),
        jnp.exp(model.log_scale[...]),
        negatives=jnp.asarray(queue.rows.reshape(48, 12)),
        negative_weights=jnp.asarray(queue.filled.reshape(48)),
        negative_ids=jnp.asarray(queue.ids.reshape(48, 2)),
        key_ids=words(jnp.asarray(batch["id"])),
        in_batch=False,
    )
    assert metrics["loss"] == pytest.approx(float(want), rel=1e-5)
    first = seen[0][3]  # nothing in the queue yet
    assert first["loss"] == 0
    assert all(np.isfinite(list(first.values())))


def test_no_gradient_flows_into_keys(run):
    run, seen = run
    batch = local(seen[3][0])
    state = local(seen[3][1])
    objective = make_objective(LossConfig(name="info_nce"), pairs="views", momentum=V2)

    def value(parameters, kept):
        memory = run.momentum.follow(
            type(state.memory)(kept, state.memory.queue), parameters, state.step
        )
        made = run.momentum.keys(run.graphdef, memory, batch, jax.random.key(0))
        return objective(nnx.merge(run.graphdef, parameters), made, jax.random.key(0))[0]

    slopes = jax.jit(jax.grad(value, (0, 1)))(state.parameters, state.memory.parameters)
    assert max(np.abs(x).max() for x in leaves(slopes[0])) > 1e-3
    assert all((x == 0).all() for x in leaves(slopes[1]))
    fixed = run.momentum.keys(
        run.graphdef,
        run.momentum.follow(state.memory, state.parameters, state.step),
        batch,
        jax.random.key(0),
    )
    alone = jax.grad(lambda p: objective(nnx.merge(run.graphdef, p), fixed, jax.random.key(0))[0])(
        state.parameters
    )
    for a, b in zip(leaves(slopes[0]), leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_eight_devices_give_the_losses_of_one_and_hold_an_eighth_of_the_queue(run):
    _, seen = run
    cut = Run(PLAIN, V2, devices=8, fsdp=4, microbatches=2)
    found = [cut.step(batch)["loss"] for batch in batches(4)]
    np.testing.assert_allclose(found, [metrics["loss"] for *_, metrics in seen[:4]], rtol=1e-4)
    queue = cut.state.memory.queue
    assert queue.rows.addressable_shards[0].data.shape == (2, 3, 12)
    assert queue.filled.addressable_shards[0].data.shape == (2, 3)
    for name in ("parameters", "memory"):
        tree = cut.state.parameters if name == "parameters" else cut.state.memory.parameters
        kernel = tree["image"]["stages"][1]["kernel"][...]
        assert kernel.addressable_shards[0].data.shape == (3, 3, 4, 2), name
    want = seen[3][2].memory.queue
    np.testing.assert_allclose(queue.rows, want.rows, atol=1e-4)


def test_v3_is_symmetric_and_predicts():
    config = configure(head=HEAD, predictor=PredictorConfig(layers=2, hidden=16, norm="batch"))
    run = Run(config, V3)
    assert run.state.memory.queue is None
    batch = batches(1)[0]
    parameters = local(run.state.parameters)
    value = run.step(batch)["loss"]
    model = nnx.merge(run.graphdef, parameters)
    key_model = nnx.merge(run.graphdef, local(run.state.memory.parameters))
    a, b = (jnp.asarray(batch[name]) for name in ("view_a", "view_b"))
    queries = [normalize(model.predictor(model.head(model.encode_image(x)))) for x in (a, b)]
    keys = [normalize(key_model.head(key_model.encode_image(x))) for x in (a, b)]
    scale, ids = jnp.exp(model.log_scale[...]), words(jnp.asarray(batch["id"]))
    ways = [
        losses.info_nce(q, k, scale, key_ids=ids) for q, k in zip(queries, keys[::-1], strict=True)
    ]
    assert value == pytest.approx(float(sum(ways)) / 2, rel=1e-5)


def test_the_schedule_ends_at_one():
    momentum = Momentum(V3, "views", 8, 16, 10)
    steps = [float(momentum.decay(jnp.int32(step))) for step in (0, 5, 10)]
    np.testing.assert_allclose(steps, [0.9, 0.95, 1.0], rtol=1e-6)
    constant = Momentum(V2, "views", 8, 16, 10)
    assert float(constant.decay(jnp.int32(7))) == 0.75


def test_keys_of_bad_samples_are_absent(run):
    run, _ = run
    batch = batch_of("views", words=True)
    batch["weight"] = np.ones(16, np.float32)
    batch["weight"][3] = 0
    memory = local(run.state.memory)
    made = run.momentum.keys(run.graphdef, memory, local(batch), jax.random.key(0))
    made["momentum/second"] = made["momentum/second"].at[3].set(jnp.nan)
    queue = run.momentum.store(memory, made, jnp.int32(4)).queue
    assert np.isfinite(queue.rows).all()
    assert queue.filled[:, 1].tolist() == batch["weight"].tolist()


def test_ids_of_both_forms_are_words():
    found = words(jnp.array([-1, 0, 7], jnp.int32))
    full = 0xFFFFFFFF
    np.testing.assert_array_equal(found, np.array([[full, full], [0, 0], [0, 7]], np.uint32))
    np.testing.assert_array_equal(words(found), found)


@pytest.mark.parametrize(
    "options, words_",
    [
        ({"queue": 64}, "config.momentum.decay is None"),
        ({"decay": 1.0}, "below 1"),
        ({"decay": 0.9, "queue": 16, "symmetric": True}, "queue = 16 has to be 0"),
    ],
)
def test_settings_that_cannot_be(options, words_):
    with pytest.raises(ConfigError, match=words_):
        MomentumConfig(**options)


@pytest.mark.parametrize(
    "changed, words_",
    [
        ({"loss": "clip"}, "'info_nce', not 'clip'"),
        ({"batch_size": 32}, "multiple of config.batch_size = 32, such as 32"),
        ({"negatives": 1}, "have no effect with config.momentum"),
        ({"accumulate": 2}, "accumulate = 2 does not go"),
    ],
)
def test_recipes_that_cannot_be(changed, words_):
    fine = {"loss": "info_nce", "batch_size": 16, "negatives": 0, "accumulate": 1}
    V2.check(**fine)
    with pytest.raises(ConfigError, match=words_):
        V2.check(**(fine | changed))
