"""The optimizer chain: gradient clipping, an update rule, decay and rates by parameter, a schedule,
and the clip of the log-scale.

Every rule is the same chain with another middle:

    clip_by_global_norm → rule → + weight_decay · parameter → · multiplier → · −rate(step)
    → clip of the log-scale

so clipping, decay, schedules, groups, accumulation and the temperature's limit mean the same for
all of them.
"""

import dataclasses
import re
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from contrastive.errors import ConfigError
from contrastive.temperature import Names, clip_log_scale, path_names
from contrastive.training import rules

_UNDECAYED = ("positions", "class_token", "registers", "query", "mean", "variance")
_FIRST_LAYER = {  # what enters the first block
    *("patches", "tokens", "positions", "token_types", "class_token", "registers", "norm_before"),
}
Schedule = Literal["cosine", "reciprocal_sqrt", "wsd", "constant"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Update rule, learning rate over time, and rates by parameter.

    Rules: ``adamw`` (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101), ``lamb`` (You et
    al. 2020, https://arxiv.org/abs/1904.00962), ``lion`` (Chen et al. 2023,
    https://arxiv.org/abs/2302.06675), ``adafactor`` (Shazeer & Stern 2018,
    https://arxiv.org/abs/1804.04235, in the form of Zhai et al. 2022: no scaling by the parameter,
    a limit on b2), ``muon`` (Jordan 2024; matrices inside the blocks are orthogonalised, scaled as
    in https://arxiv.org/abs/2502.16982 so that AdamW's rates fit; the rest is AdamW), ``sgd``.
    """

    name: rules.Rule = "adamw"  # the update rule
    learning_rate: float = 1e-3  # peak, reached at the end of the warm-up
    schedule: Schedule = "cosine"  # what follows the warm-up
    warmup_steps: int = 100  # linear from zero
    cooldown_steps: int = 0  # linear to final_learning_rate at the end; wsd and reciprocal_sqrt
    timescale_steps: int | None = None  # of reciprocal_sqrt; None: warmup_steps
    final_learning_rate: float = 0.0  # where the schedule ends, at total_steps
    weight_decay: float = 0.1  # decoupled; on weight matrices and convolution kernels only
    b1: float | None = None  # decay of the first moment; None: the rule's own; 0: none is kept
    b2: float | None = None  # decay of the second moment (lion: of the stored one); None: own
    eps: float | None = None  # added to the root of the second moment; None: the rule's own
    mu_dtype: Literal["float32", "bfloat16"] = "float32"  # of the stored first moment
    clip_norm: float | None = 1.0  # global norm of the gradient; None = no clipping
    # (pattern, factor of the learning rate) on names such as image/patches/kernel, whole names, the
    # first that matches; None or 0 freezes, as in locked-image tuning: (("image/.*", None),)
    multipliers: tuple[tuple[str, float | None], ...] = ()
    layer_decay: float | None = None  # rate of a layer / rate of the layer after it, in each tower
    accumulate: int = 1  # batches whose gradients are averaged for an update; see make_optimizer

    def __post_init__(self) -> None:
        self._check_numbers()
        unused = [
            name
            for name in ("b1", "b2", "eps")
            if getattr(self, name) is not None and name not in rules.DEFAULTS[self.name]
        ]
        if unused:
            raise ConfigError(
                f"config.optimizer.{unused[0]} is not used by {self.name!r}, which has "
                f"{', '.join(rules.DEFAULTS[self.name])}."
            )
        if self.mu_dtype != "float32" and not self.moment("b1"):
            raise ConfigError(
                "config.optimizer.mu_dtype is the type of the first moment; with b1 = 0 none is "
                "kept."
            )
        self._check_schedule()
        for pattern, factor in self.multipliers:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"config.optimizer.multipliers: {pattern!r} is not a regular expression: "
                    f"{error}."
                ) from error
            if factor is not None and factor < 0:
                raise ConfigError(
                    f"config.optimizer.multipliers: the factor {factor} of {pattern!r} cannot be "
                    "negative."
                )

    def moment(self, name: Literal["b1", "b2", "eps"]) -> float:
        """The value of ``b1``, ``b2`` or ``eps``: the given one, or the rule's own."""
        value = getattr(self, name)
        return rules.DEFAULTS[self.name].get(name, 0.0) if value is None else value

    def _check_numbers(self) -> None:
        for name in ("learning_rate", "eps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"config.optimizer.{name} has to be positive.")
        for name in ("warmup_steps", "cooldown_steps", "weight_decay", "final_learning_rate"):
            if getattr(self, name) < 0:
                raise ConfigError(f"config.optimizer.{name} cannot be negative.")
        for name in ("b1", "b2"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"config.optimizer.{name} has to lie in [0, 1).")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError("config.optimizer.clip_norm has to be positive, or None.")
        if self.layer_decay is not None and not 0 < self.layer_decay < 1:
            raise ConfigError("config.optimizer.layer_decay has to lie between 0 and 1, or None.")
        if self.accumulate < 1:
            raise ConfigError("config.optimizer.accumulate has to be at least 1.")
        if self.timescale_steps is not None and self.timescale_steps < 1:
            raise ConfigError("config.optimizer.timescale_steps has to be at least 1, or None.")

    def _check_schedule(self) -> None:
        name = f"config.optimizer.schedule = {self.schedule!r}"
        cools = self.cooldown_steps > 0
        if cools and self.schedule in ("cosine", "constant"):
            raise ConfigError(
                f"{name} has no cooldown; cooldown_steps goes with 'wsd' (warm-up, stable, decay) "
                "and 'reciprocal_sqrt'."
            )
        if self.schedule == "wsd" and not cools:
            raise ConfigError(f"{name} needs cooldown_steps; without it choose 'constant'.")
        if self.final_learning_rate and self.schedule != "cosine" and not cools:
            raise ConfigError(f"{name} without a cooldown does not use final_learning_rate.")
        if self.timescale_steps is not None and self.schedule != "reciprocal_sqrt":
            raise ConfigError(f"{name} does not use timescale_steps; 'reciprocal_sqrt' does.")
        if self.final_learning_rate > self.learning_rate:
            raise ConfigError(
                f"config.optimizer.final_learning_rate = {self.final_learning_rate:g} is above the "
                f"peak, config.optimizer.learning_rate = {self.learning_rate:g}."
            )
        if self.schedule == "reciprocal_sqrt" and not (self.timescale_steps or self.warmup_steps):
            raise ConfigError(f"{name} without a warm-up needs timescale_steps.")


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """The learning rate as a function of the batches done before.

    Linear warm-up to ``learning_rate``, then

    * ``cosine``: half a cosine down to ``final_learning_rate`` at ``total_steps``;
    * ``reciprocal_sqrt``: ``learning_rate · sqrt(T / (T + step − warmup_steps))`` with
      T = ``timescale_steps`` (Zhai et al. 2022, https://arxiv.org/abs/2106.04560);
    * ``wsd``: constant (Hu et al. 2024, https://arxiv.org/abs/2404.06395);
    * ``constant``;

    and with ``cooldown_steps`` linearly from there to ``final_learning_rate`` at ``total_steps``.
    With accumulation it changes only where an update is made. A run that is shorter than its
    warm-up ends inside it.

    Raises:
      ConfigError: Warm-up and cooldown do not leave a step between them.
    """
    if config.cooldown_steps and config.warmup_steps + config.cooldown_steps >= total_steps:
        raise ConfigError(
            f"config.optimizer.warmup_steps = {config.warmup_steps} + cooldown_steps = "
            f"{config.cooldown_steps} has to be less than config.total_steps = {total_steps}."
        )
    if config.warmup_steps >= total_steps:
        schedule = optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps)
    elif config.schedule == "cosine":
        schedule = optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=config.learning_rate,
            warmup_steps=config.warmup_steps,
            decay_steps=total_steps,
            end_value=config.final_learning_rate,
        )
    else:
        schedule = _warm_hold_cool(config, total_steps)
    if config.accumulate == 1:
        return schedule
    return lambda step: schedule(jnp.asarray(step) // config.accumulate * config.accumulate)


def _warm_hold_cool(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    def hold(after: Any) -> Any:  # steps since the end of the warm-up
        if config.schedule != "reciprocal_sqrt":
            return config.learning_rate
        timescale = config.timescale_steps or config.warmup_steps
        return config.learning_rate * jnp.sqrt(timescale / (timescale + jnp.maximum(after, 0)))

    cool = total_steps - config.cooldown_steps - config.warmup_steps
    parts: list[optax.Schedule] = [hold]
    ends: list[int] = []
    if config.warmup_steps:
        parts.insert(0, optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps))
        ends.append(config.warmup_steps)
    if config.cooldown_steps:
        last = config.final_learning_rate
        parts.append(optax.linear_schedule(float(hold(cool)), last, config.cooldown_steps))
        ends.append(config.warmup_steps + cool)
    return optax.join_schedules(parts, ends)


def decay_mask(parameters: Any) -> Any:
    """True for what decays: weight matrices, convolution kernels and token tables.

    False for biases, norms, positions, learned queries and the log-scale. Decided by name: layers
    stacked for a scan make norms look like matrices.
    """

    def decays(path: Any, _: Any) -> bool:
        name = path_names(path)[-1]
        return not (name.endswith(("bias", "scale")) or name in _UNDECAYED)

    return jax.tree_util.tree_map_with_path(decays, parameters)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, *, max_scale: float | None
) -> optax.GradientTransformation:
    """The whole chain; the clip of the log-scale comes last, after the update is known.

    With ``accumulate = k`` the gradients of k consecutive batches are averaged, clipped and applied
    at every k-th. That is k small contrastive batches, each with its own negatives: another
    objective than one batch k times as large, whose memory is what ``train.microbatches`` is for.

    Args:
      config: The settings.
      schedule: Learning rate by batches done, from :func:`make_schedule`.
      max_scale: Limit of ``exp(log_scale)``, or None.

    Raises:
      ConfigError: At ``init``: a pattern of ``multipliers`` matches no parameter; the names are
        listed.
    """
    k = config.accumulate
    parts = [
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        rules.make_rule(config.name, config.moment, jnp.dtype(config.mu_dtype)),
        optax.add_decayed_weights(config.weight_decay, decay_mask),
        rules.trust_ratio() if config.name == "lamb" else optax.identity(),
    ]
    if config.multipliers or config.layer_decay is not None:
        parts.append(_scale_by_multipliers(config))
    parts.append(optax.scale_by_learning_rate(lambda update: schedule(update * k)))
    chain = optax.chain(*parts)
    if freezes(config):  # no moments, and no part of the norm
        chain = optax.chain(
            optax.masked(chain, lambda p: jax.tree.map(lambda f: not f, frozen_mask(config, p))),
            optax.masked(optax.set_to_zero(), lambda p: frozen_mask(config, p)),
        )
    if max_scale is not None:
        chain = optax.chain(chain, clip_log_scale(max_scale))
    if k > 1:
        steps = optax.MultiSteps(chain, every_k_schedule=k)
        return steps.gradient_transformation()
    return chain


def freezes(config: OptimizerConfig) -> bool:
    """Whether any parameter is frozen."""
    return any(not factor for _, factor in config.multipliers)


def frozen_mask(config: OptimizerConfig, parameters: Any) -> Any:
    """True for the parameters that ``multipliers`` freezes.

    Raises:
      ConfigError: A pattern matches no parameter, or none is left to learn.
    """
    chosen = _matches(config, parameters)
    if all("/".join(n) in chosen and not chosen["/".join(n)] for n in _names(parameters)):
        raise ConfigError(
            "config.optimizer.multipliers freezes every parameter: nothing would be learned."
        )
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not chosen.get("/".join(path_names(path)), 1.0), parameters
    )


