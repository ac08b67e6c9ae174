"""The training state: everything that a step reads and writes on the device."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from contrastive.mesh import run_once_options
from contrastive.towers import TwoTower


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """A pure pytree; float32 parameters, optimizer moments with the parameters' shardings.

    The leaves are arrays in training, shapes with shardings where a checkpoint is the target.
    """

    step: Any  # int32 scalar: optimizer updates done
    parameters: Any  # nnx.State
    optimizer: Any  # optax state
    average: Any  # exponential moving average of the parameters, or None


def init_state(
    build: Any, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int, *, average: bool
) -> tuple[nnx.GraphDef[TwoTower], TrainState]:
    """Creates the state on the mesh; no array is ever whole on a device that should not hold it.

    Args:
      build: ``build(rngs) -> TwoTower``.
      optimizer: The chain whose state is created.
      mesh: Where the parameters are born.
      seed: Of the initialisation.
      average: Whether a moving average of the parameters is kept.

    Returns:
      The graph definition, to be merged with ``state.parameters`` inside the loss, and the state.
    """

    def create(key: jax.Array) -> TrainState:
        parameters = nnx.state(build(nnx.Rngs(key)), nnx.Param)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            parameters=parameters,
            optimizer=optimizer.init(parameters),
            average=jax.tree.map(jnp.copy, parameters) if average else None,
        )

    with jax.set_mesh(mesh):
        graphdef = nnx.graphdef(nnx.eval_shape(lambda: build(nnx.Rngs(0))))
        options = run_once_options(mesh.devices.flat[0])
        state = jax.jit(create, compiler_options=options)(jax.random.key(seed))
    return graphdef, state
