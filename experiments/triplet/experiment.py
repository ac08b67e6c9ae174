"""The triplet loss against InfoNCE: how many examples still teach something."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from contrastive.losses import info_nce, triplet_loss
from contrastive.sweeps.seeds import mean
from experiments.common.outcome import Check, Outcome, Plot, Table, curve
from experiments.common.runner import Context
from experiments.common.seeds import SEEDS, difference
from experiments.common.synthetic import Encoder, Loss, World, encode, measure, train

WORLD, DIM, STEPS, BATCH, GALLERY = World(meaning=16, view=64, noise=0.6), 16, 600, 128, 2000
TAU = 0.05


def _idle(a: Array, b: Array, margin: float) -> Array:
    """Share of the triplets with a random negative that the margin lets pass: no gradient."""
    near, far = (jnp.linalg.norm(a - x, axis=1) for x in (b, jnp.roll(b, 1, axis=0)))
    return jnp.mean((near - far + margin <= 0).astype(jnp.float32))


def triplet(margin: float, mining: Any) -> Loss:
    """One random negative an anchor (``given``), or the hardest of the batch."""

    def loss(encoder: Encoder, first: Array, second: Array, key: Array) -> tuple[Array, Any]:
        a, b = encode(encoder, first), encode(encoder, second)
        negatives = jnp.roll(b, 1, axis=0) if mining == "given" else None
        found = triplet_loss(a, b, negatives, margin=margin, mining=mining)
        return found, _idle(jax.lax.stop_gradient(a), jax.lax.stop_gradient(b), margin)

    return loss


def contrast(encoder: Encoder, first: Array, second: Array, key: Array) -> tuple[Array, Any]:
    """InfoNCE: every negative counts, by how confusable it is."""
    a, b = encode(encoder, first), encode(encoder, second)
    loss = info_nce(a, b, jnp.float32(1 / TAU))
    assert isinstance(loss, jax.Array)
    return loss, jnp.float32(0)


LOSSES = {
    "triplet, margin 1, random": triplet(1.0, "given"),
    "triplet, margin .2, random": triplet(0.2, "given"),
    "triplet, margin .2, hardest of the batch": triplet(0.2, "batch_hard"),
    "InfoNCE": contrast,
}


def run(context: Context) -> Outcome:
    """Triplet (Sentence-BERT's margin and a smaller one) and InfoNCE at equal steps."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LOSSES}
    idle: dict[str, np.ndarray] = {}
    for name, loss in LOSSES.items():
        trained = train(loss, WORLD, steps=STEPS, batch=BATCH, dim=DIM)
        for seed, (encoder, watched) in zip(SEEDS, trained, strict=True):
            found[name].append(measure(encoder, WORLD, GALLERY, seed))
            idle.setdefault(name, watched)
    recall = {name: [one["recall@1"] for one in rows] for name, rows in found.items()}
    spread = {name: [one["uniformity"] for one in rows] for name, rows in found.items()}
    last = {name: float(values[-50:].mean()) for name, values in idle.items()}
    rows = tuple(
        (
            name,
            mean(recall[name]),
            mean(spread[name]),
            last[name] if "random" in name else None,
        )
        for name in LOSSES
    )
    every = range(0, STEPS, 10)
    random = "triplet, margin .2, random"
    ahead = difference(recall[random], recall["InfoNCE"])
    ahead_of_one = difference(recall["triplet, margin 1, random"], recall["InfoNCE"])
    checks = (
        Check(
            "Once beaten by the margin, a triplet gives no gradient: most do, at the end.",
            "> .5 at margin .2",
            f"{last[random]:.3f}",
            last[random] > 0.5,
        ),
        Check(
            "InfoNCE beats one random negative an anchor, margin .2.",
            "recall@1 difference > 0",
            str(ahead),
            ahead.sure > 0,
        ),
        Check(
            "And Sentence-BERT's margin of 1.",
            "recall@1 difference > 0",
            str(ahead_of_one),
            ahead_of_one.sure > 0,
            "finding",
        ),
    )
    plot = Plot(
        "idle",
        "Triplets without a gradient",
        "step",
        "share of the triplets",
        tuple(
            curve(name, [(step, float(idle[name][step : step + 10].mean())) for step in every])
            for name in LOSSES
            if "random" in name
        ),
    )
    head = ("loss", "recall@1", "uniformity", "idle triplets at the end")
    return Outcome(
        name="triplet",
        title="Triplet loss against InfoNCE",
        question="With one negative an anchor and a margin, how many examples still teach "
        "something, and what does that cost?",
        published="Sentence-BERT (Reimers & Gurevych 2019) used margin 1; its library soon made "
        "in-batch InfoNCE the default, because it retrieves better.",
        tables=(
            Table(
                "losses",
                f"{STEPS} steps of {BATCH} pairs, {GALLERY:,} unseen ones, mean over three seeds "
                "with 95 % interval.",
                head,
                rows,
            ),
        ),
        plots=(plot,),
        checks=checks,
        notes=(f"The synthetic world of the other experiments; InfoNCE at tau = {TAU}.",),
    )
