"""Pairs of views: a head in training only, NT-Xent, small crops beside the views."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive import losses
from contrastive.geometry import normalize
from contrastive.objectives import LossConfig

from .conftest import HEAD, assert_close, batch_of, configure, made, slope

SIMCLR = LossConfig(name="nt_xent", scale_init=2.0)


def rows_of(config, batch, names=("view_a", "view_b")):
    model = nnx.merge(*made("views", config))
    return [normalize(model.head(model.encode_image(jnp.asarray(batch[n])))) for n in names]


def test_simclr_is_nt_xent_of_the_heads_rows():
    config, batch = configure(head=HEAD), batch_of("views")
    value, metrics, gradient = slope("views", config, SIMCLR, batch)
    rows = rows_of(config, batch)
    assert rows[0].shape == (16, 12)
    scale = jnp.exp(nnx.merge(*made("views", config)).log_scale[...])
    want = losses.nt_xent(*rows, scale, ids=jnp.asarray(batch["id"]))
    assert value == pytest.approx(float(want), rel=1e-5)
    assert {"accuracy/a_to_b", "accuracy/b_to_a"} <= set(metrics)
    assert "text" not in gradient
    assert np.abs(gradient["head"]["norms"][0]["scale"][...]).max() > 1e-5


def test_the_head_measures_the_global_batch_in_any_cut():
    """Batch normalisation in the head: eight devices and four chunks give one device's numbers."""
    config, batch = configure(head=HEAD), batch_of("views", crops=2)
    want = slope("views", config, SIMCLR, batch)
    assert_close(slope("views", config, SIMCLR, batch, microbatches=2, devices=8), want)


@pytest.mark.slow
def test_batch_normalisation_leaves_out_rows_of_bad_samples():
    config, batch = configure(head=HEAD), batch_of("views", words=True)
    batch["weight"] = np.ones(16, np.float32)
    batch["weight"][4] = 0
    before = slope("views", config, SIMCLR, batch)[0]
    other = {**batch, "view_a": batch["view_a"].copy()}
    other["view_a"][4] = 255
    assert slope("views", config, SIMCLR, other)[0] == pytest.approx(before, rel=1e-6)
    batch["weight"][4] = 1
    assert slope("views", config, SIMCLR, batch)[0] != pytest.approx(before, rel=1e-3)


def test_every_small_crop_finds_both_views():
    config, batch = configure(), batch_of("views", crops=2)
    value, _, _ = slope("views", config, SIMCLR, batch)
    model = nnx.merge(*made("views", config))
    a, b = (normalize(model.encode_image(jnp.asarray(batch[n]))) for n in ("view_a", "view_b"))
    ids, scale = jnp.asarray(batch["id"]), jnp.exp(model.log_scale[...])
    total = losses.nt_xent(a, b, scale, ids=ids)
    for i in range(2):
        crop = normalize(model.encode_image(jnp.asarray(batch["crops"][:, i])))
        ways = [losses.info_nce(crop, view, scale, key_ids=ids) for view in (a, b)]
        total += sum(ways) / 2
    assert value == pytest.approx(float(total) / 3, rel=1e-5)
