"""Options of the transformer towers: each changes what it says it changes, and nothing else."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive.errors import ConfigError
from contrastive.towers import (
    EncoderConfig,
    TextTransformerConfig,
    TwoTowerConfig,
    VisionTransformer,
    VisionTransformerConfig,
    attend,
    layers,
)
from contrastive.towers.positions import sine_positions
from contrastive.towers.transformer import Attention, Block, Transformer, TransformerConfig
from contrastive.towers.vit import patchify

CONFIG = TransformerConfig(width=16, depth=3, heads=2, mlp_ratio=2.0)
VIT = VisionTransformerConfig(width=16, depth=2, heads=2, mlp_ratio=2.0, patch_size=4)
ALL = dataclasses.replace(
    VIT, pooling="cls", positions="sine", registers=3, qk_norm=True, layer_scale=0.1
)


def sequences(batch=3, length=5, width=16, seed=0):
    x = np.random.default_rng(seed).normal(size=(batch, length, width))
    return jnp.asarray(x, jnp.float32)


def pictures(batch=3, size=16):
    x = np.random.default_rng(0).normal(size=(batch, size, size, 3))
    return jnp.asarray(x, jnp.float32)


@pytest.fixture
def vit(fill):
    def make(config, size=16):
        return fill(lambda: VisionTransformer(config, image_size=size, output=6, rngs=nnx.Rngs(0)))

    return make


# --- qk-norm


def test_qk_norm_against_numpy(fill, quick):
    attention = fill(lambda: Attention(CONFIG, qk_norm=True, rngs=nnx.Rngs(0)))
    f = functools.partial(np.asarray, dtype=np.float64)
    x, kernel, bias = (f(a) for a in (sequences(), attention.qkv[...], attention.qkv_bias[...]))

    def normal(y, norm):
        d = y - y.mean(-1, keepdims=True)
        return d / np.sqrt((d**2).mean(-1, keepdims=True) + CONFIG.epsilon) * f(norm.scale[...])

    wanted = f(attention.out_bias[...])
    for h in range(2):
        q, k, v = (x @ kernel[:, i, h] + bias[i, h] for i in range(3))
        q, k = normal(q, attention.q_norm), normal(k, attention.k_norm)
        scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(8))
        weights = scores / scores.sum(-1, keepdims=True)
        wanted = wanted + weights @ v @ f(attention.out[...])[h]
    np.testing.assert_allclose(quick(attention.__call__)(sequences()), wanted, atol=1e-5)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_qk_norm_bounds_the_scores_whatever_the_kernels_are(qk_norm, fill, quick):
    attention = fill(lambda: Attention(CONFIG, qk_norm=qk_norm, rngs=nnx.Rngs(0)))
    attention.qkv_bias[...] = jnp.zeros_like(attention.qkv_bias[...])
    run = quick(lambda a, x: a(x))
    before = run(attention, sequences())
    attention.qkv[...] = attention.qkv[...].at[:, :2].multiply(100.0)
    same = np.allclose(run(attention, sequences()), before, atol=1e-3)
    assert same == qk_norm


# --- LayerScale


def test_layer_scale_starts_with_almost_nothing_added(fill):
    plain = Block(CONFIG, rngs=nnx.Rngs(0))
    small = Block(dataclasses.replace(CONFIG, layer_scale=1e-6), rngs=nnx.Rngs(0))
    x = sequences()
    assert np.abs(plain(x) - x).max() > 0.1
    assert 0 < np.abs(small(x) - x).max() < 1e-5
    small.after_attention.scale[...] = small.after_mlp.scale[...] = jnp.ones(16)
    np.testing.assert_allclose(small(x), plain(x), atol=1e-6)


# --- Registers


def tokens_by_hand(tower, x):
    """What enters the first block, in NumPy."""
    f, side, width = np.asarray, tower.side, tower.config.width
    tokens = f(patchify(x, 4)) @ f(tower.patches.kernel[...]) + f(tower.patches.bias[...])
    if tower.positions is None:
        tokens = tokens + sine_positions(side, side, width)
        first = 0.0
    else:
        table = f(tower.positions[...])
        tokens = tokens + table[len(table) - side**2 :]
        first = table[: len(table) - side**2]
    parts = [tokens]
    if tower.class_token is not None:
        parts.insert(0, f(tower.class_token[...]) + first)
    if tower.registers is not None:
        parts.append(f(tower.registers[...]))
    wide = [np.broadcast_to(part, (len(x), *part.shape[-2:])) for part in parts]
    return jnp.asarray(np.concatenate(wide, axis=1), jnp.float32)


@pytest.mark.parametrize(
    "pooling, positions", [("mean", "learned"), ("cls", "sine"), ("map", "learned")]
)
def test_registers_are_attended_to_and_not_pooled(pooling, positions, vit, quick):
    config = dataclasses.replace(VIT, pooling=pooling, positions=positions, registers=3)
    tower = vit(config)
    rows = quick(tower.__call__)(pictures())
    y = tower.transformer(tokens_by_hand(tower, pictures()))
    assert y.shape[1] == 16 + (pooling == "cls") + 3
    wanted = tower.projection(tower._pool(tower.norm(y[:, :-3])))
    np.testing.assert_allclose(rows, wanted, atol=2e-5)
    tower.registers[...] = tower.registers[...][:, ::-1]
    assert np.abs(quick(tower.__call__)(pictures()) - rows).max() > 1e-3


# --- Positions


def test_sine_positions():
    table = sine_positions(3, 5, 16)
    assert table.shape == (15, 16)
    frequencies = [10_000.0 ** (-i / 3) for i in range(4)]
    for row in range(3):
        for column in range(5):
            wanted = [
                wave(place * frequency)
                for place in (column, row)
                for wave in (np.sin, np.cos)
                for frequency in frequencies
            ]
            np.testing.assert_allclose(table[5 * row + column], wanted, atol=1e-6)


def test_sine_positions_are_fixed_and_fit_every_size(vit, quick):
    learned, sine = vit(VIT), vit(dataclasses.replace(VIT, positions="sine"))
    names = lambda tower: {path[0] for path, _ in nnx.to_flat_state(nnx.state(tower))}  # noqa: E731
    assert names(learned) - names(sine) == {"positions"}
    graphdef, state = nnx.split(sine)
    large = nnx.eval_shape(lambda: vit_of(dataclasses.replace(VIT, positions="sine"), 32))
    assert jax.tree.map(jnp.shape, nnx.state(large)) == jax.tree.map(jnp.shape, state)
    turned = pictures()[:, ::-1]  # where the patches lie makes a difference
    run = quick(lambda x: nnx.merge(graphdef, state)(x))
    assert np.abs(run(pictures()) - run(turned)).max() > 1e-3


def vit_of(config, size):
    return VisionTransformer(config, image_size=size, output=6, rngs=nnx.Rngs(0))


def test_kept_patches_have_their_own_sine_positions(vit, quick):
    tower = vit(dataclasses.replace(ALL, keep_patches=0.5))
    keys = layers.row_keys(jax.random.key(0), pictures())
    seen = quick(lambda x, keys: tower(x, keys=keys))(pictures(), keys)
    whole = quick(tower.__call__)(pictures())
    assert np.abs(seen - whole).max() > 1e-3
    every = vit(dataclasses.replace(ALL, keep_patches=1.0))
    np.testing.assert_allclose(quick(every.__call__)(pictures()), whole, atol=1e-6)


# --- All of them


def test_every_parameter_of_the_options_learns(vit, quick):
    tower = vit(ALL)
    graphdef, state = nnx.split(tower)
    gradient = quick(jax.grad(lambda s: jnp.sum(nnx.merge(graphdef, s)(pictures()) ** 2)))(state)
    names = {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(gradient)}
    assert names["registers"].shape == (3, 16)
    assert names["transformer/blocks/after_mlp/scale"].shape == (2, 16)
    assert names["transformer/blocks/attention/q_norm/scale"].shape == (2, 8)
    for name, leaf in names.items():
        assert np.all(np.isfinite(leaf)), name
        assert np.any(leaf), name


def test_bfloat16_of_the_options_is_close_to_float32(vit, quick):
    """Stated bound: 3 % of the norm of a row."""
    tower = vit(ALL)
    exact = np.asarray(quick(tower.__call__)(pictures()))
    low = quick(tower.__call__)(pictures().astype(jnp.bfloat16))
    assert low.dtype == jnp.bfloat16
    error = np.linalg.norm(np.asarray(low, np.float32) - exact, axis=1)
    assert np.all(error <= 0.03 * np.linalg.norm(exact, axis=1))


# --- Scan


@pytest.mark.parametrize("remat", ["none", "full"])
def test_without_a_scan_the_program_has_every_block(remat, fill, quick, count_products):
    x, found = sequences(), {}
    for scan in (True, False):
        config = dataclasses.replace(CONFIG, scan=scan, remat=remat)
        graphdef, state = nnx.split(fill(lambda c=config: Transformer(c, rngs=nnx.Rngs(0))))

        def loss(state, x, graphdef=graphdef):
            return jnp.sum(jnp.sin(nnx.merge(graphdef, state)(x)))

        products = count_products(jax.make_jaxpr(loss)(state, x).jaxpr)
        found[scan] = products, quick(jax.value_and_grad(loss))(state, x)
    assert found[False][0] == CONFIG.depth * found[True][0]
    compare = functools.partial(np.testing.assert_allclose, atol=2e-5)
    jax.tree.map(compare, found[True][1], found[False][1])


# --- Flash attention


@pytest.fixture
def cudnn(monkeypatch):
    """As if JAX had been installed with cuDNN: programs for a GPU can then be lowered here."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(attend, "has_flash", lambda: True)
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_is_what_a_gpu_runs(causal, cudnn):
    """Forward and backward call cuDNN on a GPU, and hold no matrix of weights; on other platforms
    the program is XLA's."""
    q = jnp.ones((2, 7, 4, 16), jnp.bfloat16)
    mask = jnp.ones((2, 1, 7), bool)

    def program(kind, platform):
        def loss(q, k, v):
            y = attend.attend(q, k, v, mask=mask, causal=causal, kind=kind)
            return jnp.sum(y.astype(jnp.float32))

        with jax.numpy_dtype_promotion("standard"):  # JAX's own lowering mixes dtypes
            traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, q, q)
            return traced.lower(lowering_platforms=(platform,)).as_text()

    flash = program("flash", "cuda")
    assert "@__cudnn$fmhaScaleBiasSoftmaxBackward(" in flash
    assert flash.count("@__cudnn$fmha") == 2
    assert "dot_general" not in flash
    for kind, platform in (("flash", "cpu"), ("xla", "cuda")):
        text = program(kind, platform)
        assert "cudnn$fmha" not in text
        assert "dot_general" in text


