"""Every parameter of a tower starts as in the code of its paper (the blocks: test_transformer.py;
ConvNeXt: test_convnext.py)."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from contrastive.towers import (
    Encoder,
    EncoderConfig,
    ResNet,
    ResNetConfig,
    TextTransformer,
    TextTransformerConfig,
    VisionTransformer,
    VisionTransformerConfig,
)

WIDTH, PIXELS = 64, 3 * 8 * 8
SHAPE = {"width": WIDTH, "depth": 1, "heads": 2}
TEXT = {"length": 64, "vocabulary_size": 200, "pad_id": 0, "output": 48}


def parameters(build):
    """By path, at the start; drawn by XLA's own generator, which compiles in no time."""
    options = {"xla_backend_optimization_level": 0}

    @functools.partial(jax.jit, compiler_options=options)
    def start():
        return nnx.state(build(nnx.Rngs(jax.random.key(0, impl="rbg"))))

    state = start()
    return {"/".join(map(str, p)): np.asarray(x[...]) for p, x in nnx.to_flat_state(state)}


def deviations(found, wanted):
    for name, deviation in wanted.items():
        x = found[name]
        near = 0.15 if x.size > 1000 else 0.35
        assert x.std() == pytest.approx(deviation, rel=near), name
        assert abs(x.mean()) <= 4 * deviation * x.size**-0.5, name


def vision(**settings):
    config = VisionTransformerConfig(**SHAPE, patch_size=8, **settings)
    build = lambda rngs: VisionTransformer(config, image_size=64, output=48, rngs=rngs)  # noqa: E731
    return parameters(build)


def test_clips_image_tower():
    """PyTorch's convolution, uniform within fan_in^-1/2; everything else normal, width^-1/2."""
    found = vision(init="clip", pooling="cls", pre_norm=True, patch_bias=False)
    kernel = found["patches/kernel"]
    assert 0.99 * PIXELS**-0.5 < np.abs(kernel).max() <= PIXELS**-0.5
    names = ("class_token", "positions", "projection/kernel")
    deviations(found, dict.fromkeys(names, WIDTH**-0.5) | {"patches/kernel": (3 * PIXELS) ** -0.5})


@pytest.mark.parametrize("pooling", ["map", "cls"])
def test_the_image_tower_of_big_vision(pooling):
    """Flax's convolution, normal with fan_in^-1/2; positions normal, width^-1/2; the query of the
    pooling uniform by Glorot; the class token zero."""
    found = vision(init="siglip", pooling=pooling)
    deviations(found, {"patches/kernel": PIXELS**-0.5, "positions": WIDTH**-0.5})
    if pooling == "cls":
        assert not found["class_token"].any()
        return
    limit = (6 / (1 + WIDTH)) ** 0.5
    assert 0.9 * limit < np.abs(found["head/query"]).max() <= limit
    square = (3 / WIDTH) ** 0.5
    assert 0.98 * square < np.abs(found["head/attention/qkv"]).max() <= square


@pytest.mark.parametrize(
    "init, tokens, positions", [("clip", 0.02, 0.01), ("siglip", 0.125, 0.125)]
)
def test_text_towers(init, tokens, positions):
    config = TextTransformerConfig(**SHAPE, init=init, projection="bias")
    found = parameters(lambda rngs: TextTransformer(config, **TEXT, rngs=rngs))
    wanted = {"tokens": tokens, "positions": positions, "projection/kernel": WIDTH**-0.5}
    deviations(found, wanted)
    assert not found["projection/bias"].any()


@pytest.mark.parametrize("init", ["bert", "modernbert"])
def test_encoders(init):
    """Normal, .02, cut off at two deviations, which leaves .0176."""
    config = EncoderConfig(**SHAPE, init=init)
    found = parameters(lambda rngs: Encoder(config, **TEXT, rngs=rngs))
    narrow = 0.02 * 0.88
    deviations(found, {"tokens": narrow, "positions": narrow, "blocks/attention/qkv": narrow})
    assert max(np.abs(found[name]).max() for name in ("tokens", "positions")) <= 0.0401
    last = narrow * 2**-0.5 if init == "modernbert" else narrow
    deviations(found, {"blocks/attention/out": last, "blocks/mlp/down/kernel": last})


@pytest.mark.parametrize(
    "form, block", [("plain", "basic"), ("small", "basic"), ("clip", "bottleneck")]
)
def test_residual_networks(form, block):
    """Convolutions by He et al. 2015 over their outputs; branches of CLIP's and SimCLR's networks
    add nothing at first."""
    projection = "bias" if form == "clip" else "linear"
    config = ResNetConfig(
        form=form, block=block, stem=16, widths=(32, 64), depths=(1, 1), heads=2,
        projection=projection,
    )  # fmt: skip
    build = lambda rngs: ResNet(config, image_size=32, output=48, rngs=rngs)  # noqa: E731
    found = parameters(build)
    kernels = {n: x for n, x in found.items() if n.endswith("kernel") and "projection" not in n}
    deviations(found, {n: (2 / (x.shape[0] ** 2 * x.shape[3])) ** 0.5 for n, x in kernels.items()})
    last = f"branch/{1 if block == 'basic' else 2}/norm/scale"
    for name, x in found.items():
        if name.endswith("norm/scale"):
            silent = form != "plain" and name.endswith(last)
            np.testing.assert_array_equal(x, 0.0 if silent else 1.0, err_msg=name)
    if form == "clip":
        deviations(found, {"pool/qkv": 64**-0.5, "pool/positions": 64**-0.5})
