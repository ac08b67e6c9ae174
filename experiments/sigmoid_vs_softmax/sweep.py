"""Sigmoid against softmax over batch sizes, at equal examples seen.

    contrastive sweep experiments/sigmoid_vs_softmax/sweep.py:emoji-short --output=runs/s/sweep

``emoji-short``, ``emoji-full``: pictures and names, 32 to 512 pairs a step. ``texts-short``,
``texts-full``: Debian's short and long descriptions, 32 to 2,048 (4,096) pairs, above what fits by
gradient caching. ``pod``: CLIP B/16 and 512 to 1,048,576 pairs of DataComp-1B, whose tars lie in
``data/datacomp1b/train`` and (held out) ``data/datacomp1b/validation``.
"""

import dataclasses
from typing import Any

from contrastive.errors import ConfigError
from contrastive.sweeps import Sweep, grid, product
from contrastive.sweeps.description import Settings

METRICS = {
    "emoji": "unseen_artist/image_to_text/recall@1",
    "texts": "validation/query_to_positive/recall@1",
    "pod": "validation/image_to_text/recall@1",
}
BATCHES = {
    "emoji-short": (32, 128, 512),
    "emoji-full": (32, 128, 512),
    "texts-short": (32, 256, 2048),
    "texts-full": (32, 256, 1024, 4096),
    "pod": (512, 4096, 32_768, 262_144, 1_048_576),
}
SEEN = {  # pairs, at every batch size
    "emoji-short": 15_360,
    "emoji-full": 38_400,
    "texts-short": 40_960,
    "texts-full": 49_152,
    "pod": 1 << 30,
}
RATES = {"emoji": (1e-3, 3e-3), "texts": (1e-3, 4e-3), "pod": (5e-4, 1e-3)}
AT_ONCE = {"emoji": 512, "texts": 1024, "pod": 32_768}  # pairs that fit; more in microbatches


def losses(masked: bool) -> Settings:
    """Both losses, each with its own start; the sigmoid's bias suits the batch."""
    common = {"loss.mask_duplicates": masked}
    softmax = {"loss.name": "clip", "loss.scale_init": 1 / 0.07, "loss.bias_init": None}
    sigmoid = {"loss.name": "siglip", "loss.scale_init": 10.0, "loss.bias_init": "batch_size"}
    return ({**softmax, **common}, {**sigmoid, **common})


def sizes(kind: str, batches: tuple[int, ...], seen: int) -> Settings:
    """Batch sizes with the steps that come to equal examples, and the microbatches that fit."""
    found: list[dict[str, Any]] = []
    for batch in batches:
        steps = seen // batch
        found.append(
            {
                "batch_size": batch,
                "total_steps": steps,
                "optimizer.warmup_steps": max(steps // 20, 1),
                "train.microbatches": max(batch // AT_ONCE[kind], 1),
                "log.every": max(steps // 40, 1),
            }
        )
    return tuple(found)


def get_sweep(scope: str = "emoji-short") -> Sweep:
    """The sweep of a scope."""
    if scope not in BATCHES:
        raise ConfigError(f"{scope!r}: choose one of {', '.join(BATCHES)}.")
    kind, _, size = scope.partition("-")
    rates = grid({"optimizer.learning_rate": RATES[kind]})
    steps = sizes(kind, BATCHES[scope], SEEN[scope])
    settings = product(steps, losses(masked=True), rates)
    if kind == "emoji":  # where a batch holds several drawings of one emoji
        settings += product(steps[-1:], losses(masked=False), rates[-1:])
    sweep = Sweep(
        name=f"sigmoid-vs-softmax-{scope}",
        base={"emoji": "configs/emoji.py:small", "texts": "configs/mnrl.py:bag"}.get(
            kind, "configs/clip.py:b16,datacomp1b"
        ),
        settings=settings,
        # An average over steps would favour the runs that make many.
        fixed={"average_decay": None, "checkpoint.every": 0, "eval.every": 0},
        seeds=(0,) if size == "short" else (0, 1, 2),
        metric=METRICS[kind],
        parallel=2,  # while one reads and compiles, the other one trains
    )
    if kind == "pod":
        return dataclasses.replace(sweep, fixed={"data.source": "data/datacomp1b/{split}/*.tar"})
    fixed: dict[str, Any] = {**sweep.fixed, "eval.baselines": False}
    if kind == "texts":  # the recipe holds the temperature; here both losses learn theirs
        fixed |= {"optimizer.multipliers": ()}
    return dataclasses.replace(sweep, fixed=fixed)
