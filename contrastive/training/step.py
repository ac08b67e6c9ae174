"""One update: momentum encoder, loss, gradient, optimizer, moving average. Pure, jitted, with
donated state."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from contrastive.objectives import Momentum, Objective
from contrastive.towers import TwoTower
from contrastive.towers.statistics import moved, taken_out
from contrastive.training.state import TrainState

Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, dict[str, jax.Array]], tuple[TrainState, Metrics]]


def make_train_step(
    graphdef: nnx.GraphDef[TwoTower],
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    average_decay: float | None,
    schedule: optax.Schedule | None = None,
    frozen: Callable[[Any], Any] | None = None,
    accumulate: int = 1,
    momentum: Momentum | None = None,
) -> TrainStep:
    """The compiled update ``(state, batch) -> (state, metrics)``; the old state is donated.

    Randomness (dropout) is a function of (seed, step) on global shapes, so it does not depend on
    the number of devices. The moving average warms up: its decay at step t is
    ``min(average_decay, (1 + t) / (10 + t))``, counted in updates.

    Args:
      graphdef: To be merged with the parameters.
      objective: Loss and metrics of a model and a batch.
      optimizer: The whole chain.
      seed: Of the randomness inside the step.
      average_decay: Of the moving average; None: none is kept.
      schedule: Learning rate by batches done, for the metrics. (Computed here and not by the host,
        whose own small programs would wait in the devices' queue behind the next step.)
      frozen: ``frozen(parameters)`` is True for those that do not learn: nothing is computed for
        their gradients, and their moving average stays where it is.
      accumulate: Batches to an update, as in the optimizer.
      momentum: Of a momentum encoder, which moves first and then makes the keys.
    """

    def loss_of(parameters: Any, batch: dict[str, jax.Array], key: jax.Array) -> Any:
        if frozen is not None:
            parameters = jax.tree.map(
                lambda p, f: jax.lax.stop_gradient(p) if f else p, parameters, frozen(parameters)
            )
        return objective(nnx.merge(graphdef, parameters), batch, key)

    def step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        memory = state.memory
        if momentum is not None:
            memory = momentum.follow(memory, state.parameters, state.step)
            batch = momentum.keys(graphdef, memory, batch, key)
        (loss, metrics), gradient = jax.value_and_grad(loss_of, has_aux=True)(
            state.parameters, batch, key
        )
        gradient, moves = taken_out(gradient)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            updates, moments = optimizer.update(gradient, state.optimizer, state.parameters)
            if schedule is not None:
                metrics["learning_rate"] = jnp.asarray(schedule(state.step), jnp.float32)
        parameters = moved(optax.apply_updates(state.parameters, updates), moves)
        average = state.average
        if average_decay is not None:
            t = (state.step // accumulate).astype(jnp.float32)
            decay = jnp.minimum(average_decay, (1.0 + t) / (10.0 + t))
            if accumulate > 1:
                decay = jnp.where((state.step + 1) % accumulate == 0, decay, 1.0)
            average = _moved(average, parameters, decay, frozen)
        if momentum is not None:
            memory = momentum.store(memory, batch, state.step)
            metrics["momentum"] = momentum.decay(state.step)
        metrics = {"loss": loss, **metrics, "gradient_norm": optax.tree.norm(gradient)}
        state = dataclasses.replace(
            state,
            step=state.step + 1,
            parameters=parameters,
            optimizer=moments,
            average=average,
            memory=memory,
        )
        return state, metrics

    return jax.jit(step, donate_argnums=0)


def _moved(average: Any, parameters: Any, decay: Any, frozen: Callable[[Any], Any] | None) -> Any:
    """The moving average after an update; what is frozen has not moved."""
    if frozen is None:
        return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, parameters)
    return jax.tree.map(
        lambda a, p, f: a if f else decay * a + (1 - decay) * p,
        average,
        parameters,
        frozen(parameters),
    )
