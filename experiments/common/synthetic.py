"""Synthetic pairs with a known answer: two noisy views of a hidden meaning, and a linear encoder.

The check of Wang & Isola's measures: a meaning of a few dimensions, seen through one random linear
map with independent noise on each view; the encoder is linear with a bias, so that collapse onto
one point is possible. Training is one compiled loop, of a second or two.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from contrastive.geometry import alignment, normalize, ranks, uniformity
from experiments.common.seeds import SEEDS

Encoder: TypeAlias = dict[str, Array]  # weights [view, dim], bias [dim]
# (encoder, first view, second view, key) → (loss, what to watch)
Loss: TypeAlias = Callable[[Encoder, Array, Array, Array], tuple[Array, Any]]


@dataclasses.dataclass(frozen=True)
class World:
    """Where pairs come from.

    Attributes:
      meaning: Hidden dimensions.
      view: Dimensions that are seen.
      noise: Deviation of the noise on every seen dimension; that of the signal is 1.
      seed: Of the map from meaning to view.
    """

    meaning: int = 6
    view: int = 32
    noise: float = 0.5
    seed: int = 0

    def pairs(self, key: Array, count: int) -> tuple[Float[Array, "n v"], Float[Array, "n v"]]:
        """Two views of ``count`` meanings."""
        hidden, *noises = jax.random.split(key, 3)
        mixing = jax.random.normal(jax.random.key(self.seed), (self.meaning, self.view))
        signal = jax.random.normal(hidden, (count, self.meaning)) @ mixing
        signal = signal / jnp.sqrt(jnp.float32(self.meaning))
        first, second = (
            signal + self.noise * jax.random.normal(noise, signal.shape) for noise in noises
        )
        return first, second


def fresh(key: Array, world: World, dim: int) -> Encoder:
    """An untrained encoder."""
    weights = jax.random.normal(key, (world.view, dim)) / jnp.sqrt(jnp.float32(world.view))
    return {"weights": weights, "bias": jnp.zeros((dim,))}


def encode(encoder: Encoder, views: Float[Array, "n v"]) -> Float[Array, "n d"]:
    """Unit rows."""
    return normalize(views @ encoder["weights"] + encoder["bias"][None])


def train(
    loss: Loss, world: World, *, steps: int, batch: int, dim: int = 8, rate: float = 0.02
) -> list[tuple[Encoder, Any]]:
    """Trains an encoder of every seed with Adam whose rate falls to zero; one program for all.

    Returns:
      For each of ``SEEDS`` the encoder, and what the loss watched at every step, stacked.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def of_seed(seed: Array) -> tuple[Encoder, Any]:
        key = jax.random.key(1000 + seed)
        start = fresh(jax.random.fold_in(key, 0), world, dim)

        def step(carry: Any, number: Array) -> tuple[Any, Any]:
            encoder, state = carry
            drawn, given = jax.random.split(jax.random.fold_in(key, number))
            first, second = world.pairs(drawn, batch)
            slope, watched = jax.grad(loss, has_aux=True)(encoder, first, second, given)
            updates, state = optimizer.update(slope, state)
            return (optax.apply_updates(encoder, updates), state), watched

        begin = (start, optimizer.init(start))
        (encoder, _), watched = jax.lax.scan(step, begin, jnp.arange(1, steps + 1))
        return encoder, watched

    with jax.numpy_dtype_promotion("standard"):  # optax corrects its bias with whole numbers
        found = jax.jit(lambda seeds: jax.lax.map(of_seed, seeds))(jnp.asarray(SEEDS))
    found = jax.tree.map(np.asarray, found)
    return [jax.tree.map(lambda x, i=i: x[i], found) for i in range(len(SEEDS))]


def measure(encoder: Encoder, world: World, count: int, seed: int) -> dict[str, float]:
    """Alignment, uniformity, recall@1 and nDCG@10 on ``count`` unseen pairs."""
    first, second = world.pairs(jax.random.key(5000 + seed), count)
    a, b = encode(encoder, first), encode(encoder, second)
    places = ranks(a, b)
    found = np.asarray(places.expected())
    gain = np.where(found <= 10, 1 / np.log2(found + 1), 0.0)
    return {
        "alignment": float(alignment(a, b)),
        "uniformity": float(uniformity(a) + uniformity(b)) / 2,
        "recall@1": float(np.asarray(places.recall(1)).mean()),
        "ndcg@10": float(gain.mean()),
    }
