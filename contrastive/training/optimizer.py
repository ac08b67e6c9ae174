"""The optimizer chain: gradient clipping, AdamW under a schedule, and the clip of the log-scale."""

import dataclasses
from typing import Any

import jax
import optax

from contrastive.errors import ConfigError
from contrastive.temperature import clip_log_scale, path_names

_UNDECAYED = ("positions", "class_token", "query")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101), warm-up and cosine."""

    learning_rate: float = 1e-3  # peak, reached at the end of the warm-up
    warmup_steps: int = 100  # linear from zero
    final_learning_rate: float = 0.0  # where the cosine ends, at total_steps
    weight_decay: float = 0.1  # decoupled; on weight matrices and convolution kernels only
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-6
    clip_norm: float | None = 1.0  # global norm of the gradient; None = no clipping

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"config.optimizer.{name} has to be positive.")
        for name in ("warmup_steps", "weight_decay", "final_learning_rate"):
            if getattr(self, name) < 0:
                raise ConfigError(f"config.optimizer.{name} cannot be negative.")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"config.optimizer.{name} has to lie in [0, 1).")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError("config.optimizer.clip_norm has to be positive, or None.")


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Linear warm-up, then a half cosine down to ``final_learning_rate`` at ``total_steps``."""
    if config.warmup_steps >= total_steps:
        raise ConfigError(
            f"config.optimizer.warmup_steps = {config.warmup_steps} has to be less than "
            f"config.total_steps = {total_steps}."
        )
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_steps=total_steps,
        end_value=config.final_learning_rate,
    )


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
    """The whole chain; the clip of the log-scale comes last, after the update is known."""
    parts = [
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        optax.adamw(
            schedule,
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decay_mask,
        ),
    ]
    if max_scale is not None:
        parts.append(clip_log_scale(max_scale))
    return optax.chain(*parts)
