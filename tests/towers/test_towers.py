"""The towers as a user sees them: rows out, padding in, errors."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive import config as settings
from contrastive.errors import ConfigError
from contrastive.towers import (
    ConvTowerConfig,
    TextTransformerConfig,
    TwoTower,
    TwoTowerConfig,
    VisionTransformerConfig,
    layers,
    parameter_count,
)
from contrastive.towers.convnet import neighbourhoods
from contrastive.towers.text import text_mask
from contrastive.towers.vit import _patch_key, choose_patches, kept_patches, patchify

CONV = ConvTowerConfig(widths=(4, 8))
VIT = VisionTransformerConfig(width=16, depth=2, heads=2, mlp_ratio=2.0, patch_size=4)
TEXT = TextTransformerConfig(width=16, depth=2, heads=2, mlp_ratio=2.0)
CONFIG = TwoTowerConfig(image=CONV, text=TEXT, embedding_dim=12)
SIZES = {"image_size": 8, "text_length": 8, "vocabulary_size": 20, "pad_id": 0}


def images(batch=4, size=8):
    values = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3))
    return jnp.asarray(values, jnp.uint8)


def texts(lengths=(8, 5, 1, 0), length=8):
    tokens = np.random.default_rng(1).integers(1, 20, (len(lengths), length))
    return jnp.asarray(np.where(np.arange(length) < np.array(lengths)[:, None], tokens, 0), "int32")


@pytest.fixture
def towers(fill):
    def make(config=CONFIG, **sizes):
        return fill(lambda: TwoTower(config, **SIZES | sizes, rngs=nnx.Rngs(0)))

    return make


IMAGE_TOWERS = {
    "conv": CONV,
    "conv_stages": dataclasses.replace(CONV, widths=(4, 8, 8), pooled="stages"),
    "vit": VIT,
    "vit_cls": dataclasses.replace(VIT, pooling="cls", pre_norm=True, activation="quick_gelu"),
    "vit_map": dataclasses.replace(VIT, pooling="map", activation="gelu_tanh", projection="bias"),
}


def test_pooled_stages_are_means_and_maxima_side_by_side(towers):
    config = dataclasses.replace(CONV, widths=(4, 8, 6), pooled="stages", projection="none")
    tower = towers(dataclasses.replace(CONFIG, image=config, embedding_dim=28)).image
    maps, x = [], jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 8, 3)), jnp.float32)
    row = tower(x)
    for stage in tower.stages:
        x = stage(x)
        maps.append(np.asarray(x, np.float64))
    plain = [f(m, axis=(1, 2)) for m in maps[1:] for f in (np.mean, np.max)]
    plain = np.concatenate(plain, axis=1)
    plain = plain - plain.mean(axis=1, keepdims=True)
    plain /= np.sqrt(plain.var(axis=1, keepdims=True) + config.epsilon)
    scale, bias = (np.asarray(x[...], np.float64) for x in (tower.norm.scale, tower.norm.bias))
    np.testing.assert_allclose(row, plain * scale + bias, atol=1e-5)
    with pytest.raises(ConfigError, match="needs two stages"):
        ConvTowerConfig(widths=(4,), pooled="stages")


@pytest.mark.parametrize("name", IMAGE_TOWERS)
def test_image_rows_and_gradients(name, towers, quick):
    model = towers(dataclasses.replace(CONFIG, image=IMAGE_TOWERS[name]))
    graphdef, state = nnx.split(model)

    def loss(state, x):
        rows = nnx.merge(graphdef, state).encode_image(x)
        return jnp.sum(rows**2), rows

    (_, rows), gradient = quick(jax.value_and_grad(loss, has_aux=True))(state, images())
    assert rows.shape == (4, 12)
    assert rows.dtype == jnp.float32
    assert np.abs(rows[0] - rows[1]).max() > 1e-2
    for path, leaf in jax.tree_util.tree_flatten_with_path(gradient["image"])[0]:
        assert np.all(np.isfinite(leaf)), jax.tree_util.keystr(path)
        assert np.any(leaf), jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    "pooling, causal",
    [("mean", False), ("max", False), ("cls", False), ("last", True), ("mean", True)],
)
def test_padding_never_changes_a_text_row(pooling, causal, towers, quick):
    """The same texts, padded to 5 or to 8 tokens; and whatever the rows beside them are."""
    text = dataclasses.replace(TEXT, pooling=pooling, causal=causal)
    encode = towers(dataclasses.replace(CONFIG, text=text)).encode_text
    tokens = texts((3, 5, 1, 2))
    rows, short, turned = quick(lambda t: (encode(t), encode(t[:, :5]), encode(t[::-1])))(tokens)
    assert rows.shape == (4, 12)
    np.testing.assert_allclose(short, rows, atol=1e-6)
    np.testing.assert_allclose(turned[::-1], rows, atol=1e-6)
    assert np.abs(rows[0] - rows[1]).max() > 1e-2


@pytest.mark.parametrize("pooling, causal", [("mean", False), ("max", False), ("last", True)])
def test_a_token_with_the_id_of_the_padding_is_text(pooling, causal, towers, quick):
    """CLIP pads with 0, which is "!" too: up to the end token everything is read, after it
    nothing."""
    text = dataclasses.replace(TEXT, pooling=pooling, causal=causal)
    encode = towers(dataclasses.replace(CONFIG, text=text), end_id=19).encode_text
    exclamations = [[18, 4, 0, 19], [18, 4, 19, 0], [18, 0, 4, 19], [18, 4, 5, 19]]
    tokens = jnp.array([row + [0] * 4 for row in exclamations], "int32")
    garbage = tokens.at[:, 4:].set(7)  # what stands after the end changes nothing
    one_more = tokens.at[2, 4:].set(jnp.array([5, 19, 0, 0]))
    rows, short, others, longer = quick(lambda *t: tuple(encode(x) for x in t))(
        tokens, tokens[:, :4], garbage, one_more
    )
    np.testing.assert_allclose(short, rows, atol=1e-6)
    np.testing.assert_allclose(others, rows, atol=1e-6)
    np.testing.assert_allclose(longer, rows, atol=1e-6)  # the first end token counts
    for a, b in itertools.combinations(range(4), 2):
        assert np.abs(rows[a] - rows[b]).max() > 1e-3
    without = towers(dataclasses.replace(CONFIG, text=text)).encode_text(tokens[:, 1:3])
    assert np.abs(without[0] - without[2]).max() > 1e-3  # without an end: up to the last piece


def test_text_mask():
    tokens = jnp.array([[5, 0, 9, 0, 0], [5, 0, 6, 0, 0], [9, 9, 0, 0, 0], [0, 0, 0, 0, 0]])
    wanted = [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(text_mask(tokens, 0, 9), np.array(wanted, bool))
    wanted[2] = [1, 1, 0, 0, 0]
    np.testing.assert_array_equal(text_mask(tokens, 0, None), np.array(wanted, bool))
    same = text_mask(jnp.array([[4, 1, 1, 1], [4, 5, 6, 1]]), 1, 1)  # SigLIP: both are </s>
    np.testing.assert_array_equal(same, [[1, 1, 0, 0], [1, 1, 1, 1]])


def masked_by_hand(tower, x, chosen):
    """The rows of a tower that sees only the chosen patches of each image, in plain NumPy up to
    the blocks."""
    size, rows = tower.config.patch_size, []
    for image, numbers in zip(np.asarray(x), np.asarray(chosen), strict=True):
        across = image.shape[1] // size
        cut = [
            image[(n // across) * size :, (n % across) * size :][:size, :size].reshape(-1)
            for n in numbers
        ]
        first = tower.positions.shape[0] - across**2
        positions = np.asarray(tower.positions[...])
        tokens = np.array(cut) @ np.asarray(tower.patches.kernel[...])
        if tower.patches.bias is not None:
            tokens = tokens + np.asarray(tower.patches.bias[...])
        tokens = tokens + positions[first + numbers]
        if first:
            tokens = np.concatenate([np.asarray(tower.class_token[...]) + positions[:1], tokens])
        rows.append(tokens)
    y = jnp.asarray(np.array(rows), jnp.float32)
    if tower.norm_before is not None:
        y = tower.norm_before(y)
    return tower.projection(tower._pool(tower.norm(tower.transformer(y))))


@pytest.mark.parametrize("name", ["vit", "vit_cls", "vit_map"])
def test_only_the_kept_patches_are_seen_in_training(name, towers, quick):
    """FLIP: half of the patches, others for each image and key, with their own positions."""
    tower = dataclasses.replace(IMAGE_TOWERS[name], patch_size=2, keep_patches=0.5)
    model = towers(dataclasses.replace(CONFIG, image=tower), image_size=8)
    x = images()

    def train(x, key, rows=None):
        rngs = nnx.Rngs(dropout=key)
        return model.encode_image(x, deterministic=False, rngs=rngs, rows=rows)

    key = jax.random.key(3)
    seen = quick(train)(x, key)
    keys = layers.row_keys(nnx.Rngs(dropout=key).dropout(), x)
    chosen = choose_patches(jnp.zeros((4, 16, 1)), 8, jax.vmap(_patch_key)(keys))
    assert chosen.shape == (4, 8)
    assert (np.diff(np.asarray(chosen)) > 0).all()
    assert len({tuple(row) for row in np.asarray(chosen).tolist()}) == 4
    np.testing.assert_allclose(
        seen, masked_by_hand(model.image, model._normalise(x), chosen), atol=2e-5
    )
    whole = model.encode_image(x)
    assert np.abs(seen - whole).max() > 1e-2
    full = towers(
        dataclasses.replace(CONFIG, image=dataclasses.replace(tower, keep_patches=1.0)),
        image_size=8,
    )
    np.testing.assert_allclose(full.encode_image(x), whole, atol=1e-6)  # evaluation sees all
    halves = [quick(train)(x[i : i + 2], key, jnp.arange(i, i + 2)) for i in (0, 2)]
    np.testing.assert_allclose(jnp.concatenate(halves), seen, atol=1e-6)  # microbatches too


def test_patches_are_kept_evenly():
    keys = jax.random.split(jax.random.key(0), 2000)
    chosen = np.asarray(choose_patches(jnp.zeros((2000, 9, 1)), 3, keys))
    times = np.bincount(chosen.ravel(), minlength=9)
    assert ((times - 2000 / 3) ** 2 / (2000 / 3)).sum() < 30  # chi square, 8 degrees
    assert [kept_patches(196, share) for share in (1.0, 0.5, 0.25, 0.001)] == [196, 98, 49, 1]


def test_A21_empty_text_is_a_zero_row_with_finite_gradients(towers, quick):
    graphdef, state = nnx.split(towers())

    def loss(state):
        rows = nnx.merge(graphdef, state).encode_text(texts())
        return jnp.sum(rows**2), rows

    (_, rows), gradient = quick(jax.value_and_grad(loss, has_aux=True))(state)
    assert not np.any(rows[3])
    assert np.all(np.any(rows[:3], axis=1))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_causal_tokens_see_only_what_came_before(towers, quick):
    text = dataclasses.replace(TEXT, causal=True, pooling="cls")
    encode = quick(towers(dataclasses.replace(CONFIG, text=text)).encode_text)
    tokens = texts((8, 8, 8, 8))
    changed = tokens.at[:, 1:].set(3)
    np.testing.assert_array_equal(encode(tokens), encode(changed))


def test_bidirectional_tokens_see_everything(towers, quick):
    text = dataclasses.replace(TEXT, pooling="cls")
    encode = quick(towers(dataclasses.replace(CONFIG, text=text)).encode_text)
    tokens = texts((8, 8, 8, 8))
    assert np.abs(encode(tokens) - encode(tokens.at[:, 5].set(3))).max() > 1e-3


@pytest.mark.parametrize("image", ["conv", "vit_map"])
def test_bfloat16_is_close_to_float32(image, towers, quick):
    """Stated bound: rows differ by at most 3 % of their norm (bfloat16 has 8 bits, 2 blocks)."""
    rows = {}
    for dtype in ("float32", "bfloat16"):
        model = towers(dataclasses.replace(CONFIG, image=IMAGE_TOWERS[image], dtype=dtype))
        leaves = jax.tree.leaves(nnx.state(model))
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
        rows[dtype] = quick(lambda m=model: (m.encode_image(images()), m.encode_text(texts())))()
    for exact, low in zip(rows["float32"], rows["bfloat16"], strict=True):
        assert low.dtype == jnp.float32
        error = np.linalg.norm(low - exact, axis=1)
        assert np.all(error <= 0.03 * np.linalg.norm(exact, axis=1))
        assert np.any(error > 0)


def test_A19_parameters_and_gradients_are_float32_under_bfloat16(towers, quick):
    graphdef, state = nnx.split(towers(dataclasses.replace(CONFIG, dtype="bfloat16")))
    gradient = jax.eval_shape(
        jax.grad(lambda s: jnp.sum(nnx.merge(graphdef, s).encode_text(texts()))), state
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_pixels_are_normalised_by_the_tower(towers, quick):
    """uint8 and float pixels mean the same; the constants of the config are applied."""
    other = dataclasses.replace(CONFIG, pixel_mean=(0.0, 0.0, 0.0), pixel_std=(1.0, 1.0, 1.0))
    model, plain = towers(), towers(other)

    def run(x):
        unit = x.astype(jnp.float32) / 255.0
        shifted = (unit - 0.5) / 0.5
        return model.encode_image(x), model.encode_image(unit), plain.encode_image(shifted)

    rows, from_unit, from_shifted = quick(run)(images())
    np.testing.assert_allclose(from_unit, rows, atol=1e-6)
    np.testing.assert_allclose(from_shifted, rows, atol=1e-6)


def test_patchify_is_row_major():
    x = jnp.arange(2 * 4 * 6 * 1).reshape(2, 4, 6, 1).astype(jnp.float32)
    patches = patchify(x, 2)
    assert patches.shape == (2, 6, 4)
    assert patches[0, 0].tolist() == [0, 1, 6, 7]
    assert patches[0, 1].tolist() == [2, 3, 8, 9]
    assert patches[0, 3].tolist() == [12, 13, 18, 19]


# --- Dropout


DROPOUT = dataclasses.replace(
    CONFIG,
    image=dataclasses.replace(VIT, dropout=0.5),
    text=dataclasses.replace(TEXT, dropout=0.5),
)


def test_A08_chunks_of_any_size_replay_the_same_dropout(towers, quick):
    """Gradients of a loss over rows made in chunks of 1, 2, 4 equal those of one pass over 8."""
    graphdef, state = nnx.split(towers(DROPOUT).text)
    tokens = texts((8, 7, 6, 5, 4, 3, 2, 1))
    pull = jnp.asarray(np.random.default_rng(2).normal(size=(8, 12)), jnp.float32)

    def loss(state, chunk, key):
        def encode(args):
            tokens, rows = args
            keys = layers.row_keys(key, tokens, rows)
            return nnx.merge(graphdef, state)(tokens, dtype=jnp.dtype("float32"), keys=keys)

        args = tokens, jnp.arange(8, dtype=jnp.int32)
        cut = jax.tree.map(lambda a: a.reshape(8 // chunk, chunk, *a.shape[1:]), args)
        rows = jax.lax.map(jax.checkpoint(encode), cut).reshape(8, 12)
        return jnp.sum(jnp.sin(rows) * pull)

    gradient = quick(jax.grad(loss), static_argnums=1)
    whole = gradient(state, 8, jax.random.key(0))
    for chunk in (1, 2, 4):
        part = gradient(state, chunk, jax.random.key(0))
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
            np.testing.assert_allclose(b, a, atol=1e-6 * max(1.0, float(jnp.abs(a).max())))
    other = gradient(state, 8, jax.random.key(1))
    assert np.abs(other["tokens"][...] - whole["tokens"][...]).max() > 1e-3


def test_A08_a_part_of_a_batch_drops_what_the_whole_drops(towers, quick):
    model = towers(DROPOUT)

    def encode(key):
        rngs = [nnx.Rngs(dropout=key) for _ in range(2)]
        whole = model.encode_text(texts(), deterministic=False, rngs=rngs[0])
        rows = jnp.array([1, 2], jnp.int32)
        part = model.encode_text(texts()[1:3], deterministic=False, rngs=rngs[1], rows=rows)
        return whole, part

    whole, part = quick(encode)(jax.random.key(0))
    np.testing.assert_allclose(part, whole[1:3], atol=1e-6)
    assert np.abs(whole - quick(model.encode_text)(texts())).max() > 1e-2


def test_dropout_needs_randomness(towers):
    model = towers(DROPOUT)
    with pytest.raises(ValueError, match="deterministic=False needs rngs"):
        model.encode_text(texts(), deterministic=False)


def test_deterministic_ignores_the_rate(towers, quick):
    plain, dropping = towers(dataclasses.replace(CONFIG, image=VIT)), towers(DROPOUT)
    np.testing.assert_array_equal(
        quick(plain.encode_text)(texts()), quick(dropping.encode_text)(texts())
    )


# --- Sizes, start values, errors


def test_parameter_counts_by_hand():
    block = 4 * 16 * 16 + 4 * 16 + 2 * 16 * 32 + 32 + 16 + 4 * 16
    text = (20 + 8) * 16 + 2 * block + 2 * 16 + 16 * 12
    vit = (48 * 16 + 16) + 4 * 16 + 2 * block + 2 * 16 + 16 * 12
    sizes = {"image_size": 8, "text_length": 8, "vocabulary_size": 20}
    counts = parameter_count(dataclasses.replace(CONFIG, image=VIT), **sizes)
    assert counts == {"image": vit, "text": text, "total": vit + text + 1}


def test_scale_and_bias_start_where_asked():
    model = nnx.eval_shape(lambda: TwoTower(CONFIG, **SIZES, rngs=nnx.Rngs(0)))
    assert model.bias is None
    start = jax.jit(
        lambda: [
            p[...]
            for m in [TwoTower(CONFIG, **SIZES, scale_init=10.0, bias_init=-10.0, rngs=nnx.Rngs(0))]
            for p in (m.log_scale, m.bias)
            if p is not None
        ]
    )()
    assert [leaf.dtype for leaf in start] == [jnp.float32] * 2
    np.testing.assert_allclose(start, [np.log(10.0), -10.0], rtol=1e-6)


def test_graph_definitions_of_equal_configs_are_equal():
    """A definition that differed between two builds would compile every program twice."""

    def definition():
        model = nnx.eval_shape(lambda: TwoTower(DROPOUT, **SIZES, rngs=nnx.Rngs(0)))
        return nnx.graphdef(model)

    assert definition() == definition()
    assert hash(definition()) == hash(definition())


def test_the_start_is_a_function_of_the_key(quick):
    @quick
    def start(key):
        return nnx.state(TwoTower(CONFIG, **SIZES, rngs=nnx.Rngs(key)))["text"]["tokens"][...]

    first = start(jax.random.key(0))
    np.testing.assert_array_equal(first, start(jax.random.key(0)))
    assert np.any(first != start(jax.random.key(1)))
    assert np.std(first) == pytest.approx(0.02, rel=0.1)


def test_configs_are_built_by_kind():
    model = settings.build(TwoTowerConfig, {"image": {"kind": "vit", "heads": 2}, "text": {}})
    assert isinstance(model.image, VisionTransformerConfig)
    assert model.image.heads == 2
    with pytest.raises(ConfigError, match="hedas"):
        settings.build(TwoTowerConfig, {"text": {"hedas": 2}})
    with pytest.raises(ConfigError, match=r"config\.model\.text\.heads = 3 does not divide"):
        settings.build(TwoTowerConfig, {"text": {"heads": 3, "width": 128}})


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: VisionTransformerConfig(patch_size=0), "patch_size = 0"),
        (lambda: TextTransformerConfig(vocabulary_size=-1), "vocabulary_size = -1 is negative"),
        (lambda: ConvTowerConfig(widths=()), "widths"),
        (lambda: TwoTowerConfig(embedding_dim=0), "embedding_dim = 0"),
        (lambda: TwoTowerConfig(pixel_std=(0.5, 0.0, 0.5)), "pixel_std"),
    ],
)
def test_config_errors_name_the_key(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    "config, sizes, message",
    [
        ({"image": VIT}, {"image_size": 10}, "patch_size = 4 does not divide image_size = 10"),
        ({"image": CONV}, {"image_size": 10}, "image_size = 10"),
        ({"text": dataclasses.replace(TEXT, vocabulary_size=10)}, {}, "the data needs 20"),
        ({"text": dataclasses.replace(TEXT, length=4)}, {}, "length = 4 is configured"),
        ({"text": dataclasses.replace(TEXT, projection="none")}, {}, "width 16 and embedding"),
        ({}, {"scale_init": 0.0}, "scale_init = 0.0"),
    ],
)
def test_towers_that_do_not_fit_the_data(config, sizes, message):
    with pytest.raises(ValueError, match=message):
        nnx.eval_shape(
            lambda: TwoTower(
                dataclasses.replace(CONFIG, **config), **SIZES | sizes, rngs=nnx.Rngs(0)
            )
        )


def test_inputs_of_another_size(towers):
    model = towers(dataclasses.replace(CONFIG, image=VIT))
    with pytest.raises(ValueError, match="12"):
        model.encode_image(images(size=12))
    with pytest.raises(ValueError, match="texts of 9 tokens; the position table has 8 rows"):
        model.encode_text(texts((9,), 9))


@pytest.mark.parametrize("size", [4, 8])
def test_neighbourhoods_are_what_a_convolution_multiplies(size, quick):
    """The product over neighbourhoods, its gradients too, equals XLA's convolution."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, size, size, 3)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(3, 3, 3, 5)), jnp.float32)

    def plain(x, kernel):
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=names)

    def product(x, kernel):
        return neighbourhoods(x) @ kernel.reshape(-1, 5)

    def value_and_gradients(f):
        def loss(x, kernel):
            y = f(x, kernel)
            return jnp.sum(jnp.sin(y)), y

        return quick(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, kernel)

    expected, result = value_and_gradients(plain), value_and_gradients(product)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, atol=2e-5), expected, result)
