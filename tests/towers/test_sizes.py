"""The published models have the published sizes (open_clip's model profile lists two decimals)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive.errors import ConfigError
from contrastive.planning.operations import operations
from contrastive.towers import (
    ConvTowerConfig,
    ResNetConfig,
    TextTransformer,
    TextTransformerConfig,
    TwoTower,
    TwoTowerConfig,
    parameter_count,
    sizes,
)

FAMILIES = {
    "clip": sizes.CLIP,
    "siglip": sizes.SIGLIP,
    "siglip2": sizes.SIGLIP2,
    "lit": sizes.LIT,
    "flip": sizes.FLIP,
}
NAMES = [(family, name) for family, models in FAMILIES.items() for name in models]
EXACT = {  # counted on the released weights
    ("clip", "B/32"): 151_277_313,
    ("clip", "B/16"): 149_620_737,
    ("clip", "L/14"): 427_616_513,
}


def count(model):
    return parameter_count(
        model.model,
        image_size=model.image_size,
        text_length=model.text_length,
        vocabulary_size=model.vocabulary_size,
    )


@pytest.mark.parametrize("family, name", [n for n in NAMES if FAMILIES[n[0]][n[1]].parameters])
def test_parameter_counts_are_the_published_ones(family, name):
    model = FAMILIES[family][name]
    total = count(model)["total"]
    assert round(total / 1e6, 2) == model.parameters
    assert total == EXACT.get((family, name), total)


def test_the_largest_siglip_is_two_published_towers():
    parts = count(sizes.SIGLIP["g/14"])
    longer = dataclasses.replace(sizes.SIGLIP["So400m/14"], text_length=64)
    # The last product goes to the image tower's width.
    difference = (1408 - 1152) * (1152 + 1)
    assert parts["text"] == count(longer)["text"] + difference
    blocks = 40 * (4 * 1408**2 + 4 * 1408 + 2 * 1408 * 6144 + 6144 + 1408 + 4 * 1408)
    assert blocks < parts["image"] < 1.04 * blocks


def flops(model, image_size=None, tokens=None):
    """Billions of operations of one image, or of one text."""
    sizes_ = {"image_size": image_size or 8, "text_length": tokens or 8, "vocabulary_size": 9}
    pairs = "captions" if tokens else "views"
    build = lambda: TwoTower(model, pairs=pairs, pad_id=0, **sizes_, rngs=nnx.Rngs(0))  # noqa: E731
    graphdef, state = nnx.split(nnx.eval_shape(build))
    if tokens:
        x = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
        return operations(lambda s, x: nnx.merge(graphdef, s).encode_text(x), state, x).total / 1e9
    x = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.uint8)
    return operations(lambda s, x: nnx.merge(graphdef, s).encode_image(x), state, x).total / 1e9


@pytest.mark.parametrize("family, name", [n for n in NAMES if any(FAMILIES[n[0]][n[1]].flops)])
def test_operations_are_the_published_ones(family, name):
    published = FAMILIES[family][name]
    image, text = published.flops
    tiny = ConvTowerConfig(widths=(4,))
    alone = dataclasses.replace(published.model, text=None)
    close = {"rel": 2e-3, "abs": 0.006}  # two decimals were published
    if image is not None:
        assert flops(alone, published.image_size) == pytest.approx(image, **close)
    texts = dataclasses.replace(published.model, image=tiny)
    if text is not None:
        assert flops(texts, tokens=published.text_length) == pytest.approx(text, **close)


def test_what_no_figure_was_published_for():
    """What the two tests above do not see; the list may only become shorter."""
    parts = {"parameters": lambda p: p.parameters, "image": lambda p: p.flops[0]}
    parts["text"] = lambda p: p.flops[1]
    missing = {
        f"{family} {name}: {part}"
        for family, name in NAMES
        for part, published in parts.items()
        if published(FAMILIES[family][name]) is None
    }
    flip = [f"flip {name}" for name in sizes.FLIP]
    assert missing == {
        *("siglip g/14: parameters", "siglip g/14: image"),
        *(f"lit {name}: {part}" for name in sizes.LIT for part in ("parameters", "text")),
        *(f"{name}: {part}" for name in flip for part in ("parameters", "image")),
        "flip B/16: text",
    }


RESIDUAL = {  # with torchvision's parameters (and classifier) and multiplications
    "ResNet-18": (ResNetConfig(block="basic", widths=(64, 128, 256, 512), depths=(2,) * 4), 512),
    "ResNet-50": (ResNetConfig(), 2048),
    "ResNet-101": (ResNetConfig(depths=(3, 4, 23, 3)), 2048),
}
TORCHVISION = {
    "ResNet-18": (11_689_512, 1.81),
    "ResNet-50": (25_557_032, 4.09),
    "ResNet-101": (44_549_160, 7.8),
}


def learned(model, image_size):
    """Parameters without the statistics of batch normalisation, which the others do not count."""
    build = lambda: TwoTower(  # noqa: E731
        model, pairs="views", image_size=image_size, text_length=1, vocabulary_size=1, pad_id=0,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    flat = nnx.to_flat_state(nnx.state(nnx.eval_shape(build).image))
    kept = [leaf.shape for path, leaf in flat if path[-1] not in ("mean", "variance")]
    return sum(int(np.prod(shape)) for shape in kept)


@pytest.mark.parametrize("name", RESIDUAL)
def test_residual_networks_have_the_published_sizes(name):
    config, width = RESIDUAL[name]
    parameters, multiplications = TORCHVISION[name]
    model = TwoTowerConfig(image=config, text=None, embedding_dim=width)
    classifier = 1000 * (width + 1)
    assert learned(model, 224) + classifier == parameters
    found = flops(model, 224) / 2 + classifier / 1e9
    assert found == pytest.approx(multiplications, abs=0.01)


@pytest.mark.parametrize(
    "depths, stem, size, dim, parameters, operations",
    [
        ((3, 4, 6, 3), 64, 224, 1024, 38.32, 12.22),
        ((3, 4, 23, 3), 64, 224, 512, 56.26, 19.54),
        ((4, 6, 10, 6), 80, 288, 640, 87.14, 42.56),
    ],
    ids=["RN50", "RN101", "RN50x4"],
)
def test_clips_residual_networks_have_the_published_sizes(
    depths, stem, size, dim, parameters, operations
):
    """open_clip's profile counts queries, scores and the last product of its attention pooling for
    every place; only the mean's are used and computed here."""
    widths = tuple(stem * 4 * 2**i for i in range(4))
    config = ResNetConfig(
        form="clip", stem=stem, widths=widths, depths=depths, heads=stem // 2, projection="bias"
    )
    model = TwoTowerConfig(image=config, text=None, embedding_dim=dim)
    assert round(learned(model, size) / 1e6, 2) == parameters
    others = (size // 32) ** 2
    unused = 2 * others * widths[-1] * (widths[-1] + dim + 2 * (others + 1))
    assert flops(model, size) + unused / 1e9 == pytest.approx(operations, rel=3e-3)


@pytest.mark.parametrize("name", sizes.IMAGE)
def test_image_towers_have_the_published_sizes(name):
    """With a classifier of 1,000 classes, which they were published with."""
    published = sizes.IMAGE[name]
    classifier = 1000 * (published.width + 1)
    sizes_ = {"image_size": published.image_size, "text_length": 1, "vocabulary_size": 1}
    total = parameter_count(published.model, **sizes_)["image"] + classifier
    digits = 1 if name.startswith("ConvNeXt") else 2
    assert round(total / 1e6, digits) == published.parameters
    found = flops(published.model, published.image_size) / 2 + classifier / 1e9
    # Counters differ in what else they count beside products.
    close = {"rel": 6e-3, "abs": 0.6 * 10**-digits}
    assert found == pytest.approx(published.multiplications, **close)


def test_unknown_names_are_answered_with_the_known():
    with pytest.raises(ConfigError, match=r"'B/15'; known are S/32, S/16, B/32"):
        sizes.published(sizes.CLIP, "B/15")


@pytest.mark.parametrize("padding", ["masked", "read"])
def test_padding_is_masked_or_read(padding, fill, quick):
    """SigLIP pools the last position, padding or not; CLIP the last token before the padding."""
    config = TextTransformerConfig(
        width=16, depth=1, heads=2, pooling="last", causal=True, padding=padding
    )
    tower = fill(
        lambda: TextTransformer(
            config, length=6, vocabulary_size=9, pad_id=0, output=16, rngs=nnx.Rngs(0)
        )
    )
    short = np.array([[3, 4, 5]], np.int32)
    padded = np.array([[3, 4, 5, 0, 0]], np.int32)
    run = quick(lambda tokens: tower(tokens, dtype=jnp.dtype("float32")))
    same = np.allclose(run(short), run(padded), atol=1e-5)
    assert same == (padding == "masked")
