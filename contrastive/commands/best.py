"""``config.checkpoint.best`` is looked for among what the run will measure, before its first step.

Both kinds of numbers are known by then: those of a step from its trace, those of an evaluation from
one on the run's own sets, with rows that no model made.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from contrastive.errors import ConfigError
from contrastive.evaluation.suite import EvaluationSettings, evaluate
from contrastive.mesh import Devices
from contrastive.recipe import Recipe
from contrastive.training.checkpoint import EVALUATED
from contrastive.training.loop import TIMES
from contrastive.training.state import TrainState
from contrastive.training.step import TrainStep

_DIM = 8  # of the rows that no model made
_LISTED = 40  # names in a refusal


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
            raise _not_measured(best, known)
        return step
    looked = False

    def first(state: TrainState, batch: dict[str, jax.Array]) -> Any:
        nonlocal looked
        if not looked:
            known = [*jax.eval_shape(step, state, batch)[1], *TIMES]
            if best not in known:
                evaluated = evaluation_names(recipe, scale, devices) if recipe.eval.every else []
                raise _not_measured(best, known, evaluated)
            looked = True
        return step(state, batch)

    return first


def evaluation_names(
    recipe: EvaluationSettings, scale: float | None, devices: Devices
) -> list[str]:
    """The numbers of an evaluation during the run, as the checkpoints know them."""
    rows = _Rows(scale, labels=len(recipe.data.fields.labels))
    return list(evaluation_numbers(evaluate(rows, recipe, quick=True, devices=devices)))


def evaluation_numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """What of the results of an evaluation the logs and the checkpoints get."""
    return {f"{EVALUATED}{name}": x for name, x in results.items() if isinstance(x, float)}


def _not_measured(best: str, known: Sequence[str], others: Sequence[str] = ()) -> ConfigError:
    """The refusal of a ``config.checkpoint.best`` that is not among the numbers of a run.

    Args:
      best: As given.
      known: Numbers of its kind.
      others: Of the other kind, which may have been meant.
    """
    near = [name for name in others if name.endswith(f"/{best}")][:3]
    near = near or difflib.get_close_matches(best, [*known, *others], n=3, cutoff=0.5)
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return ConfigError(
        f"config.checkpoint.best = {best!r} is not measured"
        + (f"; did you mean {' or '.join(near)}? Known" if near else "; known")
        + f" are {', '.join(sorted(known)[:_LISTED])}{more}."
    )


class _Rows:
    """An encoder without a model: unit rows, and judgements, as many as there are inputs."""

    def __init__(self, scale: float | None, *, labels: int) -> None:
        self.scale, self._labels = scale, labels

    def encode_image(self, images: Any) -> np.ndarray:
        rows = np.random.default_rng(0).normal(size=(len(images), _DIM)).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def encode_text(self, texts: Any, *, role: Any = "query") -> np.ndarray:
        return self.encode_image(texts)

    def judge(self, queries: Sequence[str], passages: Sequence[str]) -> np.ndarray:
        return np.zeros((len(queries), max(self._labels, 1)), np.float32)

    def untrained(self, seed: int) -> "_Rows":
        return self
