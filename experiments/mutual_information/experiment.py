"""How much information InfoNCE can certify: Gaussians, whose mutual information is known."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive.geometry import mutual_information_bound
from contrastive.reference import nce_mi_estimate
from contrastive.sweeps.seeds import Mean, mean
from experiments.common.outcome import Check, Line, Outcome, Plot, Table, curve, number
from experiments.common.runner import Context

RHO = 0.9
CANDIDATES = (2, 8, 32, 128, 512)
CONTEXTS = 40_960  # that are averaged over
COMPARED = 20  # batches that the float64 reference sees as well
WOBBLE = 0.03  # "expect wobble in the second decimal", says the document of its averages
PUBLISHED = (0.69, 2.05, 3.34, 4.48, 5.40)  # F4, D = 8


def information(dims: int) -> float:
    """``−(D/2) log(1 − ρ²)`` nats."""
    return -dims / 2 * math.log(1 - RHO**2)


def rows(
    dims: int, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Contexts y and candidates x as rows whose inner product is the optimal critic
    ``log p(x|y) − log p(x)`` but for what depends on y alone, which a softmax over x ignores."""
    x = rng.standard_normal((*shape, dims))
    y = RHO * x + math.sqrt(1 - RHO**2) * rng.standard_normal((*shape, dims))
    noise = 1 - RHO**2
    norms = -(RHO**2) / (2 * noise) * (x**2).sum(-1, keepdims=True)
    candidates = np.concatenate([RHO / noise * x, norms], axis=-1)
    contexts = np.concatenate([y, np.ones((*shape, 1))], axis=-1)
    return contexts.astype(np.float32), candidates.astype(np.float32)


@jax.jit
def bounds(contexts: jax.Array, candidates: jax.Array) -> jax.Array:
    """The library's bound of every batch."""
    return jax.lax.map(
        lambda both: mutual_information_bound(both[0], both[1], jnp.float32(1)),
        (contexts, candidates),
    )


def measure(dims: int, count: int, seed: int) -> tuple[Mean, float]:
    """The mean bound with ``count`` candidates over independent batches, and how far the float64
    reference is from it."""
    rng = np.random.default_rng((seed, dims, count))
    contexts, candidates = rows(dims, (CONTEXTS // count, count), rng)
    found = np.asarray(bounds(jnp.asarray(contexts), jnp.asarray(candidates)))
    apart = max(
        abs(nce_mi_estimate(y.astype(np.float64) @ x.astype(np.float64).T) - float(value))
        for y, x, value in zip(contexts[:COMPARED], candidates, found, strict=False)
    )
    return mean(found), apart


def run(context: Context) -> Outcome:
    """F4 of the seed document."""
    found = {(dims, count): measure(dims, count, seed=0) for dims in (1, 8) for count in CANDIDATES}
    values = {key: value for key, (value, _) in found.items()}
    apart = max(distance for _, distance in found.values())
    lines: list[tuple[Any, ...]] = []
    for i, count in enumerate(CANDIDATES):
        one, eight = (values[dims, count] for dims in (1, 8))
        lines.append((count, math.log(count), one, eight, PUBLISHED[i]))
    checks = [
        number("F4: I at D = 1.", 0.830, information(1), 5e-4),
        number("F4: I at D = 8.", 6.643, information(8), 5e-4),
        number("F4: D = 1, nearly tight at N = 128.", information(1), values[1, 128].value, 0.03),
    ]
    checks += [
        number(f"F4: D = 8, N = {count}.", PUBLISHED[i], values[8, count].value, WOBBLE)
        for i, count in enumerate(CANDIDATES)
    ]
    most = max(value.value - math.log(count) for (_, count), value in values.items())
    checks += [
        Check("It never exceeds log N.", "≤ 0", f"{most:.4f}", most <= 0, "number"),
        Check("Library and float64 reference agree.", "< 1e-4", f"{apart:.1e}", apart < 1e-4),
    ]
    caption = f"Mean over {CONTEXTS:,} contexts, with 95 % interval over batches of N."
    head = ("N", "log N", "D = 1 (I = .830)", "D = 8 (I = 6.643)", "seed document, D = 8")
    plot = Plot(
        "bound",
        "The InfoNCE bound and its ceiling",
        "candidates N",
        "nats",
        tuple(_line(head[i], lines, i) for i in (1, 2, 3)),
        x_log=True,
        references=(("I at D = 8", information(8)),),
    )
    return Outcome(
        name="mutual_information",
        title="InfoNCE as a bound on mutual information",
        question="With the best critic there is, how much shared information can log N − loss "
        "certify? x ~ N(0, I), y = ρx + √(1 − ρ²)ε, ρ = .9.",
        published="Poole et al. 2019 show the ceiling at log N; the numbers are the seed "
        "document's (F4).",
        tables=(Table("bound", caption, head, tuple(lines)),),
        plots=(plot,),
        checks=tuple(checks),
    )


def _line(label: str, rows: list[tuple[Any, ...]], column: int) -> Line:
    cells = (row[column] for row in rows)
    values = (cell.value if isinstance(cell, Mean) else cell for cell in cells)
    return curve(label, list(zip((row[0] for row in rows), values, strict=True)))
