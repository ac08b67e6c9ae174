"""Heads behind a tower: a small MLP from embeddings to the rows that the loss compares.

SimCLR's projection head and SimCSE's MLP are used in training and dropped afterwards; MoCo v3's
predictor stands behind the head on the queries' side only. A head sees the whole batch at once
(:mod:`contrastive.microbatches` chunks towers, not heads), so that batch normalisation has the
statistics of the global batch in any number of chunks and on any number of devices.
"""

import dataclasses
import itertools
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from contrastive.errors import ConfigError
from contrastive.towers import layers, sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Settings of :class:`Head`."""

    layers: int = 0  # products; 0: no head
    hidden: int = 0  # units between them; 0: as many as enter
    output: int = 0  # size of the rows that the loss sees; 0: as many as enter
    # Behind every product but the last, before the activation. batch: over the rows of the global
    # batch, as with synchronised batch normalisation
    norm: Literal["none", "batch", "layer"] = "none"
    activation: Literal["relu", "gelu", "tanh"] = "relu"  # behind every product but the last

    path: ClassVar[str] = "config.model.head"

    def __post_init__(self):
        for name in ("layers", "hidden", "output"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{self.path}.{name} = {getattr(self, name)} is negative.")
        unset = all(getattr(self, f.name) == f.default for f in dataclasses.fields(self))
        if not self.layers and not unset:
            raise ConfigError(f"{self.path} has settings, but no layers.")
        if self.layers == 1 and (self.hidden or self.norm != "none" or self.activation != "relu"):
            raise ConfigError(
                f"{self.path}: hidden, norm and activation stand between layers; there is one."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictorConfig(HeadConfig):
    """Settings of the predictor: another head, behind the first, for queries only."""

    path: ClassVar[str] = "config.model.predictor"


class Head(nnx.Module):
    """Embeddings ``[batch, inputs]`` to rows ``[batch, output]``, in float32."""

    def __init__(self, config: HeadConfig, inputs: int, *, rngs: nnx.Rngs):
        self.config = config
        hidden = [config.hidden or inputs] * (config.layers - 1)
        sizes = [inputs, *hidden, config.output or inputs]
        names = ["output", *["mlp" if i % 2 == 0 else "embed" for i in range(len(hidden))]]
        names.append("output")
        self.outputs = sizes[-1]
        # Batch normalisation takes a bias before it away again.
        biases = [None if config.norm == "batch" else layers.zeros for _ in hidden]
        self.stages = nnx.List(
            [
                layers.Dense(
                    i, o, axes=axes, init=layers.normal(math.sqrt(2 / i)), bias=bias, rngs=rngs
                )
                for (i, o), axes, bias in zip(
                    itertools.pairwise(sizes),
                    itertools.pairwise(names),
                    [*biases, layers.zeros],
                    strict=True,
                )
            ]
        )
        kind = {"none": None, "batch": BatchNorm, "layer": _layer_norm}[config.norm]
        self.norms = nnx.List([] if kind is None else [kind(size, rngs=rngs) for size in hidden])

    def __call__(
        self, x: Float[Array, "batch inputs"], exists: Float[Array, "batch"] | None = None
    ) -> Float[Array, "batch output"]:
        """Rows; those where ``exists`` is 0 are not among what batch normalisation measures."""
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i + 1 == len(self.stages):
                break
            if self.norms:
                norm = self.norms[i]
                x = norm(x, exists) if isinstance(norm, BatchNorm) else norm(x)
            x = _ACTIVATIONS[self.config.activation](x)
        return x


_ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "tanh": jnp.tanh}


def _layer_norm(width: int, *, rngs: nnx.Rngs) -> layers.LayerNorm:
    return layers.LayerNorm(width, epsilon=1e-5, rngs=rngs)


class BatchNorm(nnx.Module):
    """``(x − mean) / sqrt(var + ε) · scale + bias``, mean and variance of each column over the rows
    of the global batch. It keeps no running statistics: heads serve training only."""

    def __init__(self, width: int, *, epsilon: float = 1e-5, rngs: nnx.Rngs):
        self.epsilon = epsilon
        self.scale = sharding.parameter(rngs, (width,), ("output",), layers.ones)
        self.bias = sharding.parameter(rngs, (width,), ("output",), layers.zeros)

    def __call__(
        self, x: Float[Array, "batch width"], exists: Float[Array, "batch"] | None = None
    ) -> Float[Array, "batch width"]:
        there = jnp.ones(x.shape[:1], x.dtype) if exists is None else (exists > 0).astype(x.dtype)
        count = jnp.maximum(there.sum(), 1.0)
        kept = there[:, None] > 0
        mean = jnp.where(kept, x, 0.0).sum(axis=0) / count
        d = jnp.where(kept, x - mean[None], 0.0)
        y = d * jax.lax.rsqrt(jnp.square(d).sum(axis=0) / count + self.epsilon)[None]
        scale = sharding.weight(self.scale, ("output",), x)
        return layers.add_bias(y * scale[None], sharding.weight(self.bias, ("output",), x))
