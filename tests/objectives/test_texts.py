"""Pairs of texts: shared and own towers, negatives of the batch, two dropouts of one text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive import losses
from contrastive.errors import ConfigError
from contrastive.geometry import normalize
from contrastive.objectives import LossConfig
from contrastive.towers import BagConfig, HeadConfig, MissingTower, TextTransformerConfig

from .conftest import assert_close, batch_of, configure, made, slope

STILL = BagConfig(width=8, hidden=16)
DROPPED = BagConfig(width=8, hidden=16, dropout=0.3)
LOSSES = ("info_nce", "clip", "siglip", "nt_xent", "gte", "decoupled", "multi_positive", "triplet")


def rows_of(pairs, config, batch):
    """What the towers make of the texts, without dropout."""
    model, batch = nnx.merge(*made(pairs, config)), jax.tree.map(jnp.asarray, batch)
    encode = {
        "query": lambda x: model.encode_text(x, role="query"),
        "positive": lambda x: model.encode_text(x, role="passage"),
    }
    found = {name: normalize(call(batch[name])) for name, call in encode.items()}
    if "negatives" in batch:
        flat = batch["negatives"].reshape(-1, batch["negatives"].shape[-1])
        found["negatives"] = normalize(encode["positive"](flat)).reshape(
            *batch["negatives"].shape[:2], -1
        )
    return found, jnp.exp(model.log_scale[...])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("share_negatives", [True, False])
def test_dpr_is_info_nce_with_the_negatives_of_the_batch(shared, share_negatives):
    config, batch = configure(text=STILL, shared=shared), batch_of("texts")
    loss = LossConfig(name="info_nce", share_negatives=share_negatives)
    value, metrics, gradient = slope("texts", config, loss, batch)
    rows, scale = rows_of("texts", config, batch)
    want = losses.info_nce(
        rows["query"],
        rows["positive"],
        scale,
        negatives=rows["negatives"],
        share_negatives=share_negatives,
        key_ids=batch["id"],
        negative_ids=batch["negative_id"],
        negative_weights=batch["negative_weight"],
    )
    assert value == pytest.approx(float(want), rel=1e-5)
    assert {"accuracy/query_to_positive", "positive_cosine/mean"} <= set(metrics)
    assert ("passage" in gradient) is not shared
    without = slope("texts", config, LossConfig(name="info_nce"), batch_of("texts", negatives=0))
    assert value > without[0]


def test_masked_and_absent_negatives_are_not_there():
    """A negative with the id of the query's own positive, or with weight 0, may be anything."""
    config, batch = configure(text=STILL), batch_of("texts")
    batch["negative_id"][3, 1] = batch["id"][3]
    loss = LossConfig(name="info_nce", share_negatives=False)
    before = slope("texts", config, loss, batch)[0]
    other = {**batch, "negatives": batch["negatives"].copy()}
    other["negatives"][3, 1] = 7
    absent = np.argwhere(batch["negative_weight"] == 0)[0]
    other["negatives"][tuple(absent)] = 9
    assert slope("texts", config, loss, other)[0] == pytest.approx(before, rel=1e-6)
    unmasked = LossConfig(name="info_nce", share_negatives=False, mask_duplicates=False)
    assert slope("texts", config, unmasked, batch)[0] != pytest.approx(before, rel=1e-4)


def test_clip_with_negatives_is_both_directions():
    config, batch = configure(text=STILL), batch_of("texts")
    rows, scale = rows_of("texts", config, batch)
    forth = losses.info_nce(
        rows["query"],
        rows["positive"],
        scale,
        negatives=rows["negatives"],
        key_ids=batch["id"],
        negative_ids=batch["negative_id"],
        negative_weights=batch["negative_weight"],
    )
    back = losses.info_nce(rows["positive"], rows["query"], scale, key_ids=batch["id"])
    value, _, _ = slope("texts", config, LossConfig(name="clip"), batch)
    assert value == pytest.approx(float(forth + back) / 2, rel=1e-5)


def test_triplets_take_the_negatives_that_are_there():
    config, batch = configure(text=STILL), batch_of("texts")
    batch["negative_id"][:] = -1
    batch["negative_weight"][2] = 0.0
    value, metrics, _ = slope("texts", config, LossConfig(name="triplet", margin=0.5), batch)
    rows, _ = rows_of("texts", config, batch)
    q, p, n = (np.asarray(rows[name], np.float64) for name in ("query", "positive", "negatives"))
    near = np.linalg.norm(q - p, axis=1)
    far = np.linalg.norm(q[:, None] - n, axis=2)
    hinge = np.maximum(near[:, None] - far + 0.5, 0)
    there = batch["negative_weight"]
    means = (hinge * there).sum(1)[there.any(1)] / there.sum(1)[there.any(1)]
    assert value == pytest.approx(means.mean(), rel=1e-5)
    assert "scale" not in metrics
    batch["negative_id"][:, 0] = batch["id"]  # of the pair's own content
    assert slope("texts", config, LossConfig(name="triplet"), batch)[0] > 0


