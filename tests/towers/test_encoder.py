"""Encoders in the form of BERT, RoBERTa and ModernBERT: padding, windows, poolings, heads."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import erf

from contrastive import config as settings
from contrastive.errors import ConfigError, SizeError
from contrastive.towers import (
    DenseConfig,
    Encoder,
    EncoderConfig,
    LayerNormConfig,
    TwoTower,
    TwoTowerConfig,
    layers,
)
from contrastive.towers.encoder import AfterPooling
from contrastive.towers.text import pool, text_mask
from contrastive.towers.transformer import rotary_angles, rotate

BERT = EncoderConfig(width=16, depth=3, heads=2, mlp_ratio=2.0)
ROBERTA = dataclasses.replace(BERT, position_offset=2, token_types=1, epsilon=1e-5)
MODERN = dataclasses.replace(
    BERT,
    norm="pre",
    positions="rotary",
    gated=True,
    bias=False,
    token_types=0,
    window=2,
    global_every=2,
    init="modernbert",
    epsilon=1e-5,
)
FORMS = {"bert": BERT, "roberta": ROBERTA, "modernbert": MODERN}
POOLINGS = ("mean", "max", "cls", "last", "weighted_mean")
SIZES = {"length": 9, "vocabulary_size": 20, "pad_id": 1, "end_id": 3, "output": 12}
FLOAT = jnp.dtype("float32")


@pytest.fixture
def encoder(fill):
    def make(config=BERT, **sizes):
        return fill(lambda: Encoder(config, **SIZES | sizes, rngs=nnx.Rngs(0)))

    return make


def texts(lengths=(9, 6, 3), length=9):
    """Begin token 2, pieces, end token 3, padding 1."""
    rows = np.random.default_rng(1).integers(4, 20, (len(lengths), length))
    for row, n in zip(rows, lengths, strict=True):
        row[0], row[n - 1], row[n:] = 2, 3, 1
    return jnp.asarray(rows, jnp.int32)


# --- The plainest possible encoder: one text, one head at a time, float64


def by_hand(tower, tokens):
    """The hidden states of one text without padding."""
    config = tower.config
    state = jax.tree.map(lambda p: np.asarray(p, np.float64), nnx.to_pure_dict(nnx.state(tower)))
    blocks, size = state["blocks"], config.width // config.heads

    def norm(x, p):
        d = x - x.mean(-1, keepdims=True)
        y = d / np.sqrt((d**2).mean(-1, keepdims=True) + config.epsilon) * p["scale"]
        return y + p.get("bias", 0.0)

    def product(x, p):
        return x @ p["kernel"] + p.get("bias", 0.0)

    x = state["tokens"][tokens]
    if "token_types" in state:
        x = x + state["token_types"][0]
    if "positions" in state:
        x = x + state["positions"][config.position_offset :][: len(tokens)]
    x = norm(x, state["norm_before"])
    places = np.arange(len(tokens))
    for i in range(config.depth):
        p = jax.tree.map(lambda a, i=i: a[i], blocks)
        local = config.window and i % config.global_every
        base = config.local_rotary_base if local else config.rotary_base
        turn = np.exp(1j * places[:, None] / base ** (2 * np.arange(size // 2) / size))

        def turned(y, turn=turn):
            if config.positions != "rotary":
                return y
            z = (y[:, : size // 2] + 1j * y[:, size // 2 :]) * turn
            return np.concatenate([z.real, z.imag], axis=1)

        def attend(x, p=p, local=local, turned=turned):
            total = p["attention"].get("out_bias", 0.0)
            bias = p["attention"].get("qkv_bias", np.zeros((3, config.heads, 1)))
            for h in range(config.heads):
                q, k, v = (x @ p["attention"]["qkv"][:, j, h] + bias[j, h] for j in range(3))
                scores = turned(q) @ turned(k).T / np.sqrt(size)
                if local:
                    far = np.abs(places[:, None] - places) > config.window
                    scores[far] = -np.inf
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                total = (
                    total + weights / weights.sum(-1, keepdims=True) @ v @ p["attention"]["out"][h]
                )
            return total

        def mlp(x, p=p):
            y = product(x, p["mlp"]["up"])
            y = y * 0.5 * (1 + erf(y / np.sqrt(2)))
            if "gate" in p["mlp"]:
                y = y * product(x, p["mlp"]["gate"])
            return product(y, p["mlp"]["down"])

        if config.norm == "post":
            x = norm(x + attend(x), p["norm1"])
            x = norm(x + mlp(x), p["norm2"])
        else:
            x = x + attend(norm(x, p["norm1"]) if i else x)
            x = x + mlp(norm(x, p["norm2"]))
    return norm(x, state["norm"]) if "norm" in state else x


def pooled(x, pooling):
    weights = np.arange(1, len(x) + 1)[:, None]
    return {
        "mean": x.mean(0),
        "max": x.max(0),
        "cls": x[0],
        "last": x[-1],
        "weighted_mean": (weights * x).sum(0) / weights.sum(),
    }[pooling]


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_plain_computation(form, encoder, quick):
    """Every pooling, texts of three lengths, padded; the plain one sees no padding."""
    towers = {p: encoder(dataclasses.replace(FORMS[form], pooling=p)) for p in POOLINGS}
    tokens, lengths = texts(), (9, 6, 3)
    rows = quick(lambda t: {p: tower(t, dtype=FLOAT) for p, tower in towers.items()})(tokens)
    for i, n in enumerate(lengths):
        hidden = by_hand(towers["mean"], np.asarray(tokens[i, :n]))
        for pooling in POOLINGS:
            wanted = pooled(hidden, pooling) @ np.asarray(towers["mean"].projection.kernel[...])
            np.testing.assert_allclose(rows[pooling][i], wanted, atol=1e-5, err_msg=pooling)


@pytest.mark.parametrize("form", FORMS)
def test_every_parameter_has_a_finite_gradient_that_is_not_zero(form, encoder, quick):
    config = dataclasses.replace(
        FORMS[form], after_pooling=(DenseConfig(size=10), LayerNormConfig()), remat="full"
    )
    graphdef, state = nnx.split(encoder(config))

    def loss(state):
        return jnp.sum(jnp.sin(nnx.merge(graphdef, state)(texts(), dtype=FLOAT)))

    for path, leaf in jax.tree_util.tree_leaves_with_path(quick(jax.grad(loss))(state)):
        assert np.all(np.isfinite(leaf)), jax.tree_util.keystr(path)
        assert np.any(leaf), jax.tree_util.keystr(path)


def test_a_window_hides_what_is_far(encoder, quick):
    """With one local block the first token does not see the sixth."""
    two = dataclasses.replace(MODERN, depth=2, global_every=2, pooling="cls")
    config = dataclasses.replace(two, depth=1)
    changed = texts((9,)).at[0, 5].set(7)
    everything = quick(lambda t: encoder(config)(t, dtype=FLOAT))  # block 0 sees all
    assert np.abs(everything(texts((9,))) - everything(changed)).max() > 1e-4
    tower = encoder(two)
    wide = encoder(dataclasses.replace(two, window=8))
    run = quick(lambda t: (tower(t, dtype=FLOAT), wide(t, dtype=FLOAT)))
    assert np.abs(run(texts((9,)))[0] - run(texts((9,)))[1]).max() > 1e-4


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
    angles = rotary_angles(12, 8, 100.0)
    at = [rotate(jnp.tile(x, (1, 12, 1, 1)), angles)[0, :, 0] for x in (q, k)]
    np.testing.assert_allclose(np.linalg.norm(at[0], axis=1), np.linalg.norm(q), rtol=1e-5)
    scores = at[0] @ at[1].T
    for distance in (0, 3):
        np.testing.assert_allclose(np.diag(scores, distance), scores[0, distance], atol=1e-4)
    assert abs(scores[0, 0] - scores[0, 3]) > 1e-2


@pytest.mark.parametrize("form, pooling", [(BERT, "max"), (MODERN, "mean")], ids=["post", "pre"])
def test_A21_a_row_of_padding_is_zeros_with_finite_gradients(form, pooling, encoder, quick):
    tokens = texts().at[1].set(1)
    graphdef, state = nnx.split(encoder(dataclasses.replace(form, pooling=pooling, depth=2)))

    def loss(state):
        rows = nnx.merge(graphdef, state)(tokens, dtype=FLOAT)
        return jnp.sum(rows**2), rows

    (_, rows), gradient = quick(jax.value_and_grad(loss, has_aux=True))(state)
    assert not np.any(rows[1])
    assert np.all(np.any(rows[::2], axis=1))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_A21_poolings_of_ones_and_of_nothing():
    x = jnp.ones((2, 4, 3)).at[0, 2:].set(jnp.nan)  # what is masked may be anything
    mask = jnp.array([[True, True, False, False], [False] * 4])
    for pooling in POOLINGS:
        rows, back = jax.vjp(lambda x, p=pooling: pool(x, mask, p), x)
        np.testing.assert_array_equal(rows, [[1.0] * 3, [0.0] * 3])
        (gradient,) = back(jnp.ones((2, 3)))
        assert np.all(np.isfinite(gradient)), pooling
        assert not np.any(gradient[1]), pooling


def test_end_tokens_inside_a_text_separate_its_parts():
    rows = jnp.array([[2, 5, 3, 6, 3, 1], [2, 5, 3, 1, 1, 1], [2, 5, 1, 6, 1, 1], [1] * 6])
    wanted = [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [0] * 6]
    np.testing.assert_array_equal(text_mask(rows, 1, 3, until="last"), np.array(wanted, bool))
    both = text_mask(jnp.array([[4, 1, 1], [4, 5, 1]]), 1, 1, until="last")
    np.testing.assert_array_equal(both, [[1, 1, 0], [1, 1, 1]])


def test_modules_after_the_pooling(fill):
    """Dense, LayerNorm, Dense, in this order."""
    configs = (
        DenseConfig(size=10, activation="tanh"),
        LayerNormConfig(epsilon=1e-3),
        DenseConfig(size=12, bias=False, activation="relu"),
    )
    after = fill(lambda: AfterPooling(configs, 16, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    first, norm, last = after.layers
    y = np.tanh(x @ np.asarray(first.kernel[...]) + np.asarray(first.bias[...]))
    y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-3)
    y = y * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])
    wanted = np.maximum(y @ np.asarray(last.kernel[...]), 0)
    np.testing.assert_allclose(after(jnp.asarray(x)), wanted, atol=1e-5)
    assert last.bias is None
    assert after.size == 12


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("none", -0.5),
        ("relu", 0.0),
        ("tanh", np.tanh(-0.5)),
        ("gelu", -0.25 * (1 - erf(0.125**0.5))),
    ],
)
def test_activations_after_the_pooling(name, wanted, fill):
    configs = (DenseConfig(size=1, activation=name),)
    after = fill(lambda: AfterPooling(configs, 1, rngs=nnx.Rngs(0)))
    dense = after.layers[0]
    dense.kernel[...], dense.bias[...] = jnp.ones((1, 1)), jnp.zeros(1)
    np.testing.assert_allclose(after(jnp.array([[-0.5]])), [[wanted]], rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_dropout_is_drawn_from_the_keys(form, encoder, quick):
    tower = encoder(dataclasses.replace(FORMS[form], dropout=0.5))
    keys = layers.row_keys(jax.random.key(0), texts())
    run = quick(lambda t, k: tower(t, dtype=FLOAT, keys=k))
    first = run(texts(), keys)
    np.testing.assert_array_equal(first, run(texts(), keys))
    assert np.abs(first - run(texts(), keys[::-1])).max() > 1e-2
    assert np.abs(first - run(texts(), None)).max() > 1e-2
    part = run(texts()[1:], keys[1:])
    np.testing.assert_allclose(part, first[1:], atol=1e-6)


def test_remat_keeps_fewer_bytes_and_a_scan_has_one_block(encoder, quick, count_products):
    """The same gradients; memory by the compiler, products in the program."""
    tokens, gradients = jnp.tile(texts(), (8, 1)), []
    bytes_, products = {}, {}
    for remat, scan in (("none", True), ("full", True), ("none", False)):
        config = dataclasses.replace(MODERN, depth=4, remat=remat, scan=scan)
        graphdef, state = nnx.split(encoder(config))

        def loss(state, tokens, graphdef=graphdef):
            return jnp.sum(jnp.sin(nnx.merge(graphdef, state)(tokens, dtype=FLOAT)))

        products[scan] = count_products(jax.make_jaxpr(loss)(state, tokens).jaxpr)
        step = quick(jax.grad(loss)).lower(state, tokens).compile()
        bytes_[remat, scan] = step.memory_analysis().temp_size_in_bytes
        gradients.append(step(state, tokens))
    assert bytes_["full", True] < 0.7 * bytes_["none", True]
    assert products[False] - products[True] == 3 * (products[True] - 1)  # one is the projection
    for other in gradients[1:]:
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        jax.tree.map(close, gradients[0], other)


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_is_close_to_float32(form, encoder, quick):
    """Stated bound: rows differ by at most 3 % of their norm (3 blocks)."""
    tower = encoder(FORMS[form])
    exact, low = (
        quick(lambda t, d=d: tower(t, dtype=jnp.dtype(d)))(texts()) for d in ("float32", "bfloat16")
    )
    assert low.dtype == jnp.bfloat16
    error = np.linalg.norm(np.asarray(low, np.float32) - exact, axis=1)
    assert np.all(error <= 0.03 * np.linalg.norm(exact, axis=1))


def test_published_sizes():
    """Parameters of the released models, without the poolers that nothing here uses."""

    def count(config, vocabulary):
        sizes = {"length": 512, "vocabulary_size": vocabulary, "pad_id": 0, "output": config.width}
        tower = nnx.eval_shape(lambda: Encoder(config, **sizes, rngs=nnx.Rngs(0)))
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(tower)))

    base = {"width": 768, "depth": 12, "heads": 12, "projection": "none"}
    pooler = 768 * 768 + 768
    assert count(EncoderConfig(**base), 30_522) == 109_482_240 - pooler
    roberta = EncoderConfig(**base, position_offset=2, token_types=1, epsilon=1e-5)
    assert count(roberta, 50_265) == 124_645_632 - pooler
    minilm = EncoderConfig(width=384, depth=6, heads=12, projection="none")
    assert count(minilm, 30_522) == 22_713_216 - 384 * 385
    modern = dataclasses.replace(
        MODERN, width=768, depth=22, heads=12, mlp_ratio=1.5, projection="none"
    )
    assert count(modern, 50_368) == 149_014_272 - 0 + 768  # the norm that the first block lacks


def test_configs_are_built_by_kind_and_survive_the_way_to_json():
    text = {
        "kind": "encoder",
        "heads": 2,
        "after_pooling": [{"kind": "dense", "size": 4}, {"kind": "layer_norm"}],
    }
    model = settings.build(TwoTowerConfig, {"text": text})
    assert model.text == EncoderConfig(
        heads=2, after_pooling=(DenseConfig(size=4), LayerNormConfig())
    )
    assert settings.build(TwoTowerConfig, settings.to_dict(model)) == model
    sizes = {"image_size": 16, "text_length": 8, "vocabulary_size": 9, "pad_id": 0}

    def rows():
        towers = TwoTower(model, **sizes, rngs=nnx.Rngs(0))
        assert isinstance(towers.text, Encoder)
        return towers.encode_text(jnp.zeros((3, 8), jnp.int32))

    assert nnx.eval_shape(rows).shape == (3, 128)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"window": -1}, r"text\.window = -1 is negative"),
        ({"window": 2, "global_every": 1}, "every n-th block sees the whole text"),
        ({"positions": "rotary", "position_offset": 2}, "position_offset = 2 is of a learned"),
        ({"positions": "rotary", "width": 6, "heads": 2}, "the heads have 3, an odd number"),
        ({"positions": "rotary", "rotary_base": 0.0}, "rotary_base has to be positive"),
        ({"after_pooling": [{"kind": "dense"}]}, r"after_pooling\[0\] is incomplete"),
        ({"after_pooling": [{"kind": "dense", "size": 0}]}, "size = 0"),
        ({"after_pooling": [{"kind": "layer_norm", "epsilon": 0.0}]}, "epsilon = 0"),
    ],
)
def test_config_errors_name_the_key(change, message):
    with pytest.raises(ConfigError, match=message):
        settings.build(EncoderConfig, change, "config.model.text")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"vocabulary_size": 10}, "vocabulary_size = 10 is configured; the data needs 20"),
        ({"length": 4}, "length = 4 is configured; the data needs 9"),
        ({"projection": "none"}, "width 16 and embedding size 12"),
    ],
)
def test_encoders_that_do_not_fit_the_data(change, message):
    config = dataclasses.replace(BERT, **change)
    with pytest.raises(SizeError, match=message):
        nnx.eval_shape(lambda: Encoder(config, **SIZES, rngs=nnx.Rngs(0)))


def test_texts_that_are_too_long(encoder):
    with pytest.raises(ValueError, match="texts of 10 tokens; the tower reads 9 at most"):
        encoder()(texts((10,), 10), dtype=FLOAT)
