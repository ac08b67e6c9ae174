"""Pulling alone collapses; InfoNCE does not (Wang & Isola's synthetic check)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from contrastive.geometry import alignment, uniformity
from contrastive.losses import info_nce
from contrastive.sweeps.seeds import mean
from experiments.common.outcome import Check, Outcome, Plot, Table, curve
from experiments.common.runner import Context
from experiments.common.seeds import SEEDS
from experiments.common.synthetic import Encoder, World, encode, measure, train

WORLD, STEPS, BATCH, GALLERY, TAU = World(noise=0.3), 1500, 256, 500, 0.1


def _watch(a: Array, b: Array) -> dict[str, Array]:
    return {"alignment": alignment(a, b), "uniformity": uniformity(a)}


def pull(encoder: Encoder, first: Array, second: Array, key: Array) -> tuple[Array, Any]:
    """Only ``mean ‖a − b‖²``."""
    a, b = encode(encoder, first), encode(encoder, second)
    return alignment(a, b), _watch(*map(jax.lax.stop_gradient, (a, b)))


def contrast(encoder: Encoder, first: Array, second: Array, key: Array) -> tuple[Array, Any]:
    """InfoNCE."""
    a, b = encode(encoder, first), encode(encoder, second)
    loss = info_nce(a, b, jnp.float32(1 / TAU))
    assert isinstance(loss, jax.Array)
    return loss, _watch(*map(jax.lax.stop_gradient, (a, b)))


def run(context: Context) -> Outcome:
    """F8 of the seed document."""
    losses = {"pull only": pull, "InfoNCE": contrast}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in losses}
    curves: dict[str, Any] = {}
    for name, loss in losses.items():
        trained = train(loss, WORLD, steps=STEPS, batch=BATCH)
        for seed, (encoder, watched) in zip(SEEDS, trained, strict=True):
            found[name].append(measure(encoder, WORLD, GALLERY, seed))
            curves.setdefault(name, watched)
    measures = ("alignment", "uniformity", "recall@1")
    means = {
        name: {key: mean([one[key] for one in rows]) for key in measures}
        for name, rows in found.items()
    }
    lines = tuple((name, *(means[name][key] for key in measures)) for name in losses)
    every = np.unique(np.geomspace(1, STEPS, 60).astype(int))
    plots = tuple(
        Plot(
            key,
            f"{key.capitalize()} during training",
            "step",
            key,
            tuple(
                curve(name, [(step, float(curves[name][key][step - 1])) for step in every])
                for name in losses
            ),
            x_log=True,
        )
        for key in ("alignment", "uniformity")
    )
    return Outcome(
        name="alignment_uniformity",
        title="Alignment and uniformity: pulling alone collapses",
        question="What do the two measures say of an encoder that only pulls pairs together, and "
        "of one trained with InfoNCE? Six hidden dimensions, two noisy views of 32, a linear "
        "encoder with a bias.",
        published="Wang & Isola 2020: without a force that spreads the points they collapse; the "
        "expected numbers are the seed document's (F8).",
        tables=(
            Table(
                "measures",
                f"On {GALLERY} unseen pairs, mean over three seeds with 95 % interval.",
                ("loss", *measures),
                lines,
            ),
        ),
        plots=plots,
        checks=_checks(means),
        notes=(f"Chance is {1 / GALLERY:.3f}. tau = {TAU}, {STEPS:,} steps of {BATCH} pairs.",),
    )


def _checks(means: dict[str, dict[str, Any]]) -> tuple[Check, ...]:
    alone, both = means["pull only"], means["InfoNCE"]

    def check(what: str, expected: str, value: float, met: bool) -> Check:
        return Check(f"F8: {what}", expected, f"{value:.4g}".replace("-", "−"), met)

    pulled, spread = alone["alignment"].value, alone["uniformity"].value
    recall = alone["recall@1"].value
    return (
        check("pull only, alignment → 0.", "< .001", pulled, pulled < 1e-3),
        check("pull only, uniformity → 0.", "> −.01", spread, spread > -0.01),
        check("pull only, recall@1 at chance.", "< 3 in 500", recall, recall < 3 / GALLERY),
        check(
            "InfoNCE gives some alignment up.",
            "> that of pulling alone",
            both["alignment"].value,
            both["alignment"].value > max(pulled, 0.01),
        ),
        check(
            "InfoNCE, uniformity far below 0.",
            "< −1",
            both["uniformity"].value,
            both["uniformity"].value < -1,
        ),
        check(
            "InfoNCE, recall@1 high.", "> .5", both["recall@1"].value, both["recall@1"].value > 0.5
        ),
    )