def test_one_text_under_two_dropouts_is_two_views():
    batch = batch_of("texts", negatives=0)
    batch["positive"] = batch["query"]
    batch["id"] = np.arange(16, dtype=np.int32)
    loss = LossConfig(name="info_nce", scale_init=20.0)
    text = TextTransformerConfig(width=16, heads=2, depth=1, dropout=0.2)
    dropped = slope("texts", configure(text=text), loss, batch)[1]
    assert 0.2 < float(dropped["positive_cosine/mean"]) < 0.999
    still = slope("texts", configure(text=STILL), loss, batch)[1]
    assert float(still["positive_cosine/mean"]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_takes_pairs_of_texts(name):
    """With its own numbers, and a gradient."""
    mining = "batch_hard" if name == "triplet" else None
    loss = LossConfig(name=name, mining=mining)
    config, batch = configure(text=STILL), batch_of("texts", negatives=0)
    value, metrics, gradient = slope("texts", config, loss, batch)
    assert any(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(gradient))
    found, scale = rows_of("texts", config, batch)
    rows = found["query"], found["positive"]
    ids = {"ids": jnp.asarray(batch["id"])}
    want = {
        "info_nce": lambda: losses.info_nce(*rows, scale, key_ids=batch["id"]),
        "clip": lambda: losses.clip_loss(*rows, scale, **ids),
        "siglip": lambda: losses.sigmoid_loss(*rows, scale, -3.0, **ids),
        "nt_xent": lambda: losses.nt_xent(*rows, scale, **ids),
        "gte": lambda: losses.gte_loss(*rows, scale, **ids),
        "decoupled": lambda: losses.decoupled_loss(*rows, scale, **ids),
        "multi_positive": lambda: losses.multi_positive_loss(*rows, scale, **ids),
        "triplet": lambda: losses.triplet_loss(*rows, mining="batch_hard", **ids),
    }
    assert value == pytest.approx(float(want[name]()), rel=1e-5)
    if name != "triplet":
        assert 0 <= float(metrics["accuracy/query_to_positive"]) <= 1


@pytest.mark.slow
def test_gradient_caching_and_eight_devices_change_no_gradient():
    loss, config, batch = LossConfig(name="info_nce"), configure(text=DROPPED), batch_of("texts")
    want = slope("texts", config, loss, batch)
    assert_close(slope("texts", config, loss, batch, microbatches=4), want)
    assert_close(slope("texts", config, loss, batch, microbatches=2, devices=8), want)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_the_same_for_every_loss_and_with_parameters_cut(name):
    mining = "batch_hard" if name == "triplet" else None
    loss, config = LossConfig(name=name, mining=mining), configure(text=DROPPED)
    batch = batch_of("texts", negatives=3 if name in ("info_nce", "clip") else 0)
    want = slope("texts", config, loss, batch)
    assert_close(slope("texts", config, loss, batch, microbatches=2), want)
    assert_close(slope("texts", config, loss, batch, devices=8, fsdp=4), want)


def test_a_head_is_used_in_training_and_not_by_the_towers_afterwards():
    head = HeadConfig(layers=1, output=5)
    batch = batch_of("texts", negatives=0)
    config = configure(text=STILL, head=head)
    loss = LossConfig(name="info_nce")
    value, _, gradient = slope("texts", config, loss, batch)
    assert np.abs(gradient["head"]["stages"][0]["kernel"][...]).max() > 1e-4
    model = nnx.merge(*made("texts", config))
    raw = [model.encode_text(jnp.asarray(batch[name])) for name in ("query", "positive")]
    assert raw[0].shape == (16, 8)
    rows = [normalize(model.head(x)) for x in raw]
    want = losses.info_nce(*rows, jnp.exp(model.log_scale[...]), key_ids=batch["id"])
    assert value == pytest.approx(float(want), rel=1e-5)


def test_rows_of_bad_samples_count_nowhere():
    config, batch = configure(text=STILL), batch_of("texts", words=True)
    batch["negative_id"] = np.stack([np.zeros((16, 3)), batch["negative_id"]], 2).astype(np.uint32)
    batch["weight"] = np.ones(16, np.float32)
    batch["weight"][[2, 5]] = 0
    loss = LossConfig(name="info_nce")
    before = slope("texts", config, loss, batch)[0]
    other = {name: x.copy() for name, x in batch.items()}
    for name in ("query", "positive", "negatives"):
        other[name][[2, 5]] = 1
    assert slope("texts", config, loss, other)[0] == pytest.approx(before, rel=1e-6)


def test_a_missing_tower_is_one_sentence():
    model = nnx.merge(*made("texts", configure(text=STILL)))
    with pytest.raises(MissingTower, match=r"no image tower; it encodes texts"):
        model.encode_image(jnp.asarray(batch_of("views")["view_a"]))
    model = nnx.merge(*made("views", configure()))
    with pytest.raises(MissingTower, match=r"no text tower; it encodes pictures"):
        model.encode_text(jnp.asarray(batch_of("texts")["query"]))


@pytest.mark.parametrize(
    "options, negatives, words",
    [
        ({"name": "gte"}, 2, "takes no negatives"),
        ({"name": "triplet"}, 0, "needs negatives"),
        ({"name": "triplet", "mining": "batch_all"}, 2, "Choose one"),
        ({"name": "info_nce", "share_negatives": False}, 0, "share_negatives = False has no"),
    ],
)
def test_losses_and_negatives_that_do_not_go_together(options, negatives, words):
    with pytest.raises(ConfigError, match=words):
        LossConfig(**options).check_negatives(negatives)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"name": "clip", "margin": 0.5}, "margin is used by 'triplet' only"),
        ({"name": "triplet", "scale_init": 20.0}, "scale_init is not used by 'triplet'"),
        ({"name": "multi_positive", "mask_duplicates": False}, "mask_duplicates = False"),
    ],
)
def test_settings_of_a_loss_that_cannot_be(options, words):
    with pytest.raises(ConfigError, match=words):
        LossConfig(**options)


