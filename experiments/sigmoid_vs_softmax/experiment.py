"""Sigmoid against softmax: quality and cost by batch size, at equal examples seen."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive.geometry import normalize
from contrastive.losses import clip_loss, sigmoid_loss
from contrastive.sweeps.results import Row
from contrastive.sweeps.seeds import Mean, mean
from experiments.common.data import ready
from experiments.common.outcome import Check, Line, Outcome, Plot, Table, shown
from experiments.common.runner import Context
from experiments.common.seeds import possible
from experiments.common.training import Trials, train, values
from experiments.sigmoid_vs_softmax.sweep import METRICS, RATES

KINDS = {"emoji": "emoji, unseen artist", "texts": "Debian descriptions"}
LOSSES = {"clip": "softmax", "siglip": "sigmoid"}
DRAWS = 2000  # curves of differences, for the interval of the crossing
RATE = "optimizer.learning_rate"
COST = (256, 1024, 4096)  # batch sizes whose loss is timed
DIM = 256


def run(context: Context) -> Outcome:
    """Both data sets, both losses, the better learning rate of each batch size."""
    ready("debian")
    base = "experiments/sigmoid_vs_softmax/sweep.py"
    specs = [f"{base}:{kind}-{context.scope}" for kind in KINDS]
    found = dict(zip(KINDS, train(context, specs), strict=True))
    sizes = {kind: _by_size(trials, METRICS[kind]) for kind, trials in found.items()}
    context.say("timing the losses ...")
    cost = _cost()
    masks = _masks(found["emoji"], METRICS["emoji"])
    return Outcome(
        name="sigmoid_vs_softmax",
        title="Sigmoid against softmax",
        question="At which batch sizes is the sigmoid loss the better one, at equal examples seen "
        "and the better of two learning rates; and what does each cost?",
        published="SigLIP (Zhai et al. 2023): sigmoid ahead of softmax below about 16k pairs, both "
        "level off near 32k.",
        tables=(
            *(_table(kind, found[kind], sizes[kind]) for kind in KINDS),
            _crossings(sizes),
            masks,
            cost,
        ),
        plots=tuple(_plot(kind, sizes[kind]) for kind in KINDS),
        checks=tuple(_check(kind, sizes[kind]) for kind in KINDS),
        notes=(
            "The better learning rate is chosen by the numbers that are shown, for both losses "
            "alike: that favours neither, and flatters both.",
            "Pod scale: `contrastive sweep experiments/sigmoid_vs_softmax/sweep.py:pod "
            "--output=DIR --launcher=slurm --on=launch/slurm.py:h100`; 512 to 1,048,576 pairs a "
            "step, 2^30 seen.",
        ),
    )


def _by_size(trials: Trials, metric: str) -> dict[int, dict[str, Any]]:
    """Of each batch size and loss the runs at its better learning rate, and the difference."""
    found: dict[int, dict[str, Any]] = {}
    for batch in sorted({row.trial.settings["batch_size"] for row in trials.rows}):
        best = {}
        for loss in LOSSES:
            rows = trials.where(batch_size=batch, loss__name=loss, loss__mask_duplicates=True)
            rates: dict[float, list[Row]] = {}
            for row in rows:
                rates.setdefault(row.trial.settings[RATE], []).append(row)
            rate = max(rates, key=lambda r: np.mean([row.results[metric] for row in rates[r]]))
            best[loss] = rates[rate]
        found[batch] = {
            "rows": best,
            "values": {loss: mean(values(rows, metric)) for loss, rows in best.items()},
            "difference": trials.difference(best["clip"], best["siglip"], metric),
        }
    return found


def _table(kind: str, trials: Trials, sizes: dict[int, dict[str, Any]]) -> Table:
    rows = []
    for batch, one in sizes.items():
        chosen = [one["rows"][loss][0] for loss in LOSSES]
        rows.append(
            (
                batch,
                chosen[0].trial.recipe.total_steps,
                chosen[0].trial.recipe.train.microbatches,
                *(one["values"][loss] for loss in LOSSES),
                one["difference"],
                *(row.trial.settings[RATE] for row in chosen),
            )
        )
    seeds = len({row.trial.settings.get("seed") for row in trials.rows})
    over = "seeds" if seeds > 1 else "queries (one seed)"
    head = ("batch", "steps", "microbatches", "softmax", "sigmoid", "sigmoid − softmax",
            "rate, softmax", "rate, sigmoid")  # fmt: skip
    rates = ", ".join(shown(rate) for rate in RATES[kind])
    caption = (
        f"{KINDS[kind]}, {METRICS[kind]}; recipe {trials.rows[0].trial.recipe.name}, the better of "
        f"the rates {rates}; intervals over {over}; {seeds} seed(s)."
    )
    return Table(kind, caption, head, tuple(rows))


def _masks(trials: Trials, metric: str) -> Table:
    """The largest batch with and without its duplicates masked, at the same rate."""
    rows = []
    for loss, name in LOSSES.items():
        without = trials.where(loss__name=loss, loss__mask_duplicates=False)
        same = {key: without[0].trial.settings[key] for key in ("batch_size", RATE)}
        masked = trials.where(loss__name=loss, loss__mask_duplicates=True, **same)
        means = (mean(values(part, metric)) for part in (without, masked))
        rows.append((name, *means, trials.difference(without, masked, metric)))
    caption = "Emoji, largest batch: drawings of the same emoji as negatives, or left out."
    head = ("loss", "as negatives", "left out", "difference")
    return Table("duplicates", caption, head, tuple(rows))


def _plot(kind: str, sizes: dict[int, dict[str, Any]]) -> Plot:
    lines = []
    for loss, name in LOSSES.items():
        columns = zip(*(one["values"][loss][:3] for one in sizes.values()), strict=True)
        y, low, high = (tuple(column) for column in columns)
        lines.append(Line(name, tuple(map(float, sizes)), y, low, high))
    return Plot(
        kind, f"recall@1, {KINDS[kind]}", "batch size", "recall@1", tuple(lines), x_log=True
    )


def crossing(batches: Sequence[int], differences: Sequence[float]) -> float | None:
    """The batch size at which softmax overtakes sigmoid, between two that were measured (linear
    in the logarithm); None where sigmoid is not ahead first and behind afterwards."""
    pairs = list(zip(map(math.log, batches), differences, strict=True))
    for (x, before), (y, after) in itertools.pairwise(pairs):
        if before > 0 >= after:
            return math.exp(x + (y - x) * before / (before - after))
    return None


def crossing_interval(
    batches: Sequence[int], differences: Sequence[Mean]
) -> tuple[float, float, float]:
    """The 95 % interval of the crossing and the share of curves that have one, among curves that
    the intervals of the differences allow; NaN bounds where none has."""
    rng = np.random.default_rng(0)
    curves = np.stack([possible(found, DRAWS, rng) for found in differences], axis=1)
    found = [x for x in (crossing(batches, curve) for curve in curves) if x is not None]
    low, high = np.quantile(found, [0.025, 0.975]) if found else (math.nan, math.nan)
    return float(low), float(high), len(found) / DRAWS


def _crossings(sizes: dict[str, dict[int, dict[str, Any]]]) -> Table:
    rows = []
    for kind, by_size in sizes.items():
        found = [one["difference"] for one in by_size.values()]
        where = crossing(list(by_size), [one.value for one in found])
        rows.append((KINDS[kind], where, *crossing_interval(list(by_size), found)))
    caption = (
        "The batch size at which softmax overtakes sigmoid (none: sigmoid is not ahead first and "
        "behind afterwards), its 95 % interval, and how many of the curves that the differences' "
        "intervals allow cross at all."
    )
    return Table("crossing", caption, ("set", "crossing", "from", "to", "share"), tuple(rows))


def _check(kind: str, sizes: dict[int, dict[str, Any]]) -> Check:
    found = [one["difference"] for one in sizes.values()]
    cross = crossing(list(sizes), [d.value for d in found])
    sure = {b: d.sure for b, d in zip(sizes, found, strict=True)}
    ahead = [f"{b:,}" for b, sign in sure.items() if sign > 0]
    behind = [f"{b:,}" for b, sign in sure.items() if sign < 0]
    low, high, share = crossing_interval(list(sizes), found)
    where = (
        "no crossing from above"
        if cross is None
        else f"they cross near {cross:,.0f} [{low:,.0f}, {high:,.0f}]"
    )
    where += f" ({100 * share:.0f} % of the curves that the intervals allow cross)"
    at = {"ahead": ", ".join(ahead) or "none", "behind": ", ".join(behind) or "none"}
    said = f"{where}; sigmoid surely ahead at {at['ahead']}, behind at {at['behind']}"
    return Check(
        f"Sigmoid is ahead at small batches ({KINDS[kind]}).",
        "the smallest batch: difference surely > 0",
        said,
        next(iter(sure.values())) > 0,
        "finding",
    )


def _cost() -> Table:
    """Forward and backward of the losses alone, one device; they take turns."""
    rows = []
    for batch in COST:
        rng = np.random.default_rng(0)
        x, y = (
            jnp.asarray(normalize(rng.standard_normal((batch, DIM), np.float32))) for _ in range(2)
        )
        ids = jnp.arange(batch, dtype=jnp.int32) // 2  # every content twice
        steps = {
            (loss, masked): jax.jit(jax.grad(functools.partial(_loss, loss, masked), (0, 1)))
            for masked in (False, True)
            for loss in LOSSES
        }
        times: dict[Any, list[float]] = {form: [] for form in steps}
        for _ in range(8):
            for form, step in steps.items():
                start = time.perf_counter()
                jax.block_until_ready(step(x, y, ids))
                times[form].append(1000 * (time.perf_counter() - start))
        medians = [statistics.median(times[form][1:]) for form in steps]
        rows.append((batch, *medians[:2], medians[1] / medians[0], *medians[2:]))
    caption = f"Milliseconds of the loss alone, forward and backward, {DIM} dimensions, one device."
    head = ("batch", "softmax", "sigmoid", "sigmoid / softmax", "softmax, duplicates masked",
            "sigmoid, duplicates masked")  # fmt: skip
    return Table("cost", caption, head, tuple(rows))


def _loss(name: str, masked: bool, x: jax.Array, y: jax.Array, ids: jax.Array) -> jax.Array:
    known = ids if masked else None
    if name == "clip":
        return jnp.asarray(clip_loss(x, y, jnp.float32(14), ids=known))
    return jnp.asarray(sigmoid_loss(x, y, jnp.float32(10), jnp.float32(-10), ids=known))
