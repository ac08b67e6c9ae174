"""Judged pairs: Sentence-BERT's classifier, a cross-encoder, against plain float64 sums."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive import losses
from contrastive.objectives import LossConfig
from contrastive.towers import BagConfig, TwoTower

from .conftest import SIZES, assert_close, batch_of, configure, slope

STILL = BagConfig(width=8, hidden=16)
CLASSES = 3


@pytest.fixture
def judging(monkeypatch):
    """Models of the other tests with a layer that judges."""
    from . import conftest

    def use(judgements, joined):
        def build(pairs, config, bias, rngs):
            more = {"judgements": judgements, "joined": joined}
            return TwoTower(config, pairs=pairs, bias_init=bias, rngs=rngs, **SIZES, **more)

        monkeypatch.setattr(conftest, "build", build)
        conftest.made.cache_clear()

    yield use
    conftest.made.cache_clear()


def labelled(**options):
    batch = batch_of("texts", negatives=0, **options)
    batch["label"] = np.random.default_rng(3).integers(0, CLASSES, 16, dtype=np.int32)
    return batch


def joined(negatives=3):
    batch = batch_of("texts", negatives=negatives)
    batch["joined"] = batch.pop("query")
    del batch["positive"]
    if negatives:
        batch["joined_negatives"] = batch.pop("negatives")
    return batch


def model_of():
    from . import conftest

    return nnx.merge(*conftest.made("texts", configure(text=STILL)))


def plain_cross_entropy(logits, labels):
    logits = np.asarray(logits, np.float64)
    total = np.log(np.exp(logits).sum(axis=1))
    return (total - logits[np.arange(len(labels)), labels]).mean()


def test_the_classifier_is_a_layer_over_both_rows_and_their_difference(judging):
    judging(CLASSES, False)
    batch = labelled()
    value, metrics, gradient = slope(
        "texts", configure(text=STILL), LossConfig(name="classifier"), batch
    )
    model = model_of()
    u, v = (np.asarray(model.encode_text(jnp.asarray(batch[n]))) for n in ("query", "positive"))
    features = np.concatenate([u, v, np.abs(u - v)], axis=1).astype(np.float64)
    kernel, bias = (np.asarray(x[...]) for x in (model.judgement.kernel, model.judgement.bias))
    logits = features @ kernel + bias
    assert value == pytest.approx(plain_cross_entropy(logits, batch["label"]), rel=1e-5)
    share = (logits.argmax(1) == batch["label"]).mean()
    assert float(metrics["accuracy/label"]) == pytest.approx(share)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    want = features.T @ (p - np.eye(CLASSES)[batch["label"]]) / 16
    np.testing.assert_allclose(gradient["judgement"]["kernel"][...], want, atol=1e-5)


def test_a_cross_encoder_scores_pairs_and_their_negatives(judging):
    judging(1, True)
    batch = joined()
    batch["negative_id"][2, 0] = batch["id"][2]  # of its own content: no negative
    value, metrics, gradient = slope(
        "texts", configure(text=STILL), LossConfig(name="relevance"), batch
    )
    model = model_of()

    def scores(x):
        rows = model.encode_text(jnp.asarray(x.reshape(-1, x.shape[-1])))
        return np.asarray(model.judge(rows), np.float64).reshape(x.shape[:-1])

    right, wrong = scores(batch["joined"]), scores(batch["joined_negatives"])
    there = batch["negative_weight"] * (batch["negative_id"] != batch["id"][:, None])
    against = (there * np.log1p(np.exp(wrong))).sum(1) / np.maximum(there.sum(1), 1)
    assert value == pytest.approx((np.log1p(np.exp(-right)) + against).mean(), rel=1e-5)
    first = right > np.where(there > 0, wrong, -np.inf).max(axis=1)
    assert float(metrics["accuracy/relevance"]) == pytest.approx(first.mean())
    assert np.abs(gradient["judgement"]["kernel"][...]).max() > 1e-3


@pytest.mark.parametrize("name", ["classifier", "relevance"])
def test_chunks_devices_and_bad_rows_change_nothing(name, judging):
    judging(CLASSES if name == "classifier" else 1, name == "relevance")
    batch = labelled() if name == "classifier" else joined()
    loss, config = LossConfig(name=name), configure(text=STILL)
    whole = slope("texts", config, loss, batch)
    assert_close(slope("texts", config, loss, batch, microbatches=2, devices=4), whole)
    batch["weight"] = np.ones(16, np.float32)
    batch["weight"][5] = 0.0
    without = slope("texts", config, loss, batch)[0]
    for field in ("query", "joined", "joined_negatives"):
        if field in batch:
            batch[field][5] = 9
    if name == "classifier":
        batch["label"][5] = 99  # what a row of a bad sample holds may be anything
    assert slope("texts", config, loss, batch)[0] == pytest.approx(without, rel=1e-6)


def test_extreme_scores_keep_their_losses():
    """Neither overflows, and what is nearly right keeps its small loss."""
    scores = jnp.array([40.0, -200.0])
    loss = losses.relevance_loss(scores[:1], jnp.array([[-40.0]]))
    assert float(loss) == pytest.approx(2 * np.exp(-40.0), rel=1e-5)
    assert (
        float(
            losses.relevance_loss(
                scores[1:], jnp.array([[3.0]]), negative_weights=jnp.zeros((1, 1))
            )
        )
        == 200.0
    )
    logits = jnp.array([[0.0, 60.0]])
    assert float(losses.label_loss(logits, jnp.array([1]))) == pytest.approx(
        np.exp(-60.0), rel=1e-5
    )
    assert np.isnan(float(losses.label_loss(logits, jnp.array([2]))))
