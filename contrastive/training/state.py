"""The training state: everything that a step reads and writes on the device."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from contrastive.errors import ConfigError
from contrastive.mesh import PARAMETER_RULES, run_once_options
from contrastive.objectives import Momentum
from contrastive.temperature import path_names
from contrastive.towers import TwoTower, axis_rules


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class TrainState:
    """A pure pytree; float32 parameters, optimizer moments with the parameters' shardings.

    The leaves are arrays in training, shapes with shardings where a checkpoint is the target. A
    memory that is None is no part of the tree: checkpoints of runs without one do not mention it.
    """

    step: Any  # int32 scalar: optimizer updates done
    parameters: Any  # nnx.State
    optimizer: Any  # optax state
    average: Any  # exponential moving average of the parameters, or None
    memory: Any = None  # a momentum encoder and its queue (contrastive.objectives.Memory), or None

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[str, ...]]:
        """Children by field name, for ``jax.tree_util``."""
        names = tuple(
            field.name
            for field in dataclasses.fields(self)
            if field.name != "memory" or self.memory is not None
        )
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names], names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Any) -> "TrainState":
        """The inverse."""
        return cls(**dict(zip(names, children, strict=True)))


def init_state(
    build: Any,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    *,
    average: bool,
    momentum: Momentum | None = None,
) -> tuple[nnx.GraphDef[TwoTower], TrainState]:
    """Creates the state on the mesh; no array is ever whole on a device that should not hold it.

    Args:
      build: ``build(rngs) -> TwoTower``.
      optimizer: The chain whose state is created.
      mesh: Where the parameters are born, cut by :data:`contrastive.mesh.PARAMETER_RULES`.
      seed: Of the initialisation.
      average: Whether a moving average of the parameters is kept.
      momentum: Of a momentum encoder whose state is kept; None: there is none.

    Returns:
      The graph definition, to be merged with ``state.parameters`` inside the loss, and the state.

    Raises:
      ConfigError: A parameter cannot be cut evenly over the mesh.
    """
    graphdef, create = _creation(build, optimizer, mesh, average, momentum)
    with jax.set_mesh(mesh):
        options = run_once_options(mesh.devices.flat[0])
        return graphdef, jax.jit(create, compiler_options=options)(jax.random.key(seed))


def abstract_state(
    build: Any,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    average: bool,
    momentum: Momentum | None = None,
) -> tuple[nnx.GraphDef[TwoTower], TrainState]:
    """What :func:`init_state` would create, as shapes with shardings: nothing is allocated, and the
    mesh may be one of devices that are not here."""
    graphdef, create = _creation(build, optimizer, mesh, average, momentum)

    def placed(x: Any) -> jax.ShapeDtypeStruct:
        spec = PartitionSpec() if x.sharding is None else x.sharding.spec
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        return graphdef, jax.tree.map(placed, jax.eval_shape(lambda: create(jax.random.key(0))))


def _creation(
    build: Any,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    average: bool,
    momentum: Momentum | None,
) -> tuple[nnx.GraphDef[TwoTower], Any]:
    """The graph definition, and ``create(key) -> TrainState`` for use under the mesh."""
    whole = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    _check_cuts(nnx.state(whole, nnx.Param), mesh)

    def create(key: jax.Array) -> TrainState:
        with nnx.logical_axis_rules(axis_rules(*PARAMETER_RULES)):
            parameters = nnx.state(build(nnx.Rngs(key)), nnx.Param)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            parameters=parameters,
            optimizer=optimizer.init(parameters),
            average=jax.tree.map(jnp.copy, parameters) if average else None,
            memory=None if momentum is None else momentum.start(parameters, mesh),
        )

    return nnx.graphdef(whole), create


def _check_cuts(parameters: Any, mesh: Mesh) -> None:
    rules = dict(PARAMETER_RULES)
    leaves = jax.tree_util.tree_leaves_with_path(
        parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    for path, leaf in leaves:
        axes = leaf.get_metadata().get("out_sharding") or ()
        for size, name in zip(leaf.shape, axes, strict=False):
            axis = rules.get(name)
            if axis is not None and size % mesh.shape[axis]:
                raise ConfigError(
                    f"config.mesh.{axis} = {mesh.shape[axis]} does not divide the {size} entries "
                    f"of the axis {name!r} of {'/'.join(path_names(path))}."
                )