def _matches(config: OptimizerConfig, parameters: Any) -> dict[str, float | None]:
    """Factor of each parameter that a pattern claims, by name."""
    names = ["/".join(n) for n in _names(parameters)]
    chosen: dict[str, float | None] = {}
    for pattern, factor in config.multipliers:
        found = [n for n in names if n not in chosen and re.fullmatch(pattern, n)]
        if not found:
            raise ConfigError(
                f"config.optimizer.multipliers: {pattern!r} matches no parameter that an earlier "
                f"pattern leaves; the parameters are {', '.join(names)}."
            )
        chosen |= dict.fromkeys(found, factor)
    return chosen


def _names(parameters: Any) -> list[Names]:
    return [path_names(path) for path, _ in jax.tree_util.tree_leaves_with_path(parameters)]


def multiplier(config: OptimizerConfig, name: str) -> float:
    """The factor of the first pattern of ``multipliers`` that matches a parameter's name, else 1;
    of frozen ones 0."""
    return next((f for p, f in config.multipliers if re.fullmatch(p, name)), 1.0) or 0.0


def _scale_by_multipliers(config: OptimizerConfig) -> optax.GradientTransformation:
    """Multiplies updates by the factors of ``multipliers`` and of ``layer_decay``."""

    def init(params: Any) -> optax.EmptyState:
        if not freezes(config):  # else checked where all parameters are seen
            _matches(config, params)
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        depths = layer_counts(updates)

        def scale(path: Any, x: jax.Array) -> jax.Array:
            names = path_names(path)
            factor = np.float32(multiplier(config, "/".join(names)))
            factors = factor * _layer_factor(config, names, x, depths)
            return x * jnp.asarray(factors, x.dtype).reshape(
                (*np.shape(factors), *(1,) * (x.ndim - np.ndim(factors)))
            )

        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(init, update)


def layer_counts(parameters: Any) -> dict[str, int]:
    """Layers of each tower: blocks that are stacked for a scan, or stages with a number."""
    counts: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        names = path_names(path)
        if "blocks" in names and "stages" not in names:
            counts[names[0]] = leaf.shape[0]
        elif "stages" in names:
            number = int(names[names.index("stages") + 1]) + 1
            counts[names[0]] = max(number, counts.get(names[0], 0))
    return counts


def _layer_factor(
    config: OptimizerConfig, names: Names, x: Any, depths: dict[str, int]
) -> np.ndarray | np.float32:
    """``layer_decay ^ (depth + 1 − layer)``: what enters the first block is layer 0, block i layer
    i + 1, and what follows the last block layer depth + 1, whose rate is whole."""
    depth = depths.get(names[0])
    if config.layer_decay is None or depth is None:
        return np.float32(1.0)
    if "blocks" in names and "stages" not in names:
        layer = np.arange(depth) + 1
    elif "stages" in names:
        layer = int(names[names.index("stages") + 1]) + 1
    elif _FIRST_LAYER & set(names):
        layer = 0
    else:
        layer = depth + 1
    return np.float32(config.layer_decay) ** (depth + 1 - np.asarray(layer, np.float32))
