"""Where InfoNCE starts and ends: log B, and what a temperature near 1 does not let it reach."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from contrastive.geometry import normalize
from contrastive.losses import info_nce
from experiments.common.outcome import Check, Outcome, Plot, Table, curve, number
from experiments.common.runner import Context

BATCH, DIM = 256, 64
BATCHES = (2, 8, 32, 128, 256, 512, 2048)


def unit_rows(rows: int, seed: int) -> np.ndarray:
    """Random directions."""
    drawn = np.random.default_rng(seed).standard_normal((rows, DIM), np.float32)
    return np.asarray(normalize(drawn))


def loss(queries: np.ndarray, keys: np.ndarray, tau: float) -> float:
    """InfoNCE, one way."""
    found = info_nce(jnp.asarray(queries), jnp.asarray(keys), jnp.float32(1 / tau))
    assert isinstance(found, jax.Array)
    return float(found)


def best_row(count: int) -> float:
    """InfoNCE of one query at tau = 1 whose key is itself and whose negatives all oppose it."""
    query = np.eye(1, DIM, dtype=np.float32)
    others = np.repeat(-query, count - 1, axis=0)
    found = info_nce(query, query, jnp.float32(1), negatives=others, in_batch=False)
    assert isinstance(found, jax.Array)
    return float(found)


def simplex(count: int) -> np.ndarray:
    """As many unit rows as can oppose each other equally: all cosines −1/(count − 1)."""
    centred = np.eye(count) - 1 / count
    return (centred / np.linalg.norm(centred, axis=1, keepdims=True)).astype(np.float32)


def run(context: Context) -> Outcome:
    """F2, F3 and F3b of the seed document."""
    rng_pairs = [(unit_rows(BATCH, 2 * s), unit_rows(BATCH, 2 * s + 1)) for s in range(10)]
    random = {tau: [loss(q, p, tau) for q, p in rng_pairs] for tau in (1.0, 0.05)}
    equal = {tau: [loss(q, q, tau) for q, _ in rng_pairs] for tau in (1.0, 0.05)}
    best = best_row(BATCH)
    floor = loss(simplex(BATCH), simplex(BATCH), 1.0)
    rows = []
    for batch in BATCHES:
        q, p = unit_rows(batch, 0), unit_rows(batch, 1)
        cells = [loss(a, b, tau) for tau in (1.0, 0.05) for a, b in ((q, p), (q, q))]
        rows.append((batch, math.log(batch), *cells))
    checks = (
        number("F2: random pairs, tau = 1, start at log 256.", 5.545, _mean(random[1.0]), 0.02),
        number("F2: identical pairs, tau = 1, are far from 0.", 4.56, _mean(equal[1.0]), 5e-3),
        Check(
            "F2: random pairs, tau = .05, are above log 256: one draw of the document's.",
            "8.7 within 2 deviations of a draw",
            f"{_mean(random[0.05]):.3f}, deviation {np.std(random[0.05], ddof=1):.3f}",
            abs(8.7 - _mean(random[0.05])) < 2 * float(np.std(random[0.05], ddof=1)),
            "number",
        ),
        Check(
            "F2: identical pairs, tau = .05, reach 1e-5.",
            "5e-6 to 2e-5",
            f"{_mean(equal[0.05]):.2g}",
            5e-6 < _mean(equal[0.05]) < 2e-5,
            "number",
        ),
        number(
            "F3: the best a row can give its positive at tau = 1.", 0.02816, math.exp(-best), 6e-6
        ),
        number("F3: its loss.", 3.570, best, 5e-4),
        number("F3b: the least of a whole batch, at the regular simplex.", 4.548, floor, 5e-4),
    )
    head = ("B", "log B", "random, tau = 1", "identical", "random, tau = .05", "identical, .05")
    return Outcome(
        name="log_b",
        title="log B, and the floor that a temperature sets",
        question="Where does InfoNCE start with an untrained encoder, and where can it end?",
        published="a random encoder starts near log B (van den Oord et al. 2018); the numbers are "
        "the seed document's (F2, F3).",
        tables=(Table("losses", f"Loss by batch size, {DIM} dimensions.", head, tuple(rows)),),
        plots=(
            Plot(
                "losses",
                "Loss of random and identical pairs",
                "batch size",
                "InfoNCE",
                tuple(curve(head[i], [(row[0], row[i]) for row in rows]) for i in range(1, 6)),
                x_log=True,
            ),
        ),
        checks=checks,
        notes=("Means over ten draws of unit vectors.",),
    )


def _mean(values: list[float]) -> float:
    return float(np.mean(values))
