"""Dense passage retrieval: negatives of the batch, of BM25, and of the model itself (ANCE)."""

import numpy as np

from contrastive.commands.mine import mine
from contrastive.mining import MiningConfig
from contrastive.recipe import load_recipe
from contrastive.sweeps.results import Row
from contrastive.sweeps.seeds import Mean, mean
from experiments.common.data import ready
from experiments.common.outcome import Check, Line, Outcome, Plot, Table
from experiments.common.runner import Context
from experiments.common.training import Trials, train, values
from experiments.dense_retrieval.sweep import METRIC, NEGATIVES

TITLES = {"batch": "of the batch only", "bm25": "one by BM25", "ance": "one by the model (ANCE)"}
METRICS = {
    "recall@1": METRIC,
    "recall@10": METRIC.replace("@1", "@10"),
    "long → short, recall@1": METRIC.replace("query_to_positive", "positive_to_query"),
    "training pairs, recall@1": METRIC.replace("validation", "train"),
}


def run(context: Context) -> Outcome:
    """The three sources of negatives, at equal examples seen."""
    mined = ready("debian") / "negatives.jsonl"
    if not mined.exists():
        context.say("BM25 ranks the passages ...")
        mine(load_recipe("configs/dpr.py:debian"), mined, MiningConfig())
    (trials,) = train(context, [f"experiments/dense_retrieval/sweep.py:{context.scope}"])
    rows = {name: trials.where(name=f"dpr-{name}") for name in NEGATIVES}
    gains = {
        name: trials.difference(rows["batch"], rows[name], METRIC) for name in ("bm25", "ance")
    }
    over = "seeds" if len(rows["batch"]) > 1 else "queries (one seed)"
    first = trials.evaluation(rows["batch"][0])
    return Outcome(
        name="dense_retrieval",
        title="Where hard negatives come from",
        question="Two towers learn to find Debian's long descriptions by the short ones: does one "
        "hard negative a question help, found by BM25 before or by the model as it trains, at "
        "equal examples seen?",
        published="DPR (Karpukhin et al. 2020): one BM25 negative a question adds some points to "
        "those of the batch. ANCE (Xiong et al. 2021): negatives that the model mines add more.",
        tables=(_table(rows, over), _gains(gains, over)),
        plots=(
            Plot(
                "loss",
                "Loss, mean over seeds",
                "step",
                "loss",
                tuple(_line(trials, name, rows[name]) for name in NEGATIVES),
                y_log=True,
            ),
        ),
        checks=tuple(_check(name, gain) for name, gain in gains.items()),
        notes=(
            f"Beside: words in common (TF-IDF) {first[f'{METRIC}_tf_idf']:.4f}; chance "
            f"{first[f'{METRIC}_chance']:.4f}.",
            "Losses are not comparable across the rows: a hard negative is one more rival.",
        ),
    )


def _table(rows: dict[str, list[Row]], over: str) -> Table:
    body = tuple(
        (TITLES[name], len(found), *(mean(values(found, key)) for key in METRICS.values()))
        for name, found in rows.items()
    )
    caption = f"Debian descriptions, 2,000 that were not trained on; intervals over {over}."
    return Table("negatives", caption, ("hard negatives", "seeds", *METRICS), body)


def _gains(gains: dict[str, Mean], over: str) -> Table:
    body = tuple((TITLES[name], gain) for name, gain in gains.items())
    caption = f"Gain in recall@1 over negatives of the batch only, paired; intervals over {over}."
    return Table("gains", caption, ("hard negatives", "gain"), body)


def _line(trials: Trials, name: str, rows: list[Row]) -> Line:
    lines = [trials.lines(row) for row in rows]
    steps = tuple(float(entry["step"]) for entry in lines[0])
    return Line(TITLES[name], steps, tuple(np.mean([[e["loss"] for e in x] for x in lines], 0)))


def _check(name: str, gain: Mean) -> Check:
    return Check(
        f"A hard negative {TITLES[name].removeprefix('one ')} helps.",
        "difference surely > 0",
        f"{gain}",
        gain.sure > 0,
        "finding",
    )
