"""The same towers on one device and on a mesh of eight, cut in every way the rules allow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from contrastive.towers import (
    LOGICAL_AXES,
    ConvTowerConfig,
    DenseConfig,
    EncoderConfig,
    ResNetConfig,
    TextTransformerConfig,
    TwoTower,
    TwoTowerConfig,
    VisionTransformerConfig,
    axis_rules,
    sharding,
)

TRANSFORMER = {"width": 16, "depth": 2, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.25}
VIT = VisionTransformerConfig(**TRANSFORMER, patch_size=4, pooling="cls", pre_norm=True)
CONFIG = TwoTowerConfig(image=VIT, text=TextTransformerConfig(**TRANSFORMER), embedding_dim=12)
CONV = dataclasses.replace(CONFIG, image=ConvTowerConfig(widths=(4, 8), pooled="stages"))
RESNET = dataclasses.replace(
    CONFIG,
    image=ResNetConfig(
        form="clip", stem=4, widths=(8, 8), depths=(1, 1), heads=2, projection="bias"
    ),
    text=dataclasses.replace(CONFIG.text, depth=1),
)
# Batch normalisation over the global batch: what comes out in the place of the gradient of running
# statistics is how far they move.
BATCH_NORM = dataclasses.replace(
    RESNET,
    image=ResNetConfig(
        form="small", block="basic", stem=4, widths=(4, 8), depths=(1, 1), statistics="batch",
        momentum=0.6, projection="linear",
    ),
)  # fmt: skip
# FLIP: half of the patches. The text tower is made small, it is tested with the others.
FLIP = dataclasses.replace(
    CONFIG,
    image=dataclasses.replace(VIT, patch_size=2, keep_patches=0.5, depth=1),
    text=dataclasses.replace(CONFIG.text, depth=1),
)
# Registers, fixed positions, norms on queries and keys, factors on the branches.
OPTIONS = dataclasses.replace(
    FLIP,
    image=dataclasses.replace(
        FLIP.image, positions="sine", registers=2, qk_norm=True, layer_scale=0.1, scan=False
    ),
)
# Encoders after BERT and ModernBERT; the image tower is made small.
POST = dataclasses.replace(CONV, text=EncoderConfig(**TRANSFORMER))
MODERN = dataclasses.replace(
    CONV,
    text=EncoderConfig(
        **TRANSFORMER,
        norm="pre",
        positions="rotary",
        gated=True,
        bias=False,
        token_types=0,
        window=2,
        global_every=2,
        pooling="weighted_mean",
        after_pooling=(DenseConfig(size=12, activation="gelu"),),
    ),
)
BATCH = 16

FSDP = axis_rules(("embed", "fsdp"))
TENSOR = axis_rules(("mlp", "model"), ("heads", "model"))
LAYOUTS = {
    "data": ((8,), ("data",), axis_rules(), "data"),
    "fsdp": ((4, 2), ("data", "fsdp"), FSDP, ("data", "fsdp")),
    "tensor": ((4, 2), ("data", "model"), TENSOR, "data"),
}


def build(config, rngs):
    return TwoTower(
        config,
        image_size=8,
        text_length=8,
        vocabulary_size=20,
        pad_id=0,
        bias_init=-10.0,
        rngs=rngs,
    )


def batch():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (BATCH, 8, 8, 3)).astype(np.uint8)
    tokens = np.where(np.arange(8) < rng.integers(1, 9, (BATCH, 1)), rng.integers(1, 20, 8), 0)
    return images, tokens.astype(np.int32)


def step(graphdef):
    def loss(state, images, tokens, key):
        model = nnx.merge(graphdef, state)
        options = {"deterministic": False, "rngs": nnx.Rngs(dropout=key)}
        a, b = model.encode_image(images, **options), model.encode_text(tokens, **options)
        return jnp.mean(jnp.sum(a * b, axis=1)) * jnp.exp(model.log_scale[...]), (a, b)

    return jax.value_and_grad(loss, has_aux=True)


def mesh_of(layout, kind):
    shape, names, rules, spec = LAYOUTS[layout]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names)), rules, spec


def run_on_mesh(config, state, layout, kind, compiler):
    """Value, rows and gradients, with the parameters laid out by the rules."""
    mesh, rules, spec = mesh_of(layout, kind)
    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        graphdef, abstract = nnx.get_abstract_model(lambda: build(config, nnx.Rngs(0)), mesh)
        state = jax.tree.map(lambda v, a: jax.device_put(v, a.sharding), state, abstract)
        args = [jax.device_put(a, NamedSharding(mesh, PartitionSpec(spec))) for a in batch()]
        return compiler(step(graphdef))(state, *args, jax.random.key(0))


MORE = {"resnet": RESNET, "options": OPTIONS, "batch_norm": BATCH_NORM}
ONE_DEVICE = {}  # what a single device computes, by image tower: compiled once for all layouts


@pytest.mark.parametrize(
    "image, layout",
    [
        ("vit", "data"),
        ("vit", "fsdp"),
        ("vit", "tensor"),
        ("conv", "fsdp"),
        ("flip", "data"),
        pytest.param("flip", "fsdp", marks=pytest.mark.slow),
        ("options", "fsdp"),
        pytest.param("options", "tensor", marks=pytest.mark.slow),
        ("resnet", "fsdp"),
        pytest.param("batch_norm", "data", marks=pytest.mark.slow),
        ("batch_norm", "fsdp"),
        pytest.param("post", "fsdp", marks=pytest.mark.slow),
        ("modern", "fsdp"),
        ("modern", "tensor"),
        pytest.param("conv", "data", marks=pytest.mark.slow),
        pytest.param("conv", "tensor", marks=pytest.mark.slow),
    ],
)
def test_A08_eight_devices_equal_one(image, layout, fill, quick):
    """Rows, gradients and dropout do not depend on how many devices share the work."""
    configs = {"vit": CONFIG, "conv": CONV, "flip": FLIP, "post": POST, "modern": MODERN}
    config = (configs | MORE)[image]
    graphdef, state = nnx.split(fill(lambda: build(config, nnx.Rngs(0))))
    if image not in ONE_DEVICE:
        args = (*map(jnp.asarray, batch()), jax.random.key(0))
        ONE_DEVICE[image] = quick(step(graphdef))(state, *args)
    one = ONE_DEVICE[image]
    eight = run_on_mesh(config, state, layout, AxisType.Explicit, quick)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
        scale = max(1.0, float(np.abs(a).max()))
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), atol=1e-5 * scale)


@pytest.mark.parametrize("config", [CONFIG, FLIP, MODERN], ids=["vit", "flip", "modern"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_auto_axes_trace_too(layout, config):
    mesh, rules, spec = mesh_of(layout, AxisType.Auto)
    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        graphdef, abstract = nnx.get_abstract_model(lambda: build(config, nnx.Rngs(0)), mesh)
        rows = NamedSharding(mesh, PartitionSpec(spec))
        args = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=rows) for a in batch()]
        key = jax.eval_shape(lambda: jax.random.key(0))
        jax.jit(step(graphdef)).lower(abstract, *args, key)


POOLINGS = [("mean", "map"), ("max", "mean"), ("last", "cls"), ("cls", "map")]


@pytest.mark.parametrize("text, image", POOLINGS)
def test_every_pooling_has_its_shardings_spelled_out(text, image):
    """Explicit axes refuse to guess, so tracing is the test."""
    config = dataclasses.replace(
        CONFIG,
        image=dataclasses.replace(
            VIT, pooling=image, remat="full", projection="bias", keep_patches=0.5
        ),
        text=dataclasses.replace(CONFIG.text, pooling=text, causal=True, remat="dots"),
    )
    mesh, rules, spec = mesh_of("fsdp", AxisType.Explicit)
    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        graphdef, abstract = nnx.get_abstract_model(lambda: build(config, nnx.Rngs(0)), mesh)
        rows = NamedSharding(mesh, PartitionSpec(spec))
        args = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=rows) for a in batch()]
        key = jax.eval_shape(lambda: jax.random.key(0))
        (_, (a, b)), gradient = jax.eval_shape(step(graphdef), abstract, *args, key)
    assert a.sharding.spec[0] == b.sharding.spec[0] == ("data", "fsdp")
    for g, p in zip(jax.tree.leaves(gradient), jax.tree.leaves(abstract), strict=True):
        assert g.sharding.spec == p.sharding.spec


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_a_gather_gives_its_gradient_back_to_the_parts(dimension):
    """Over two axes at once, along any dimension: the whole in order, and the sum of gradients."""
    mesh = jax.make_mesh((2, 4), ("slice", "fsdp"), axis_types=(AxisType.Explicit,) * 2)
    parts, spec = ("slice", "fsdp"), [None] * 3
    spec[dimension] = parts
    whole = (np.arange(512, dtype=np.float32) / 512).reshape(8, 8, 8)

    def local(value, row):
        return jnp.sum(sharding._gathered(value, parts, dimension) * row[0])[None]

    def loss(value, rows):
        cut = PartitionSpec(*spec), PartitionSpec(parts)
        return jax.shard_map(local, mesh=mesh, in_specs=cut, out_specs=cut[1])(value, rows).sum()

    rows = np.random.default_rng(0).normal(size=(8, 8, 8, 8)).astype(np.float32)
    with jax.set_mesh(mesh):
        value = jax.device_put(whole, NamedSharding(mesh, PartitionSpec(*spec)))
        given = jax.device_put(rows, NamedSharding(mesh, PartitionSpec(parts)))
        found, gradient = jax.jit(jax.value_and_grad(loss))(value, given)
    np.testing.assert_allclose(found, (whole * rows).sum(), atol=1e-2)
    np.testing.assert_allclose(gradient, rows.sum(axis=0), atol=1e-4)


def test_parameters_are_born_where_the_rules_put_them(quick):
    """Each device draws its own part: the same values as on one device, half the bytes."""
    mesh, rules, _ = mesh_of("fsdp", AxisType.Explicit)
    whole = quick(lambda: nnx.state(build(CONFIG, nnx.Rngs(0))))()
    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        _, abstract = nnx.get_abstract_model(lambda: build(CONFIG, nnx.Rngs(0)), mesh)
        compiled = quick(lambda: nnx.state(build(CONFIG, nnx.Rngs(0)))).lower().compile()
        cut = compiled()
    for a, b, c in zip(*map(jax.tree.leaves, (whole, cut, abstract)), strict=True):
        assert b.sharding.is_equivalent_to(c.sharding, b.ndim)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    kernel = cut["text"]["transformer"]["blocks"]["mlp"]["up"]["kernel"][...]
    assert kernel.sharding.spec == PartitionSpec(None, "fsdp", None)
    assert kernel.addressable_shards[0].data.shape == (2, 8, 32)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(whole))
    assert compiled.memory_analysis().output_size_in_bytes < 0.6 * total


def test_every_parameter_names_its_axes():
    """A table for the rules: each dimension has a known name (kernel windows have none)."""
    for config in (CONFIG, CONV, POST, MODERN, OPTIONS):
        model = nnx.eval_shape(lambda config=config: build(config, nnx.Rngs(0)))
        leaves = jax.tree.leaves(
            nnx.state(model), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
        )
        for leaf in leaves:
            axes = leaf.get_metadata().get("out_sharding", ())
            assert len(axes) == len(leaf.shape)
            assert set(axes) <= {*LOGICAL_AXES, None}


def test_rules_are_checked():
    with pytest.raises(ValueError, match="embde"):
        axis_rules(("embde", "fsdp"))
    with pytest.raises(ValueError, match="two rules"):
        axis_rules(("embed", "fsdp"), ("embed", None))
    mesh, _, _ = mesh_of("fsdp", AxisType.Explicit)
    with (
        jax.set_mesh(mesh),
        nnx.logical_axis_rules((("embed", "fsdp"),)),
        pytest.raises(ValueError, match=r"have no rule; see towers\.axis_rules"),
    ):
        nnx.eval_shape(lambda: build(CONFIG, nnx.Rngs(0)))
