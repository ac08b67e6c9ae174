"""The update rules: from a gradient to a direction, without rate and weight decay."""

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from contrastive.temperature import Names, path_names

Rule = Literal["adamw", "lamb", "lion", "adafactor", "muon", "sgd"]
Moment: TypeAlias = Callable[[Any], float]

# What each rule uses, and its values where the config names none.
DEFAULTS: dict[str, dict[str, float]] = {
    "adamw": {"b1": 0.9, "b2": 0.98, "eps": 1e-6},
    "lamb": {"b1": 0.9, "b2": 0.999, "eps": 1e-6},
    "lion": {"b1": 0.9, "b2": 0.99},
    "adafactor": {"b1": 0.9, "b2": 0.999, "eps": 1e-30},
    "muon": {"b1": 0.95, "b2": 0.98, "eps": 1e-8},
    "sgd": {"b1": 0.9},
}
# Root mean square of an orthogonalised update, near that of an AdamW update.
_MUON_RMS = 0.2


def make_rule(name: Rule, moment: Moment, mu_dtype: Any) -> optax.GradientTransformation:
    """The direction of an update.

    Args:
      name: Which rule.
      moment: Value of ``"b1"``, ``"b2"`` and ``"eps"``.
      mu_dtype: In which the first moment is stored; it is computed in float32.
    """
    b1 = moment("b1")
    if name in ("adamw", "lamb"):
        return optax.scale_by_adam(b1, moment("b2"), moment("eps"), mu_dtype=mu_dtype)
    if name == "lion":
        return optax.scale_by_lion(b1, moment("b2"), mu_dtype=mu_dtype)
    if name == "sgd":
        return optax.trace(b1, accumulator_dtype=mu_dtype) if b1 else optax.identity()
    if name == "adafactor":
        limit = moment("b2")
        second = optax.scale_by_factored_rms(
            epsilon=moment("eps"),
            decay_rate_fn=lambda step, power: jnp.minimum(
                limit, 1.0 - (jnp.asarray(step, jnp.float32) + 1.0) ** jnp.negative(power)
            ),
        )
        clipped = optax.chain(second, _limit_rms(1.0))
        if not b1:
            return clipped
        return optax.chain(clipped, optax.ema(b1, debias=False, accumulator_dtype=mu_dtype))
    muon = contrib.scale_by_muon(
        beta=b1, eps=moment("eps"), mu_dtype=mu_dtype, weight_dimension_numbers=_dimensions
    )
    orthogonal = optax.chain(_cut_by_the_compiler(muon), _even_size())
    adam = optax.scale_by_adam(0.9, moment("b2"), moment("eps"), mu_dtype=mu_dtype)
    return optax.chain(
        optax.masked(orthogonal, matrices),
        optax.masked(adam, lambda p: jax.tree.map(lambda is_matrix: not is_matrix, matrices(p))),
    )


def trust_ratio() -> optax.GradientTransformation:
    """LAMB's last factor: the norm of a parameter over the norm of its update, in each layer; 1
    where one of them is zero."""

    def scale(path: Any, update: jax.Array, parameter: jax.Array) -> jax.Array:
        wanted, given = (_root_mean_square(path, x) for x in (parameter, update))
        some = (wanted > 0) & (given > 0)
        return update * jnp.where(some, wanted / jnp.where(some, given, 1.0), 1.0)

    return optax.stateless(functools.partial(jax.tree_util.tree_map_with_path, scale))


def _limit_rms(limit: float) -> optax.GradientTransformation:
    """Shrinks the update of each layer until its root mean square is at most ``limit``."""

    def scale(path: Any, update: jax.Array) -> jax.Array:
        return update / jnp.maximum(_root_mean_square(path, update) / limit, 1.0)

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates))


def _root_mean_square(path: Any, x: jax.Array) -> jax.Array:
    """Of an array; where layers are stacked for a scan, of each layer: ``[layers, 1, …]``."""
    stacked = "blocks" in path_names(path)
    axes = tuple(range(1 if stacked else 0, x.ndim))
    return jnp.sqrt(jnp.mean(jnp.square(x), axes, keepdims=True))


def matrices(parameters: Any) -> Any:
    """True for what Muon orthogonalises: products inside blocks, stages and pooling heads. Patch
    embeddings, tables, the last projection, norms, biases and the log-scale are AdamW's."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _matrix_axes(path_names(path), 0) is not None, parameters
    )


def _matrix_axes(names: Names, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Axes that a matrix sums over, and those of its result; others count matrices. Leading axes
    are counted from the end: layers may be stacked for a scan."""
    inside = {"blocks", "stages", "attention", "mlp"} & set(names)
    if not inside:
        return None
    if names[-1] == "kernel" and "stages" in names and "blocks" not in names:
        return (0, 1, 2), (3,)
    if names[-1] == "kernel":
        return (ndim - 2,), (ndim - 1,)
    if names[-1] == "qkv":  # [.., width, 3, heads, head_dim]: three matrices
        return (ndim - 4,), (ndim - 2, ndim - 1)
    if names[-1] == "out":  # [.., heads, head_dim, width]
        return (ndim - 3, ndim - 2), (ndim - 1,)
    return None


def _dimensions(updates: Any) -> Any:
    def one(path: Any, x: Any) -> contrib.MuonDimensionNumbers:
        axes = _matrix_axes(path_names(path), x.ndim)
        assert axes is not None
        return contrib.MuonDimensionNumbers(*axes)

    return jax.tree_util.tree_map_with_path(one, updates)


def _cut_by_the_compiler(muon: optax.GradientTransformation) -> optax.GradientTransformation:
    """Muon on matrices that are cut over an Explicit mesh: it does not say where its products go,
    so the compiler decides. Results and moments lie as their parameters do."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if jax.sharding.get_abstract_mesh().empty:
            return muon.update(updates, state, params)
        placed = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, (updates, state))
        call: Any = jax.sharding.auto_axes(muon.update, out_sharding=placed)
        return call(updates, state, params)

    return optax.GradientTransformation(muon.init, update)


def _even_size() -> optax.GradientTransformation:
    """An orthogonal n × m matrix has entries of size 1/sqrt(max(n, m)); makes them 0.2 for all."""

    def scale(path: Any, x: jax.Array) -> jax.Array:
        axes = _matrix_axes(path_names(path), x.ndim)
        assert axes is not None
        sides = [np.prod([x.shape[a] for a in side]) for side in axes]
        return x * jnp.asarray(_MUON_RMS * np.sqrt(max(sides)), x.dtype)

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates))
