"""Fixed and learned temperatures of the softmax loss, and starts of the sigmoid loss.

    contrastive sweep experiments/temperature/sweep.py:short --output=runs/temperature/sweep

``short``: 9 trials of 120 steps on the emoji. ``full``: 12 of 240 steps, three seeds. ``pod``: the
same temperatures for CLIP B/16 on 32,768 pairs of DataComp-1B, whose tars lie in
``data/datacomp1b/train`` and (held out) ``data/datacomp1b/validation``.
"""

import dataclasses
from typing import Any

from contrastive.errors import ConfigError
from contrastive.sweeps import Sweep

TAUS = {
    "short": (0.01, 0.03, 0.1, 0.3, 1.0),
    "full": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
}
STARTS = {  # of the sigmoid loss: scale and bias
    "short": ((10.0, -10.0), (10.0, "batch_size")),
    "full": ((10.0, -10.0), (10.0, "batch_size"), (1.0, 0.0)),
}
METRIC = "unseen_artist/image_to_text/recall@1"
NO_LIMIT = 1e6  # a scale that no run comes near


def softmax(scale: float, *, learned: bool, limit: float = 100.0) -> dict[str, Any]:
    """One way to set the temperature."""
    frozen = () if learned else (("log_scale", None),)
    return {
        "loss.name": "clip",
        "loss.scale_init": scale,
        "loss.max_scale": limit,
        "loss.bias_init": None,
        "optimizer.multipliers": frozen,
    }


def sigmoid(scale: float, bias: float | str) -> dict[str, Any]:
    """One start of the sigmoid loss; scale and bias are learned."""
    return {
        "loss.name": "siglip",
        "loss.scale_init": scale,
        "loss.max_scale": None,
        "loss.bias_init": bias,
        "optimizer.multipliers": (),
    }


def get_sweep(scope: str = "short") -> Sweep:
    """The sweep of a scope."""
    size = {"short": "short", "full": "full", "pod": "full"}.get(scope)
    if size is None:
        raise ConfigError(f"{scope!r}: choose short, full or pod.")
    learned = (
        softmax(1 / 0.07, learned=True),
        softmax(1 / 0.07, learned=True, limit=NO_LIMIT),
    )
    sweep = Sweep(
        name=f"temperature-{scope}",
        base="configs/emoji.py:small",
        settings=(
            *(softmax(1 / tau, learned=False) for tau in TAUS[size]),
            *learned,
            *(sigmoid(*start) for start in STARTS[size]),
        ),
        fixed={
            "average_decay": None,  # a short run's average would still remember its start
            "checkpoint.every": 0,
            "eval.baselines": False,
            "eval.every": 0,
        },
        seeds=(0,) if scope == "short" else (0, 1, 2),
        metric=METRIC,
        parallel=2,  # while one reads and compiles, the other one trains
    )
    if scope == "pod":
        fixed = {"total_steps": 20_000, "optimizer.warmup_steps": 1000}
        return dataclasses.replace(
            sweep,
            base="configs/clip.py:b16,datacomp1b",
            fixed=fixed | {"data.source": "data/datacomp1b/{split}/*.tar"},
            metric="validation/image_to_text/recall@1",
        )
    steps = {"short": 120, "full": 240}[scope]
    warmup = {"short": 20, "full": 40}[scope]
    fixed = {**sweep.fixed, "total_steps": steps, "optimizer.warmup_steps": warmup}
    return dataclasses.replace(sweep, fixed=fixed | {"log.every": max(steps // 60, 1)})
