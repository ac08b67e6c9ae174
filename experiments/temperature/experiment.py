"""What the temperature does: recall, spread, tolerance, and which negatives are pushed."""

from typing import Any

import numpy as np

from contrastive.evaluation.similarity import spearman
from contrastive.sweeps.results import Row
from contrastive.sweeps.seeds import Mean, mean
from experiments.common.outcome import Check, Line, Outcome, Plot, Table, curve, shown
from experiments.common.runner import Context
from experiments.common.training import Trials, train
from experiments.temperature.measures import measure
from experiments.temperature.sweep import METRIC, NO_LIMIT, TAUS

LEARNED = "learned, clip 100"
MEASURES = ("recall@1", "alignment", "uniformity", "tolerance", "hardest", "scale")


def label(row: Row) -> str:
    """How a setting of the temperature is called."""
    settings = row.trial.settings
    if settings["loss.name"] == "siglip":
        bias = settings["loss.bias_init"]
        word = "−log(B − 1)" if bias == "batch_size" else shown(bias)
        return f"sigmoid from {shown(settings['loss.scale_init'])}, {word}"
    if settings["optimizer.multipliers"]:
        return f"tau = {shown(1 / settings['loss.scale_init'])}"
    return "learned, no clip" if settings["loss.max_scale"] == NO_LIMIT else LEARNED


def run(context: Context) -> Outcome:
    """Fixed against learned temperatures, on the emoji."""
    (trials,) = train(context, [f"experiments/temperature/sweep.py:{context.scope}"])
    groups: dict[str, list[Row]] = {}
    for row in trials.rows:
        groups.setdefault(label(row), []).append(row)
    context.say("measuring what was trained ...")
    found = {
        name: {
            key: mean(values)
            for key, values in _columns([_measured(trials, row) for row in rows]).items()
        }
        for name, rows in groups.items()
    }
    fixed = {
        1 / rows[0].trial.settings["loss.scale_init"]: found[name]
        for name, rows in groups.items()
        if name.startswith("tau")
    }
    head = (
        "temperature",
        "recall@1",
        "alignment",
        "uniformity",
        "tolerance",
        "hardest 1 %",
        "scale",
    )
    lines = tuple((name, *(row[key] for key in MEASURES)) for name, row in found.items())
    first = {name: rows[0] for name, rows in groups.items()}
    return Outcome(
        name="temperature",
        title="Temperature: fixed, learned, clipped",
        question="What does the temperature do to retrieval, to the spread of the embeddings, to "
        "near-duplicates, and to the negatives that are pushed; and where does a learned one go?",
        published="Wang & Liu 2021: a low temperature gives a more uniform and less tolerant "
        "space, and one in between is best (.2 to .3 for their pictures); CLIP (Radford et al. "
        "2021) learns it from .07 and clips the scale at 100.",
        tables=(
            Table("temperature", f"Unseen artist; {_of(trials)}", head, lines),
            _at_other_temperatures(found[LEARNED]),
            _published(),
        ),
        plots=(
            *_by_tau(fixed, found[LEARNED]),
            _trajectory(trials, first),
            _difficulty(trials, first),
        ),
        checks=_checks(found, fixed, _largest(trials, groups[LEARNED])),
        notes=(
            "Tolerance: how much larger the mean cosine of two pictures is when they show variants "
            "of one emoji. Hardest 1 %: their share of the gradient weight on a picture's "
            "negatives. Alignment: smaller is nearer; uniformity: smaller is wider spread.",
            "Pod scale: `contrastive sweep experiments/temperature/sweep.py:pod --output=DIR "
            "--launcher=slurm --on=launch/slurm.py:h100`; CLIP B/16, 32,768 pairs of DataComp-1B.",
        ),
    )


def _of(trials: Trials) -> str:
    recipe = trials.rows[0].trial.recipe
    seeds = len({row.trial.recipe.seed for row in trials.rows})
    return (
        f"recipe {recipe.name}, {recipe.total_steps} steps of {recipe.batch_size} pairs, {seeds} "
        "seed(s)."
    )


def _measured(trials: Trials, row: Row) -> dict[str, float]:
    return {"recall@1": row.results[METRIC], **trials.measured(row, measure)}


def _largest(trials: Trials, rows: list[Row]) -> float:
    """The largest scale at any step."""
    return max(entry["scale"] for row in rows for entry in trials.lines(row))


