"""Where the hard negatives of dense passage retrieval come from, at equal examples seen.

    contrastive sweep experiments/dense_retrieval/sweep.py:full --output=runs/dense/sweep

``batch``: none but the other passages of the batch; ``bm25``: one a question, mined before
(``data/debian/negatives.jsonl``); ``ance``: one a question, mined by the model as it trains.
``short``: 200 steps of 512 pairs, one seed; ``full``: 400 steps, three seeds.
"""

from typing import Any

from contrastive.errors import ConfigError
from contrastive.sweeps import Sweep

NEGATIVES: dict[str, dict[str, Any]] = {
    "batch": {},
    "bm25": {"data.negatives": 1, "data.fields.negatives_file": "data/debian/negatives.jsonl"},
    # The first passages in rank are often right too; configs/ance.py has the same numbers.
    "ance": {"data.negatives": 1, "data.mined.candidates": 20, "data.mined.skip": 5},
}
METRIC = "validation/query_to_positive/recall@1"
STEPS = {"short": 200, "full": 400}
REFRESHES = 8  # of the mined negatives during a run


def get_sweep(scope: str = "short") -> Sweep:
    """The sweep of a scope."""
    if scope not in STEPS:
        raise ConfigError(f"{scope!r}: choose short or full.")
    steps = STEPS[scope]
    refresh = {"data.mined.every": steps // REFRESHES}
    return Sweep(
        name=f"dense-retrieval-{scope}",
        base="configs/dpr.py:debian",
        settings=tuple(
            {"name": f"dpr-{name}", **found, **(refresh if name == "ance" else {})}
            for name, found in NEGATIVES.items()
        ),
        fixed={
            "total_steps": steps,
            "optimizer.warmup_steps": steps // 16,
            "checkpoint.every": 0,
            "eval.every": 0,
            "log.every": steps // 40,
        },
        seeds=(0,) if scope == "short" else (0, 1, 2),
        metric=METRIC,
        parallel=2,  # while one reads and compiles, the other one trains
    )