def plain_info_nce(rows, batch, scale):
    """InfoNCE with the batch's negatives, in float64."""
    q, p, n = (np.asarray(rows[name], np.float64) for name in ("query", "positive", "negatives"))
    same = batch["id"][:, None] == batch["id"][None]
    inside = np.where(same & ~np.eye(16, dtype=bool), -np.inf, scale * q @ p.T)
    outside = scale * np.einsum("bd,ckd->bck", q, n)
    there = (batch["negative_weight"] > 0)[None] & (
        batch["negative_id"][None] != batch["id"][:, None, None]
    )
    outside = np.where(there, outside, -np.inf).reshape(16, -1)
    every = np.concatenate([inside, outside], axis=1)
    return (np.log(np.exp(every).sum(axis=1)) - np.diag(inside)).mean()


def test_matryoshka_is_the_sum_over_prefixes_of_unit_length():
    config, batch = configure(text=STILL), batch_of("texts")
    loss = LossConfig(name="info_nce", matryoshka=(2, 5), matryoshka_weights=(0.5, 2.0))
    value, metrics, gradient = slope("texts", config, loss, batch)
    rows, scale = rows_of("texts", config, batch)

    def total(rows):
        parts = []
        for dim, weight in ((2, 0.5), (5, 2.0), (8, 1.0)):
            short = {k: np.asarray(v, np.float64)[..., :dim] for k, v in rows.items()}
            unit = {k: v / np.linalg.norm(v, axis=-1, keepdims=True) for k, v in short.items()}
            parts.append(weight * plain_info_nce(unit, batch, float(scale)))
        return parts

    parts = total(rows)
    assert value == pytest.approx(sum(parts), rel=1e-5)
    got = [float(metrics[f"loss/{name}"]) for name in ("2", "5", "whole")]
    assert got == pytest.approx([parts[0] / 0.5, parts[1] / 2.0, parts[2]], rel=1e-5)
    # Along the gradient of one parameter the plain sum changes as the gradient says.
    model = nnx.merge(*made("texts", config))
    slope_of = np.asarray(gradient["text"]["mlp"]["fall"]["kernel"][...])
    kernel, step = model.text.mlp.fall.kernel, 1e-2 / np.linalg.norm(slope_of)
    start, sides = np.asarray(kernel[...]), []
    for sign in (1, -1):
        kernel[...] = jnp.asarray(start + sign * step * slope_of)
        encode = model.encode_text
        moved = {
            name: normalize(encode(jnp.asarray(batch[name]))) for name in ("query", "positive")
        }
        flat = normalize(encode(jnp.asarray(batch["negatives"].reshape(-1, 6))))
        moved["negatives"] = flat.reshape(16, 3, -1)
        sides.append(sum(total(moved)))
    wanted = 2 * step * np.linalg.norm(slope_of) ** 2
    assert sides[0] - sides[1] == pytest.approx(wanted, rel=1e-2)


def test_prefixes_are_cut_over_devices_and_chunks():
    config, batch = configure(text=STILL), batch_of("texts")
    loss = LossConfig(name="info_nce", matryoshka=(4,))
    whole = slope("texts", config, loss, batch)
    assert_close(slope("texts", config, loss, batch, microbatches=2, devices=4), whole)