def _columns(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


def _published() -> Table:
    rows = (
        ("SimCSE", 0.05),
        ("E5, GTE", 0.01),
        ("BGE, fine-tuning", 0.02),
        ("CLIP, at the start", 0.07),
    )
    return Table("published", "Temperatures in use.", ("model", "tau"), rows)


def _at_other_temperatures(learned: dict[str, Mean]) -> Table:
    rows = tuple((tau, learned[f"hardest/{tau}"]) for tau in TAUS["full"])
    caption = "The rows of the model with the learned temperature, weighed at others."
    return Table("same_rows", caption, ("tau", "hardest 1 %"), rows)


def _by_tau(fixed: dict[float, dict[str, Mean]], learned: dict[str, Mean]) -> tuple[Plot, ...]:
    taus = sorted(fixed)
    same = TAUS["full"]
    of_learned = Line(
        "rows of the learned one", same, tuple(learned[f"hardest/{tau}"].value for tau in same)
    )

    def line(key: str) -> Line:
        means = [fixed[tau][key] for tau in taus]
        columns = zip(*((m.value, m.low, m.high) for m in means), strict=True)
        y, low, high = (tuple(column) for column in columns)
        return Line("trained with it", tuple(taus), y, low, high)

    titles = {
        "recall@1": "Recall@1, unseen artist",
        "uniformity": "Uniformity",
        "tolerance": "Tolerance of variants",
        "hardest": "Gradient weight on the hardest 1 %",
    }
    return tuple(
        Plot(
            key.replace("@", "_at_"),
            title,
            "fixed temperature",
            key,
            (line(key), of_learned) if key == "hardest" else (line(key),),
            x_log=True,
        )
        for key, title in titles.items()
    )


def _trajectory(trials: Trials, first: dict[str, Row]) -> Plot:
    lines = tuple(
        curve(name, [(entry["step"], entry["scale"]) for entry in trials.lines(row)])
        for name, row in first.items()
        if not name.startswith("tau")
    )
    return Plot(
        "scale",
        "Learned scale during training, first seed",
        "step",
        "scale",
        lines,
        y_log=True,
        references=(("CLIP's limit", 100.0),),
    )


def _difficulty(trials: Trials, first: dict[str, Row]) -> Plot:
    key = "accuracy/image_to_text"
    lines = tuple(
        curve(name, [(entry[key], entry["scale"]) for entry in trials.lines(row)])
        for name, row in first.items()
        if name.startswith("learned")
    )
    return Plot(
        "difficulty",
        "Learned scale against how easy the batch is, first seed",
        "accuracy in the batch",
        "scale",
        lines,
    )


def _checks(found: dict[str, Any], fixed: dict[float, Any], largest: float) -> tuple[Check, ...]:
    taus = sorted(fixed)

    def values(key: str) -> list[float]:
        return [fixed[tau][key].value for tau in taus]

    def follows(what: str, key: str, sign: int) -> Check:
        """Rank correlation with tau, so that noise between neighbours does not hide a trend."""
        correlation = spearman(np.array(taus), np.array(values(key))) or 0.0  # none: all equal
        word = "rising" if sign > 0 else "falling"
        return Check(
            what,
            f"{word} in tau, rank correlation {shown(0.8 * sign)} or beyond",
            f"{shown(correlation)} ({' → '.join(map(shown, values(key)))})",
            sign * correlation >= 0.8,
            "finding",
        )

    recalls = values("recall@1")
    best = taus[int(np.argmax(recalls))]
    learned = found[LEARNED]
    same = [learned[f"hardest/{tau}"].value for tau in TAUS["full"]]
    return (
        follows("A lower temperature spreads more (uniformity).", "uniformity", 1),
        follows("A lower one tolerates variants less.", "tolerance", 1),
        Check(
            "F5: of the same rows, a lower one pushes the hardest 1 % more.",
            "falling in tau",
            " → ".join(map(shown, same)),
            bool(np.all(np.diff(same) < 0)),
        ),
        follows("So do models that were trained with it.", "hardest", -1),
        Check(
            "The best fixed temperature lies in between.",
            f"neither {shown(taus[0])} nor {shown(taus[-1])}",
            "; ".join(
                f"{shown(tau)}: {fixed[tau]['recall@1']}" for tau in (taus[0], best, taus[-1])
            ),
            best not in (taus[0], taus[-1]),
            "finding",
        ),
        Check(
            "Learned is about as good as the best fixed one.",
            "within .03 and a fifth of its recall@1",
            f"{learned['recall@1']} against {fixed[best]['recall@1']}",
            learned["recall@1"].value > max(recalls) - min(0.03, 0.2 * max(recalls)),
            "finding",
        ),
        Check(
            "The learned scale stays within the clip at every step.",
            "≤ 100",
            shown(largest) + (", which is not near it" if largest < 90 else ""),
            largest <= 100 * (1 + 1e-6),
            "number",
        ),
    )
