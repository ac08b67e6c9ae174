"""Larger batches and hard negatives on synthetic pairs: the shape of E5's table, in seconds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from contrastive.losses import info_nce
from contrastive.sweeps.seeds import Mean, mean
from experiments.common.outcome import Check, Line, Outcome, Plot, Table, shown
from experiments.common.runner import Context
from experiments.common.seeds import SEEDS, difference
from experiments.common.synthetic import Encoder, Loss, World, encode, measure, train

WORLD, DIM, TAU, GALLERY = World(meaning=16, view=64, noise=0.6), 16, 0.05, 4096
BATCHES, STEPS, RATES = (8, 32, 128, 512), 400, (0.003, 0.01)
PLAIN = 32  # the batch to which negatives are added
POOL = 512  # what hard negatives are chosen from, for every query, at every step
METRIC = "ndcg@10"
PUBLISHED = {"1K": 45.8, "8K": 50.2, "32K": 51.6}  # E5, average nDCG@10 on six sets of BEIR


def in_batch(encoder: Encoder, first: Array, second: Array, key: Array) -> tuple[Array, Any]:
    """The other pairs of the batch are the negatives."""
    a, b = encode(encoder, first), encode(encoder, second)
    loss = info_nce(a, b, jnp.float32(1 / TAU))
    assert isinstance(loss, jax.Array)
    return loss, {}


def with_negatives(hard: bool) -> Loss:
    """One more negative a query, shared over the batch: the nearest of a pool by the model as it
    is now, or the first of it."""

    def loss(encoder: Encoder, first: Array, second: Array, key: Array) -> tuple[Array, Any]:
        _, pool = WORLD.pairs(key, POOL)
        a, b, others = (encode(encoder, x) for x in (first, second, pool))
        nearest = jnp.argmax(jax.lax.stop_gradient(a @ others.T), axis=1)
        chosen = others[nearest] if hard else others[: a.shape[0]]
        found = info_nce(a, b, jnp.float32(1 / TAU), negatives=chosen[:, None])
        assert isinstance(found, jax.Array)
        return found, {}

    return loss


def best(loss: Loss, batch: int, steps: int) -> list[float]:
    """nDCG@10 of every seed at the better of the learning rates (by the mean)."""
    found = []
    for rate in RATES:
        trained = train(loss, WORLD, steps=steps, batch=batch, dim=DIM, rate=rate)
        found.append(
            [
                measure(encoder, WORLD, GALLERY, seed)[METRIC]
                for seed, (encoder, _) in zip(SEEDS, trained, strict=True)
            ]
        )
    return max(found, key=np.mean)


def run(context: Context) -> Outcome:
    """F10's shape."""
    same_steps = {b: best(in_batch, b, STEPS) for b in BATCHES}
    most = STEPS * BATCHES[1]
    same_pairs = {b: best(in_batch, b, most // b) for b in BATCHES}
    added = {
        "in-batch only": same_steps[PLAIN],
        "one random negative a query": best(with_negatives(False), PLAIN, STEPS),
        "one hard negative a query": best(with_negatives(True), PLAIN, STEPS),
    }
    steps, pairs = ({b: mean(v) for b, v in x.items()} for x in (same_steps, same_pairs))
    rows = tuple((b, steps[b], pairs[b]) for b in BATCHES)
    negatives = tuple((name, mean(values)) for name, values in added.items())
    published = tuple((name, value) for name, value in PUBLISHED.items())
    return Outcome(
        name="hard_negatives",
        title="Hard negatives and bigger batches",
        question="Do larger batches help, less and less; does a hard negative help more than a "
        "random one? A linear encoder on synthetic pairs of 16 hidden dimensions.",
        published="E5 (Wang et al. 2022): batches of 1K, 8K, 32K gave 45.8, 50.2, 51.6 nDCG@10"
        " (F10). DPR (Karpukhin et al. 2020): one BM25 negative a question helps, a second hardly.",
        tables=(
            Table(
                "batch_size",
                f"nDCG@10 among {GALLERY:,}, mean over three seeds with 95 % interval; the better "
                f"of two learning rates.",
                ("batch", f"{STEPS} steps", f"{most:,} pairs seen"),
                rows,
            ),
            Table("negatives", f"Batch {PLAIN}, {STEPS} steps.", ("negatives", METRIC), negatives),
            Table("published", "E5's ablation.", ("batch", "nDCG@10, %"), published),
        ),
        plots=(
            Plot(
                "batch_size",
                "nDCG@10 by batch size",
                "batch size",
                METRIC,
                (_line(f"{STEPS} steps", steps), _line(f"{most:,} pairs", pairs)),
                x_log=True,
            ),
        ),
        checks=_checks(same_steps, added),
        notes=(f"tau = {TAU}; hard: the nearest of {POOL} by the model itself, every step.",),
    )


def _line(label: str, means: dict[int, Mean]) -> Line:
    columns = zip(*((float(b), *m[:3]) for b, m in means.items()), strict=True)
    x, y, low, high = (tuple(column) for column in columns)
    return Line(label, x, y, low, high)


def _checks(steps: dict[int, list[float]], added: dict[str, list[float]]) -> tuple[Check, ...]:
    values = [float(np.mean(steps[b])) for b in BATCHES]
    gains = np.diff(values)
    plain, random, hard = added.values()
    helps, beyond = difference(plain, hard), difference(random, hard)
    return (
        Check(
            "F10: more pairs in the batch, a better model (equal steps).",
            "rising",
            " → ".join(shown(value) for value in values),
            bool(np.all(gains > 0)),
        ),
        Check(
            "F10: by less and less.",
            "falling gains",
            ", ".join(shown(float(gain)) for gain in gains),
            bool(np.all(np.diff(gains) < 0)),
        ),
        Check("A hard negative a query helps.", "> 0", str(helps), helps.sure > 0, "finding"),
        Check("It helps more than a random one.", "> 0", str(beyond), beyond.sure > 0, "finding"),
    )