def test_flash_elsewhere_is_the_same_attention(cudnn, quick):
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 7, 2, 8)), jnp.bfloat16) for _ in range(3))
    mask = jnp.asarray(rng.random((2, 1, 7)) < 0.7)

    def run(kind):
        return quick(lambda *qkv: attend.attend(*qkv, mask=mask, kind=kind))(q, k, v)

    np.testing.assert_array_equal(*(np.asarray(run(k), np.float32) for k in ("flash", "xla")))


def test_what_flash_cannot_do_is_said():
    with pytest.raises(ConfigError, match=r"width / heads is 12"):
        dataclasses.replace(CONFIG, width=24, attention="flash")
    flash = TextTransformerConfig(width=16, heads=2, attention="flash")
    with pytest.raises(ConfigError, match=r"text.attention = 'flash' computes in bfloat16"):
        TwoTowerConfig(text=flash)
    assert TwoTowerConfig(text=flash, dtype="bfloat16").text == flash


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: dataclasses.replace(VIT, registers=-1), "registers = -1 cannot be negative"),
        (lambda: dataclasses.replace(VIT, layer_scale=0.0), "layer_scale = 0.0 has to be positive"),
        (lambda: dataclasses.replace(VIT, width=18, positions="sine"), "multiple of 4, not 18"),
        (lambda: EncoderConfig(layer_scale=0.1), "layer_scale = 0.1 is for pre-norm towers"),
    ],
)
def test_contradictions(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
