"""The optimizer chain: schedule, decay by name, and the limit of the scale after the update."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from contrastive.errors import ConfigError
from contrastive.recipe import load_recipe
from contrastive.temperature import path_names
from contrastive.towers.text import TextTransformer, TextTransformerConfig
from contrastive.training import rules
from contrastive.training.optimizer import (
    OptimizerConfig,
    decay_mask,
    frozen_mask,
    layer_counts,
    make_optimizer,
    make_schedule,
)

PARAMETERS = {
    "text": {"embedding": jnp.ones((4, 3)), "norm": {"scale": jnp.ones((2, 3))}},
    "image": {"dense": {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)}},
    "log_scale": jnp.float32(4.6),
}


def update(config, gradient, *, max_scale=100.0, steps=1):
    chain = make_optimizer(
        config, lambda step: jnp.float32(config.learning_rate), max_scale=max_scale
    )
    parameters, state = PARAMETERS, chain.init(PARAMETERS)
    for _ in range(steps):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = chain.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


def ones(size=1.0):
    return jax.tree.map(lambda x: jnp.full_like(x, size), PARAMETERS)


def init(config):
    chain = make_optimizer(config, lambda step: jnp.float32(0.1), max_scale=100.0)
    return chain.init(PARAMETERS)


def zeros():
    return jax.tree.map(jnp.zeros_like, PARAMETERS)


def test_schedule_warms_up_peaks_and_ends():
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=10, final_learning_rate=0.5)
    schedule = make_schedule(config, 100)
    rates = [float(schedule(step)) for step in (0, 5, 10, 55, 100)]
    np.testing.assert_allclose(rates, [0.0, 1.0, 2.0, 1.25, 0.5], rtol=1e-6)


def test_a_run_shorter_than_its_warm_up_ends_inside_it():
    schedule = make_schedule(OptimizerConfig(learning_rate=2.0, warmup_steps=10), 5)
    np.testing.assert_allclose([float(schedule(s)) for s in (0, 5)], [0.0, 1.0], rtol=1e-6)


def test_only_matrices_decay():
    assert decay_mask(PARAMETERS) == {
        "text": {"embedding": True, "norm": {"scale": False}},
        "image": {"dense": {"kernel": True, "bias": False}},
        "log_scale": False,
    }
    after = update(OptimizerConfig(learning_rate=0.5, weight_decay=0.1), zeros())
    np.testing.assert_allclose(after["image"]["dense"]["kernel"], 0.95, rtol=1e-6)
    np.testing.assert_array_equal(after["text"]["norm"]["scale"], 1.0)
    assert float(after["log_scale"]) == np.float32(4.6)


def test_A14_the_limit_of_the_scale_holds_after_the_update():
    gradient = zeros() | {"log_scale": jnp.float32(-0.1)}
    config = OptimizerConfig(learning_rate=0.5)
    limited = update(config, gradient, steps=3)["log_scale"]
    assert abs(float(limited) - 4.6051702) < 1e-6
    assert float(update(config, gradient, max_scale=None, steps=3)["log_scale"]) > 5.0


def test_clip_norm_bounds_the_gradient():
    # AdamW rescales, so the bound shows in the moments: two entries of one size stay equal, and
    # a gradient of norm 1e6 moves the parameters as one of norm 1 does.
    large = jax.tree.map(lambda x: 1e6 * jnp.ones_like(x), PARAMETERS)
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.0, eps=1.0)
    clipped = update(config, large)["image"]["dense"]["bias"]
    free = update(
        OptimizerConfig(learning_rate=0.1, weight_decay=0.0, eps=1.0, clip_norm=None), large
    )
    assert float(jnp.abs(clipped - 1.0).max()) < 0.03
    np.testing.assert_allclose(free["image"]["dense"]["bias"], 0.9, rtol=1e-4)


@pytest.mark.parametrize(
    "field",
    [
        {"learning_rate": 0.0},
        {"b1": 1.0},
        {"weight_decay": -1.0},
        {"clip_norm": 0.0},
        {"accumulate": 0},
        {"layer_decay": 1.5},
        {"multipliers": (("(", 1.0),)},
        {"multipliers": (("image/.*", -1.0),)},
        {"b2": 0.9, "name": "sgd"},
        {"eps": 1e-6, "name": "lion"},
        {"mu_dtype": "bfloat16", "name": "sgd", "b1": 0.0},
        {"schedule": "wsd"},
        {"schedule": "constant", "cooldown_steps": 5},
        {"schedule": "constant", "final_learning_rate": 0.1},
        {"final_learning_rate": 0.1, "learning_rate": 0.01},
        {"schedule": "cosine", "timescale_steps": 5},
        {"schedule": "reciprocal_sqrt", "warmup_steps": 0},
    ],
)
def test_impossible_values_are_refused(field):
    with pytest.raises(ConfigError, match=f"config.optimizer.{next(iter(field))}"):
        OptimizerConfig(**field)


# One step without decay and clipping, gradient 2 everywhere: what each rule makes of it.
FIRST_STEP = {
    "adamw": 0.1,  # the sign
    "lion": 0.1,
    "sgd": 0.2,  # the gradient
    "lamb": 0.1,  # the norm of the parameter, one an entry
    "adafactor": 0.1 * 0.1,  # the sign, in an average that starts at zero
}


@pytest.mark.parametrize("name", FIRST_STEP)
def test_each_rule_takes_its_own_first_step(name):
    config = OptimizerConfig(name=name, learning_rate=0.1, weight_decay=0.0, clip_norm=None)
    after = update(config, ones(2.0))["image"]["dense"]["kernel"]
    np.testing.assert_allclose(1.0 - after, FIRST_STEP[name], rtol=1e-4)


def unrolled(parameters):
    """Stacked layers as one entry a layer, everything else as it is."""
    flat = {}
    for path, x in jax.tree_util.tree_leaves_with_path(parameters):
        names = path_names(path)
        if "blocks" not in names:
            flat["/".join(names)] = x
            continue
        for i in range(x.shape[0]):
            flat["/".join(f"block{i}" if name == "blocks" else name for name in names)] = x[i]
    return flat


@functools.cache
def tower_with_layers():
    config = TextTransformerConfig(width=160, heads=2, depth=3, mlp_ratio=1.0)
    tower = nnx.eval_shape(
        lambda: TextTransformer(
            config, length=4, vocabulary_size=20, pad_id=0, output=8, rngs=nnx.Rngs(0)
        )
    )
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        x = rng.normal(size=leaf.shape)
        if "blocks" in path_names(path):  # layers of very different size
            x *= np.array([0.01, 1.0, 30.0]).reshape(-1, *[1] * (x.ndim - 1))
        return jnp.asarray(x, jnp.float32)

    shapes = nnx.state(tower, nnx.Param)
    return [jax.tree_util.tree_map_with_path(draw, shapes) for _ in range(3)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("lamb", "adafactor") else pytest.mark.slow)
        for name in rules.DEFAULTS
    ],
)
def test_layers_stacked_for_a_scan_move_as_layers_by_themselves(name):
    config = OptimizerConfig(name=name, learning_rate=0.1, weight_decay=0.3)

    def steps(parameters, *gradients):
        chain = make_optimizer(config, lambda step: jnp.float32(0.1), max_scale=None)
        state = chain.init(parameters)
        with jax.numpy_dtype_promotion("standard"):
            for gradient in gradients:
                updates, state = jax.jit(chain.update)(gradient, state, parameters)
                parameters = optax.apply_updates(parameters, updates)
        return parameters

    stacked = tower_with_layers()
    found = unrolled(steps(*stacked))
    wanted = steps(*map(unrolled, stacked))
    assert any("block2/" in name for name in wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_muon_makes_updates_of_matrices_orthogonal_and_leaves_the_rest_to_adam():
    rng = np.random.default_rng(0)
    shapes = {"kernel": (2, 24, 8), "qkv": (2, 8, 3, 2, 4), "out": (2, 2, 4, 8)}
    inside = {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}
    parameters = {"image": {"blocks": inside, "patches": {"kernel": jnp.ones((12, 8))}}}
    config = OptimizerConfig(name="muon", learning_rate=1.0, weight_decay=0.0, clip_norm=None)
    chain = make_optimizer(config, lambda step: jnp.float32(1.0), max_scale=None)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = chain.update(parameters, chain.init(parameters), parameters)
    matrices = {
        "kernel": np.asarray(updates["image"]["blocks"]["kernel"]),
        "qkv": np.moveaxis(updates["image"]["blocks"]["qkv"], 2, 1).reshape(6, 8, 8),
        "out": np.reshape(updates["image"]["blocks"]["out"], (2, 8, 8)),
    }
    for name, stack in matrices.items():
        for matrix in stack:
            sides = np.linalg.svd(matrix, compute_uv=False) / (0.2 * np.sqrt(max(matrix.shape)))
            assert (sides > 0.5).all(), (name, sides)
            assert (sides < 1.3).all(), (name, sides)
    np.testing.assert_allclose(updates["image"]["patches"]["kernel"], -1.0, rtol=1e-4)  # Adam


@pytest.mark.parametrize("name", rules.DEFAULTS)
def test_A14_the_limit_holds_under_every_rule(name):
    config = OptimizerConfig(name=name, learning_rate=1.0)
    after = update(config, ones(-1.0), steps=3)["log_scale"]
    assert abs(float(after) - 4.6051702) < 1e-6


@pytest.mark.parametrize("name", rules.DEFAULTS)
def test_the_first_moment_is_stored_in_bfloat16_where_asked(name):
    def bytes_of(**more):
        return sum(x.nbytes for x in jax.tree.leaves(init(OptimizerConfig(name=name, **more))))

    count = sum(x.size for x in jax.tree.leaves(PARAMETERS))
    assert bytes_of() - bytes_of(mu_dtype="bfloat16") == 2 * count


def test_adafactor_holds_rows_and_columns_instead_of_matrices():
    parameters = {"kernel": jnp.ones((256, 512))}

    def size(name):
        chain = make_optimizer(
            OptimizerConfig(name=name, b1=0.0), lambda step: jnp.float32(1.0), max_scale=None
        )
        return sum(x.size for x in jax.tree.leaves(chain.init(parameters)))

    assert size("adafactor") < 256 + 512 + 10
    assert size("adamw") > 2 * 256 * 512


@pytest.mark.parametrize("decay", ["b1", "b2"])
def test_the_decays_of_the_moments_act(decay):
    def after(**more):
        config = OptimizerConfig(learning_rate=0.1, clip_norm=None, **more)
        chain = make_optimizer(config, lambda step: jnp.float32(0.1), max_scale=None)
        state, parameters = chain.init(PARAMETERS), PARAMETERS
        for size in (1.0, 5.0):
            with jax.numpy_dtype_promotion("standard"):
                updates, state = chain.update(ones(size), state, parameters)
            parameters = optax.apply_updates(parameters, updates)
        return float(parameters["image"]["dense"]["bias"][0])

    assert abs(after() - after(**{decay: 0.5})) > 1e-3


SCHEDULES = {
    "constant": ({}, [0.0, 1.0, 2.0, 2.0, 2.0]),
    "wsd": (
        {"cooldown_steps": 40, "final_learning_rate": 0.4},
        [0.0, 1.0, 2.0, 2.0, 1.2],
    ),
    "reciprocal_sqrt": ({}, [0.0, 1.0, 2.0, 2.0 * (10 / 55) ** 0.5, 2.0 * (10 / 80) ** 0.5]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_follow_their_formulas(name):
    more, wanted = SCHEDULES[name]
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=10, schedule=name, **more)
    schedule = make_schedule(config, 100)
    rates = [float(schedule(step)) for step in (0, 5, 10, 55, 80)]
    np.testing.assert_allclose(rates, wanted, rtol=1e-6)


def test_the_cooldown_goes_on_from_where_the_square_root_is():
    config = OptimizerConfig(
        learning_rate=2.0, warmup_steps=10, schedule="reciprocal_sqrt", timescale_steps=30,
        cooldown_steps=20,
    )  # fmt: skip
    schedule = make_schedule(config, 100)
    before = 2.0 * (30 / 100) ** 0.5
    np.testing.assert_allclose([float(schedule(s)) for s in (80, 90, 100)], [before, before / 2, 0])
    with pytest.raises(ConfigError, match="cooldown_steps = 20"):
        make_schedule(config, 30)


def test_multipliers_scale_and_freeze_by_name():
    config = OptimizerConfig(
        learning_rate=0.1, weight_decay=0.0, clip_norm=None,
        multipliers=(("image/.*/bias", 0.5), ("image/.*", None), ("log_scale", 0.1)),
    )  # fmt: skip
    after = update(config, ones(-1.0), max_scale=None)
    moved = jax.tree.map(lambda a, b: float(jnp.max(a - b)), after, PARAMETERS)
    assert moved["image"]["dense"]["kernel"] == 0.0
    assert moved["image"]["dense"]["bias"] == pytest.approx(0.05, rel=1e-3)
    assert moved["log_scale"] == pytest.approx(0.01, rel=1e-2)
    assert moved["text"]["embedding"] == pytest.approx(0.1, rel=1e-3)
    assert frozen_mask(config, PARAMETERS)["image"]["dense"] == {"kernel": True, "bias": False}


def test_frozen_parameters_keep_no_moments_and_do_not_count_in_the_norm():
    frozen = OptimizerConfig(name="sgd", learning_rate=1.0, weight_decay=0.5, clip_norm=1.0,
                             multipliers=(("(image|text)/.*", 0.0),))  # fmt: skip
    after = update(frozen, ones(1e3), max_scale=None)
    np.testing.assert_array_equal(after["image"]["dense"]["kernel"], 1.0)  # nor do they decay
    assert float(after["log_scale"]) == pytest.approx(3.6, rel=1e-5)  # the whole norm is its own
    assert sum(x.size for x in jax.tree.leaves(init(frozen))) < 5


def test_nothing_can_learn_is_refused():
    config = OptimizerConfig(multipliers=(("(image|text)/.*", None), ("log_scale", 0.0)))
    with pytest.raises(ConfigError, match="freezes every parameter"):
        init(config)


def test_a_pattern_that_matches_nothing_lists_the_names():
    for patterns in ((("vision/.*", None),), (("vision/.*", 0.5),), ((".*", 2.0), ("log.*", 3.0))):
        with pytest.raises(ConfigError, match=r"matches no parameter.*image/dense/kernel"):
            init(OptimizerConfig(multipliers=patterns))


def test_layer_decay_slows_the_layers_near_the_input():
    parameters = {
        "image": {
            "patches": {"kernel": jnp.ones((2, 2))},
            "transformer": {"blocks": {"mlp": {"kernel": jnp.ones((3, 2, 2))}}},
            "projection": {"kernel": jnp.ones((2, 2))},
        },
        "text": {
            "token_types": jnp.ones((2, 2)),
            "norm_before": {"scale": jnp.ones(2)},
            "blocks": {"mlp": {"kernel": jnp.ones((2, 2, 2))}},
            "after_pooling": {"kernel": jnp.ones((2, 2))},
        },
        "log_scale": jnp.float32(1.0),
    }
    assert layer_counts(parameters) == {"image": 3, "text": 2}
    config = OptimizerConfig(
        name="sgd", b1=0.0, learning_rate=1.0, weight_decay=0.0, clip_norm=None, layer_decay=0.5
    )
    chain = make_optimizer(config, lambda step: jnp.float32(1.0), max_scale=None)
    gradient = jax.tree.map(jnp.ones_like, parameters)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = chain.update(gradient, chain.init(parameters), parameters)
    blocks = updates["image"]["transformer"]["blocks"]["mlp"]["kernel"][:, 0, 0]
    np.testing.assert_allclose(blocks, [-0.125, -0.25, -0.5])
    assert float(updates["image"]["patches"]["kernel"][0, 0]) == -0.0625
    assert float(updates["image"]["projection"]["kernel"][0, 0]) == -1.0
    assert float(updates["log_scale"]) == -1.0
    text = [float(leaf.ravel()[0]) for leaf in jax.tree.leaves(updates["text"])]
    assert text == [-1.0, -0.25, -0.125, -0.125]  # after_pooling, blocks, norm_before, token_types


def test_A14_accumulation_averages_clips_and_limits_at_real_updates_only():
    config = OptimizerConfig(name="sgd", b1=0.0, learning_rate=1.0, weight_decay=0.0,
                             clip_norm=1e9, accumulate=2)  # fmt: skip
    chain = make_optimizer(config, lambda step: jnp.float32(1.0), max_scale=100.0)
    state, parameters, seen = chain.init(PARAMETERS), PARAMETERS, []
    for size in (-1.0, -3.0, 0.5, 0.5):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = chain.update(ones(size), state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        seen.append(
            (float(parameters["image"]["dense"]["bias"][0]), float(parameters["log_scale"]))
        )
    assert [s[0] for s in seen] == [1.0, 3.0, 3.0, 2.5]
    limit = 4.6051697
    np.testing.assert_allclose([s[1] for s in seen], [4.6, limit, limit, limit - 0.5], rtol=1e-6)


def test_accumulation_reads_the_schedule_by_batches():
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=8, accumulate=4)
    rates = [float(make_schedule(config, 100)(step)) for step in range(9)]
    np.testing.assert_allclose(rates, [0.0] * 4 + [1.0] * 4 + [2.0])


def test_the_command_line_sets_groups():
    recipe = load_recipe(
        str(pathlib.Path(__file__).parents[2] / "configs" / "emoji.py:clip"),
        ["--config.optimizer.name=sgd", "--config.optimizer.multipliers=(('image/.*', None),)"],
    )
    assert recipe.optimizer.multipliers == (("image/.*", None),)
    assert recipe.optimizer.moment("b1") == 0.9
