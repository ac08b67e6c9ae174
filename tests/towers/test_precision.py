"""The bound of docs/towers.md for deep towers: from initial values, rows in bfloat16 differ from
those in float32 by at most 2 % of their norm. (Shallow towers with made-up parameters, 3 %:
test_towers.py, test_options.py, test_encoder.py, test_convnext.py, test_bag.py; residual networks,
5 %: test_resnet.py.)"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive.towers import (
    NaFlexConfig,
    TextTransformerConfig,
    TwoTower,
    TwoTowerConfig,
    VisionTransformerConfig,
)

SHAPE = {"width": 64, "depth": 12, "heads": 4}
CLIP = {"activation": "quick_gelu", "init": "clip", "epsilon": 1e-5}
SIGLIP = {"activation": "gelu_tanh", "init": "siglip", "epsilon": 1e-6}
IMAGES = {
    "clip": VisionTransformerConfig(
        **SHAPE, **CLIP, pooling="cls", pre_norm=True, patch_bias=False
    ),
    "siglip": VisionTransformerConfig(**SHAPE, **SIGLIP, pooling="map"),
    "naflex": NaFlexConfig(**SHAPE, **SIGLIP, patch_size=8, grid=3),
}
TEXTS = {
    "clip": TextTransformerConfig(**SHAPE, **CLIP, causal=True, pooling="last"),
    "siglip": TextTransformerConfig(
        **SHAPE, **SIGLIP, padding="read", pooling="last", projection="bias"
    ),
}
SIZES = {"image_size": 32, "text_length": 12, "vocabulary_size": 40, "pad_id": 0}


def pictures(naflex):
    rng = np.random.default_rng(0)
    if not naflex:
        return jnp.asarray(rng.integers(0, 256, (4, 32, 32, 3)), jnp.uint8)
    patches = np.zeros((4, 16, 3 * 64 + 4), np.uint8)
    for row, (height, width) in zip(patches, [(4, 4), (2, 7), (1, 3), (5, 3)], strict=True):
        places = np.indices((height, width)).reshape(2, -1).T
        row[: len(places), :-4] = rng.integers(0, 256, (len(places), 3 * 64))
        row[: len(places), -4:] = np.concatenate([places, np.full_like(places, (height, width))], 1)
    return jnp.asarray(patches)


@pytest.mark.parametrize("name", IMAGES)
def test_twelve_blocks_in_bfloat16(name, quick):
    config = TwoTowerConfig(image=IMAGES[name], text=TEXTS.get(name, TEXTS["siglip"]))
    tokens = np.random.default_rng(1).integers(1, 40, (4, 12))
    tokens[1, 7:] = 0

    def build(rngs, dtype="float32"):
        return TwoTower(dataclasses.replace(config, dtype=dtype), **SIZES, rngs=rngs)

    state = quick(lambda: nnx.state(build(nnx.Rngs(jax.random.key(0, impl="rbg")))))()
    rows = {}
    for dtype in ("float32", "bfloat16"):
        graphdef = nnx.graphdef(nnx.eval_shape(lambda d=dtype: build(nnx.Rngs(0), d)))

        def encode(state, x, t, graphdef=graphdef):
            model = nnx.merge(graphdef, state)
            return model.encode_image(x), model.encode_text(t)

        given = pictures(name == "naflex"), jnp.asarray(tokens, jnp.int32)
        rows[dtype] = quick(encode)(state, *given)
    for exact, low in zip(rows["float32"], rows["bfloat16"], strict=True):
        share = np.linalg.norm(low - exact, axis=1) / np.linalg.norm(exact, axis=1)
        print(f"{name}: {share.max():.4f}")
        assert 1e-4 < share.max() <= 0.02
