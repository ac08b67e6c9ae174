"""From a recipe to the program that trains it: the one place where the rooms are put together, so
that ``contrastive train`` runs what ``contrastive plan`` has compiled."""

import dataclasses
import functools
from typing import Any

import optax
from flax import nnx
from jax.sharding import Mesh

from contrastive.objectives import (
    Momentum,
    Objective,
    make_objective,
    make_partition,
    scale_limit,
)
from contrastive.recipe import Recipe
from contrastive.towers import TwoTower
from contrastive.training.optimizer import (
    freezes,
    frozen_mask,
    make_optimizer,
    make_schedule,
)
from contrastive.training.step import TrainStep, make_train_step


@dataclasses.dataclass(frozen=True)
class Program:
    """What a run is made of, apart from its data and its state."""

    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    objective: Objective
    momentum: Momentum | None
    recipe: Recipe

    def step(self, graphdef: nnx.GraphDef[TwoTower]) -> TrainStep:
        """The compiled update."""
        config = self.recipe.optimizer
        return make_train_step(
            graphdef,
            self.objective,
            self.optimizer,
            seed=self.recipe.seed,
            average_decay=self.recipe.average_decay,
            schedule=self.schedule,
            frozen=functools.partial(frozen_mask, config) if freezes(config) else None,
            accumulate=config.accumulate,
            momentum=self.momentum,
        )

    @property
    def averages(self) -> bool:
        """Whether the state holds a moving average."""
        return self.recipe.average_decay is not None


def make_program(recipe: Recipe, mesh: Mesh) -> Program:
    """Schedule, optimizer and objective of a recipe on a mesh.

    Raises:
      ConfigError: The recipe contradicts itself.
    """
    recipe.model.check_towers(recipe.data.pairs)
    schedule: Any = make_schedule(recipe.optimizer, recipe.total_steps)
    return Program(
        schedule=schedule,
        optimizer=make_optimizer(recipe.optimizer, schedule, max_scale=scale_limit(recipe.loss)),
        objective=make_objective(
            recipe.loss,
            make_partition(recipe.loss, mesh),
            pairs=recipe.data.pairs,
            microbatches=recipe.train.microbatches,
            momentum=recipe.momentum,
        ),
        momentum=_momentum(recipe),
        recipe=recipe,
    )


def _momentum(recipe: Recipe) -> Momentum | None:
    if not recipe.momentum.on:
        return None
    model = recipe.model
    return Momentum(
        config=recipe.momentum,
        pairs=recipe.data.pairs,
        dim=(model.head.output if model.head.layers else 0) or model.embedding_dim,
        batch_size=recipe.batch_size,
        total_steps=recipe.total_steps,
        microbatches=recipe.train.microbatches,
    )
