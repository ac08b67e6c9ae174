"""The learned temperature: its start, its limit, and how the limit is kept.

The parameter is the logarithm of the scale, ``scale = exp(log_scale) = 1 / tau``, one float32
scalar. CLIP starts it at tau = 0.07 and keeps the scale at or below 100; the sigmoid loss starts
at scale 10 with a learned bias of -10 and has no limit unless asked.

The limit is a projection of the *parameter after the update*. Clipping inside the forward pass
instead makes the derivative zero above the limit, so that a value restored there never returns.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

Names: TypeAlias = tuple[str, ...]
SOFTMAX_TEMPERATURE = 0.07
SIGMOID_SCALE = 10.0
SIGMOID_BIAS = -10.0


def initial_log_scale(start: float | Literal["softmax", "sigmoid"] = "softmax") -> float:
    """Start value of the parameter: ``log(start)``.

    Args:
      start: A scale (not a temperature) > 0; or ``"softmax"``, ``log(1 / 0.07) = 2.65926`` (CLIP,
        Radford et al. 2021); or ``"sigmoid"``, ``log(10)`` (SigLIP, Zhai et al. 2023).

    Raises:
      ValueError: The scale is not a positive, finite number.
    """
    if start == "softmax":
        return -math.log(SOFTMAX_TEMPERATURE)
    scale = SIGMOID_SCALE if start == "sigmoid" else start
    if not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
        raise ValueError(f"the starting scale is a positive number or a name, not {start!r}")
    return math.log(scale)


def initial_bias(
    start: float | Literal["sigmoid", "batch_size"] = "sigmoid", batch_size: int | None = None
) -> float:
    """Start value of the sigmoid loss's bias.

    Args:
      start: A number; or ``"sigmoid"``, the paper's -10, which suits batches near 22,000; or
        ``"batch_size"``, ``-log(batch_size - 1)``: the log-odds of one positive among
        ``batch_size`` candidates, so that training starts calibrated at any batch size.
      batch_size: The global batch, needed for ``"batch_size"``; at least 2.

    Raises:
      ValueError: ``"batch_size"`` without a batch size of at least 2.
    """
    if start == "sigmoid":
        return SIGMOID_BIAS
    if start != "batch_size":
        return float(start)
    if batch_size is None or batch_size < 2:
        raise ValueError(f"bias 'batch_size' needs a batch of at least 2 pairs, got {batch_size}")
    return -math.log(batch_size - 1)


def is_log_scale(names: Names) -> bool:
    """Whether a path of names leads to the log-scale: its last name is ``log_scale``.

    A parameter tree that is one bare array has the empty path and counts as the log-scale.
    """
    return not names or names[-1] == "log_scale"


def path_names(path: tuple[Any, ...]) -> Names:
    """Names along a key path of ``jax.tree_util``, for nested, flat and NNX parameter trees alike.

    Flat keys are split (``"model/log_scale"``, ``"model.log_scale"`` and ``("model", "log_scale")``
    all give two names), and the step from an NNX Variable to its value is left out.
    """
    names: list[str] = []
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey) and key.name == "value":
            continue
        part = next(
            (getattr(key, field) for field in ("key", "name", "idx") if hasattr(key, field)), key
        )
        for word in part if isinstance(part, tuple) else (part,):
            names.extend(str(word).replace(".", "/").split("/"))
    return tuple(names)


def clip_log_scale(
    max_scale: float | None = 100.0,
    min_scale: float | None = None,
    where: Callable[[Names], bool] = is_log_scale,
) -> optax.GradientTransformation:
    """Keeps ``exp(parameter)`` within its limits by projecting the parameter after the update.

    The update ``u`` of every parameter ``p`` that ``where`` selects is rewritten so that ``p + u``
    is the projected value, ``clip(p + u, log(min_scale), log(max_scale))``; other updates pass
    unchanged. Put it last in the chain, after the learning rate and weight decay. Inside
    ``optax.MultiSteps`` it acts on real updates only, inside ``optax.apply_if_finite`` on accepted
    ones; an update that is not finite passes unchanged, so that guards downstream see it.

    The bounds are rounded *inwards* to the parameter's dtype: for 100 in float32 the stored value
    is 4.60516977, the largest below ln 100 = 4.605170186 (4.6051702 to within one float32 step).
    The nearest float32, 4.60517025, would be a scale of 100.0000064.

    Args:
      max_scale: Largest scale, or None.
      min_scale: Smallest scale, or None.
      where: Selects parameters by the names on their path, by default the leaf ``log_scale``.

    Returns:
      A stateless transformation whose ``update`` needs ``params``.

    Raises:
      ValueError: A limit is not positive, or they cross; at ``init``, nothing was selected (what
        is masked away counts); at ``update``, ``params`` is missing.

    Example:
      >>> tx = optax.chain(optax.sgd(1.0), clip_log_scale())
      >>> params = {"log_scale": jnp.float32(4.6)}
      >>> updates, _ = tx.update({"log_scale": jnp.float32(-0.1)}, tx.init(params), params)
      >>> round(float(optax.apply_updates(params, updates)["log_scale"]), 6)
      4.60517
    """
    low, high = _log_limits(max_scale, min_scale)

    def init(params: optax.Params) -> optax.EmptyState:
        leaves = jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_absent)[0]
        if not any(where(path_names(path)) for path, _ in leaves):
            raise ValueError(
                f"clip_log_scale found no parameter to clip among {len(leaves)}; "
                "name it log_scale or pass where="
            )
        return optax.EmptyState()

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        if params is None:
            raise ValueError(
                "clip_log_scale needs the parameters: tx.update(updates, state, params)"
            )

        def project(path: tuple[Any, ...], step: Any, value: Any) -> Any:
            if _is_absent(step) or _is_absent(value) or not where(path_names(path)):
                return step
            return _projecting_update(jnp.asarray(value), jnp.asarray(step), low, high)

        return jax.tree_util.tree_map_with_path(project, updates, params, is_leaf=_is_absent), state

    return optax.GradientTransformation(init, update)


def project_log_scale(
    params: Any,
    max_scale: float | None = 100.0,
    min_scale: float | None = None,
    where: Callable[[Names], bool] = is_log_scale,
) -> tuple[Any, dict[str, tuple[float, float]]]:
    """Projects a restored or imported log-scale once, before the first forward pass.

    Same limits, rounding and selection as :func:`clip_log_scale`. Reads values, so not for use
    inside ``jit``.

    Returns:
      The parameters, and what changed: path -> (largest scale before, largest scale after), empty
      when everything was within the limits. The caller logs it.
    """
    low, high = _log_limits(max_scale, min_scale)
    changes: dict[str, tuple[float, float]] = {}

    def project(path: tuple[Any, ...], value: Any) -> Any:
        names = path_names(path)
        if _is_absent(value) or not where(names):
            return value
        array = jnp.asarray(value)
        lower, upper = _bounds(array.dtype, low, high)
        projected = jnp.clip(array, lower, upper)
        if bool(jnp.any(projected != array) & ~jnp.any(jnp.isnan(array))):
            before, after = (math.exp(float(jnp.max(x))) for x in (array, projected))
            changes["/".join(names) or "log_scale"] = (before, after)
            return projected
        return value

    return jax.tree_util.tree_map_with_path(project, params, is_leaf=_is_absent), changes


def _is_absent(leaf: Any) -> bool:
    """A leaf that optax or the caller left out: None, or the mask of ``optax.masked``."""
    return leaf is None or isinstance(leaf, optax.MaskedNode)


def _log_limits(max_scale: float | None, min_scale: float | None) -> tuple[float, float]:
    """Limits of the log-scale in float64, infinite where there is none."""
    for name, limit in (("max_scale", max_scale), ("min_scale", min_scale)):
        if limit is not None and not 0 < limit < math.inf:
            raise ValueError(f"{name} is a positive number or None, got {limit!r}")
    low = -math.inf if min_scale is None else math.log(min_scale)
    high = math.inf if max_scale is None else math.log(max_scale)
    if low > high:
        raise ValueError(f"min_scale {min_scale} is above max_scale {max_scale}")
    return low, high


def _bounds(dtype: Any, low: float, high: float) -> tuple[jax.Array, jax.Array]:
    """The limits in ``dtype``, rounded towards the inside."""
    lower, upper = np.asarray(low, dtype), np.asarray(high, dtype)
    if float(lower) < low:
        lower = np.nextafter(lower, np.asarray(np.inf, dtype))
    if float(upper) > high:
        upper = np.nextafter(upper, np.asarray(-np.inf, dtype))
    return jnp.asarray(lower), jnp.asarray(upper)


def _projecting_update(value: jax.Array, step: jax.Array, low: float, high: float) -> jax.Array:
    """The update, in its own dtype, after which ``value + update`` is within the limits.

    ``bound - value`` is rounded, and adding it can land one step outside the bound where the two
    differ in magnitude; then the neighbouring update towards the inside is taken.
    """
    common = np.promote_types(value.dtype, step.dtype)
    lower, upper = (bound.astype(common) for bound in _bounds(value.dtype, low, high))
    wide = value.astype(common)
    inf = jnp.asarray(jnp.inf, step.dtype)

    def landing(update: jax.Array) -> jax.Array:
        return wide + update.astype(common)

    to_upper, to_lower = ((bound - wide).astype(step.dtype) for bound in (upper, lower))
    to_upper = jnp.where(landing(to_upper) > upper, jnp.nextafter(to_upper, -inf), to_upper)
    to_lower = jnp.where(landing(to_lower) < lower, jnp.nextafter(to_lower, inf), to_lower)
    end = landing(step)
    projected = jnp.where(end > upper, to_upper, jnp.where(end < lower, to_lower, step))
    return jnp.where(jnp.isfinite(end), projected, step)
