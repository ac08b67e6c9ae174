"""What training does with imported towers: the library's own loss, and rates of their layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive.pretrained.exporting import parameters
from contrastive.pretrained.importing import import_weights
from contrastive.training.optimizer import OptimizerConfig, make_optimizer
from tests.commands.test_weights import imported, recipe, run  # noqa: F401  imported is a fixture
from tests.commands.test_weights import parameters as parameters_of
from tests.parity.test_weights import own_loss, pixels_of
from tests.pretrained.test_families import FIXTURES, reference_of

# Factors of towers of two blocks (BERT: three) with a decay of one half, by the start of a name.
CLIP = {
    **dict.fromkeys(("image/class_token", "image/patches", "image/positions"), 1 / 8),
    **dict.fromkeys(("image/norm_before", "text/tokens", "text/positions"), 1 / 8),
    **dict.fromkeys(("image/transformer/blocks", "text/transformer/blocks"), (1 / 4, 1 / 2)),
    **dict.fromkeys(("image/norm/", "image/projection", "text/norm/", "text/projection"), 1),
    "log_scale": 1,
}
SIGLIP = {k: v for k, v in CLIP.items() if k not in ("image/class_token", "image/norm_before")}
SIGLIP = {k: v for k, v in SIGLIP.items() if k != "image/projection"} | {"image/head": 1, "bias": 1}
BERT = {
    **dict.fromkeys(("text/tokens", "text/positions", "text/token_types", "text/norm_b"), 1 / 16),
    "text/blocks": (1 / 8, 1 / 4, 1 / 2),
    "text/after_pooling": 1,
    "log_scale": 1,
}
CONVNEXT = {
    **dict.fromkeys(("image/patches", "image/norm_before"), 1 / 8),
    "image/stages/0": 1 / 4,
    "image/stages/1": 1 / 2,
    "image/norm/": 1,
    "log_scale": 1,
}
FAMILIES = {
    "clip": CLIP,
    "open_clip": CLIP,
    "siglip": SIGLIP,
    "naflex": SIGLIP,
    "bert": BERT,
    "convnext": CONVNEXT,
}


@pytest.mark.parametrize("name", ["clip", "open_clip", "siglip", "naflex"])
def test_the_loss_is_the_librarys(name):
    found, reference = import_weights(FIXTURES / name), reference_of(FIXTURES / name)
    pixels, ids = pixels_of(found, reference), jnp.asarray(reference["ids"], jnp.int32)
    graphdef, state = nnx.split(found.towers)
    loss = jax.jit(lambda state: own_loss(nnx.merge(graphdef, state), pixels, ids)[0])(state)
    assert abs(loss - reference["loss"]) <= 1e-6 * max(1.0, abs(reference["loss"]))


def factor_of(name, expected):
    found = [factor for start, factor in expected.items() if name.startswith(start)]
    assert len(found) == 1, name
    return np.asarray(found[0], np.float32)


@pytest.mark.parametrize("name,expected", FAMILIES.items())
def test_layer_decay_knows_the_layers_of_imported_towers(name, expected):
    """The update of each parameter with a decay of one half, over that without."""
    state = {
        k: jnp.asarray(v) for k, v in parameters(import_weights(FIXTURES / name).towers).items()
    }
    nested = functools.reduce(_insert, state.items(), {})
    config = {"name": "sgd", "b1": 0.0, "learning_rate": 1.0, "weight_decay": 0.0}
    chain = make_optimizer(
        OptimizerConfig(**config, clip_norm=None, layer_decay=0.5),
        lambda step: jnp.float32(1.0),
        max_scale=None,
    )
    gradient = jax.tree.map(jnp.ones_like, nested)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = chain.update(gradient, chain.init(nested), nested)
    updates = {
        "/".join(str(key.key) for key in path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(updates)
    }
    assert updates.keys() == state.keys()
    for path, update in updates.items():
        factor = factor_of(path, expected)
        factor = factor.reshape((*factor.shape, *(1,) * (update.ndim - factor.ndim)))
        np.testing.assert_allclose(update, -factor * np.ones_like(update), err_msg=path)


def _insert(tree, item):
    path, leaf = item
    *groups, last = path.split("/")
    inner = tree
    for group in groups:
        inner = inner.setdefault(group, {})
    inner[last] = leaf
    return tree


@pytest.mark.slow
def test_a_locked_tower_beside_one_whose_layers_decay(imported, shapes_csv, tmp_path):  # noqa: F811
    """One step of gradient descent from imported weights, with a decay of one half and without."""
    common = (
        "optimizer.multipliers=(('image/.*', None),)", "optimizer.name=sgd", "optimizer.b1=0.0",
        "optimizer.b2=None", "optimizer.weight_decay=0.0", "optimizer.clip_norm=None",
        "optimizer.learning_rate=1.0",
        "optimizer.warmup_steps=0", "total_steps=1", f"init_from={imported / 'clip'}",
    )  # fmt: skip
    before, moved = parameters_of(imported / "clip"), []
    for decay in ("None", "0.5"):
        settings = recipe(imported, shapes_csv, *common, f"optimizer.layer_decay={decay}")
        run(settings, tmp_path / decay)
        after = parameters_of(tmp_path / decay)
        moved.append({name: after[name] - array for name, array in before.items()})
    for name, whole in moved[0].items():
        if name.startswith("image/"):
            assert not whole.any()
            assert not moved[1][name].any()
            continue
        factor = factor_of(name, CLIP)
        factor = factor.reshape((*factor.shape, *(1,) * (whole.ndim - factor.ndim)))
        assert np.linalg.norm(whole) > 0, name
        error = np.linalg.norm(moved[1][name] - factor * whole)
        assert error <= 1e-3 * np.linalg.norm(whole) + 1e-6, name
