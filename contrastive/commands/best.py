"""``config.checkpoint.best`` is looked for among what the run will measure, before its first step.

Both kinds of numbers are known by then: those of a step from its trace, those of an evaluation from
one on the run's own sets, with rows that no model made.
"""

from typing import Any

import jax
import numpy as np

from contrastive.evaluation.suite import EvaluationSettings, evaluate
from contrastive.mesh import Devices
from contrastive.recipe import Recipe
from contrastive.training.checkpoint import EVALUATED, not_measured
from contrastive.training.loop import TIMES
from contrastive.training.state import TrainState
from contrastive.training.step import TrainStep

_DIM = 8


def check_best(step: TrainStep, recipe: Recipe, scale: float | None, devices: Devices) -> TrainStep:
    """The step, which compares its numbers with ``config.checkpoint.best`` before it is done first.

    Args:
      step: The compiled update.
      recipe: The run's settings.
      scale: The model's, where it has one: a measure depends on it.
      devices: The mesh's.

    Raises:
      ConfigError: At once, or from the first step: no number has that name; the nearest are named.
    """
    best = recipe.checkpoint.best
    assert best is not None
    if best.startswith(EVALUATED):
        known = evaluation_names(recipe, scale, devices)
        if best not in known:
            raise not_measured(best, known)
        return step
    looked = False

    def first(state: TrainState, batch: dict[str, jax.Array]) -> Any:
        nonlocal looked
        if not looked:
            known = [*jax.eval_shape(step, state, batch)[1], *TIMES]
            if best not in known:
                evaluated = evaluation_names(recipe, scale, devices) if recipe.eval.every else []
                raise not_measured(best, known, evaluated)
            looked = True
        return step(state, batch)

    return first


def evaluation_names(
    recipe: EvaluationSettings, scale: float | None, devices: Devices
) -> list[str]:
    """The numbers of an evaluation during the run, as the checkpoints know them."""
    found = evaluate(_Rows(scale), recipe, quick=True, devices=devices)
    return [f"{EVALUATED}{name}" for name, value in found.items() if isinstance(value, float)]


class _Rows:
    """An encoder without a model: unit rows, as many as there are inputs."""

    def __init__(self, scale: float | None) -> None:
        self.scale = scale

    def encode_image(self, images: Any) -> np.ndarray:
        rows = np.random.default_rng(0).normal(size=(len(images), _DIM)).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def encode_text(self, texts: Any, *, role: Any = "query") -> np.ndarray:
        return self.encode_image(texts)

    def untrained(self, seed: int) -> "_Rows":
        return self
