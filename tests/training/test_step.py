"""The update: what frozen parameters save, and what accumulation does to the moving average."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from contrastive.objectives import LossConfig, make_objective
from contrastive.towers import TextTransformerConfig, TwoTower, TwoTowerConfig
from contrastive.towers.convnet import ConvTowerConfig
from contrastive.training.optimizer import (
    OptimizerConfig,
    freezes,
    frozen_mask,
    make_optimizer,
)
from contrastive.training.state import TrainState
from contrastive.training.step import make_train_step

CONFIG = TwoTowerConfig(
    image=ConvTowerConfig(widths=(4, 8)),
    text=TextTransformerConfig(width=8, heads=2, depth=1),
    embedding_dim=8,
)


@functools.cache
def parameters():
    def draw(key):
        towers = TwoTower(
            CONFIG, image_size=8, text_length=6, vocabulary_size=20, pad_id=0, rngs=nnx.Rngs(key)
        )
        return nnx.split(towers)[1]

    towers = nnx.eval_shape(
        lambda: TwoTower(
            CONFIG, image_size=8, text_length=6, vocabulary_size=20, pad_id=0, rngs=nnx.Rngs(0)
        )
    )
    return nnx.graphdef(towers), jax.jit(draw)(jax.random.key(0))


def prepare(config, average_decay=None):
    """A step and its arguments."""
    graphdef, drawn = parameters()
    optimizer = make_optimizer(config, lambda step: jnp.float32(0.1), max_scale=100.0)
    step = make_train_step(
        graphdef,
        make_objective(LossConfig()),
        optimizer,
        seed=0,
        average_decay=average_decay,
        frozen=functools.partial(frozen_mask, config) if freezes(config) else None,
        accumulate=config.accumulate,
    )
    rng = np.random.default_rng(0)
    batch = {
        "image": jnp.asarray(rng.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)),
        "text": jnp.asarray(rng.integers(1, 20, (4, 6), dtype=np.int32)),
        "id": jnp.arange(4, dtype=jnp.int32),
    }
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        parameters=jax.tree.map(jnp.copy, drawn),
        optimizer=optimizer.init(drawn),
        average=None if average_decay is None else jax.tree.map(jnp.copy, drawn),
    )
    return step, state, batch


def test_nothing_is_computed_for_the_gradients_of_a_frozen_tower(count_products):
    counts = {}
    for name, patterns in {"none": (), "image": (("image/.*", None),)}.items():
        step, state, batch = prepare(OptimizerConfig(multipliers=patterns))
        counts[name] = count_products(step.trace(state, batch).jaxpr)
    # The image tower has three products: two stages and the projection. Their backward pass has a
    # product for each kernel (3) and one for each input but the pixels (2), and that of the loss
    # has one for the images' rows (1).
    assert counts["none"] - counts["image"] == 6


def test_the_moving_average_moves_with_real_updates_only():
    step, state, batch = prepare(OptimizerConfig(name="sgd", accumulate=2), average_decay=0.9)
    before = np.asarray(state.average["text"]["tokens"][...])
    state, _ = step(state, batch)
    np.testing.assert_array_equal(state.average["text"]["tokens"][...], before)
    np.testing.assert_array_equal(state.parameters["text"]["tokens"][...], before)
    state, _ = step(state, batch)
    moved = np.asarray(state.parameters["text"]["tokens"][...])
    assert np.abs(moved - before).max() > 1e-4
    average = np.asarray(state.average["text"]["tokens"][...])
    np.testing.assert_allclose(
        average, 0.1 * before + 0.9 * moved, rtol=1e-5
    )  # decay 1/10 at first
