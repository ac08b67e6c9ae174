"""The limit of many negatives: InfoNCE − log M becomes alignment and a uniformity-like term."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from contrastive.losses import info_nce
from experiments.common.outcome import Check, Outcome, Plot, Table, curve
from experiments.common.runner import Context
from experiments.common.synthetic import World, encode, fresh

WORLD, DIM, QUERIES, POOL = World(noise=0.3), 8, 2048, 1 << 17
COUNTS = tuple(4**i for i in range(1, 9))  # 4 to 65,536
TAUS = (0.1, 0.5, 1.0)


def rows(seed: int) -> tuple[Array, Array, Array]:
    """Queries, their positives, and a pool of others from the same distribution."""
    encoder = fresh(jax.random.key(seed), WORLD, DIM)
    first, second = WORLD.pairs(jax.random.key(10 + seed), QUERIES)
    pool, _ = WORLD.pairs(jax.random.key(20 + seed), POOL)
    return encode(encoder, first), encode(encoder, second), encode(encoder, pool)


@jax.jit
def limit(q: Float[Array, "n d"], p: Float[Array, "n d"], pool: Array, tau: Array) -> Array:
    """``−E[q·p⁺]/tau + E_x log E_y exp(x·y/tau)``, the inner mean over the whole pool."""

    def chunk(part: Array) -> Array:
        return jax.nn.logsumexp(q @ part.T / tau, axis=1)

    parts = jax.lax.map(chunk, pool.reshape(64, -1, pool.shape[1]))
    inner = jax.nn.logsumexp(parts, axis=0) - math.log(POOL)
    return jnp.mean(inner) - jnp.mean(jnp.sum(q * p, axis=1)) / tau


def with_negatives(q: Array, p: Array, pool: Array, tau: float, count: int) -> float:
    """InfoNCE with ``count`` negatives − log count. The pool is cut into disjoint sets of
    negatives, each for its share of the queries, so that few negatives are averaged over many
    draws."""
    groups = min(POOL // count, 64)
    size = QUERIES // groups
    losses = [
        info_nce(
            q[g * size : (g + 1) * size],
            p[g * size : (g + 1) * size],
            jnp.float32(1 / tau),
            negatives=pool[g * count : (g + 1) * count],
            in_batch=False,
        )
        for g in range(groups)
    ]
    return float(jnp.mean(jnp.stack([jnp.asarray(x) for x in losses]))) - math.log(count)


def distances(q: Array, p: Array, pool: Array, tau: float) -> list[float]:
    """To the limit, with every number of negatives."""
    end = float(limit(q, p, pool, jnp.float32(tau)))
    return [with_negatives(q, p, pool, tau, count) - end for count in COUNTS]


def run(context: Context) -> Outcome:
    """F7's theorem (Wang & Isola 2020)."""
    q, p, pool = rows(0)
    found = {tau: distances(q, p, pool, tau) for tau in TAUS}
    checks = []
    for tau in TAUS:
        first, last = found[tau][0], found[tau][-1]
        checks.append(
            Check(
                f"F7, tau = {tau:g}: InfoNCE − log M reaches the limit.",
                "|distance| < .01 at M = 65,536, a tenth of that at M = 4",
                f"{last:+.4f}, from {first:+.3f}".replace("-", "−"),
                abs(last) < 0.01 and abs(last) < abs(first) / 10,
            )
        )
    apart = [abs(found[tau][2]) for tau in TAUS]
    checks.append(
        Check(
            "The smaller tau, the more negatives it takes (M = 64).",
            "decreasing in tau",
            ", ".join(f"{value:.3f}" for value in apart),
            apart[0] > apart[1] > apart[2],
        )
    )
    head = ("M", *(f"tau = {tau:g}" for tau in TAUS))
    lines = tuple((count, *(found[tau][i] for tau in TAUS)) for i, count in enumerate(COUNTS))
    return Outcome(
        name="large_m",
        title="Many negatives: alignment and uniformity emerge",
        question="Does InfoNCE − log M converge to −E[q·p⁺]/tau + E_x log E_y exp(x·y/tau)?",
        published="theorem 1 of Wang & Isola 2020; its error falls as M^(−1/2) at worst.",
        tables=(Table("distance", "Distance to the limit.", head, lines),),
        plots=(
            Plot(
                "distance",
                "Distance of InfoNCE − log M to its limit",
                "negatives M",
                "nats",
                tuple(
                    curve(f"tau = {tau:g}", list(zip(COUNTS, np.abs(found[tau]), strict=True)))
                    for tau in TAUS
                ),
                x_log=True,
                y_log=True,
            ),
        ),
        checks=tuple(checks),
        notes=(
            f"{QUERIES:,} pairs of the synthetic world; the limit's inner mean is over {POOL:,} "
            "rows, and the negatives are disjoint parts of the same rows.",
        ),
    )
