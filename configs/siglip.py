"""Sigmoid models for a pod: SigLIP at its published sizes.

    contrastive plan --config=configs/siglip.py:so400m --topology=v5e:16x16
    contrastive train --config=configs/siglip.py:b16 --workdir=runs/siglip-b16

The argument chooses the image tower: ``b16``, ``l16``, ``so400m`` or ``g``. Sizes are those of Zhai
et al. 2023 (https://arxiv.org/abs/2303.15343); the schedule is that of SigLIP 2 (Tschannen et al.
2025, https://arxiv.org/abs/2502.14786): 32,768 pairs a step, 40 billion in all, learning rate 1e-3
with 20,000 steps of warm-up and cosine, decoupled weight decay 1e-4 a step (here relative to the
learning rate: 0.1), second-moment decay .95, gradients of norm 1 at most. The papers use an
Adafactor; here it is AdamW.

Without a second word the data are synthetic (random pairs): good for plans, dry runs and
throughput. ``siglip.py:b16,webli`` reads a set from ``data/webli`` with the tokenizer that SigLIP's
authors publish, ``data/siglip/sentencepiece.model``; known are ``laion400m``, ``laion2b``,
``datacomp1b``, ``cc12m`` and ``webli`` (contrastive/data/published.py says how they lie), and yours
is named by ``--config.data.source=…`` (docs/data.md).
"""

from ml_collections import ConfigDict

from contrastive.config import to_dict
from contrastive.data.published import pictures
from contrastive.towers import sizes

_TOWERS = {"b16": "B/16", "l16": "L/16", "so400m": "So400m/14", "g": "g/14"}


def get_config(argument: str = "b16") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    size, _, data = argument.partition(",")
    published = sizes.published(sizes.SIGLIP, sizes.published(_TOWERS, size))
    config = ConfigDict()
    config.name = f"siglip-{size}"
    config.batch_size = 32_768
    config.total_steps = round(40e9 / config.batch_size)

    config.data = ConfigDict()
    config.data.source = "synthetic"
    config.data.image_size = published.image_size
    config.data.text_length = 64
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = published.vocabulary_size

    # bfloat16 computation, float32 parameters; of a block only what enters it is kept
    config.model = ConfigDict(to_dict(sizes.frugal(published.model)))
    if data:
        config.name += f"-{data}"
        config.data.update(pictures(data, reading="siglip"))
        config.data.tokenizer.preset = "siglip"
        config.data.tokenizer.path = "data/siglip/sentencepiece.model"
        config.model.update({"text": {"vocabulary_size": published.vocabulary_size}})

    config.loss = ConfigDict()
    config.loss.name = "siglip"  # scale starts at 10, bias at -10
    config.loss.exchange = "ring"  # the logit matrix is never whole anywhere

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 20_000
    config.optimizer.weight_decay = 0.1
    config.optimizer.b2 = 0.95
    config.optimizer.clip_norm = 1.0

    config.mesh = ConfigDict()
    if size in ("so400m", "g"):
        config.mesh.fsdp = 16  # parameters and moments of a billion do not belong on every chip

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 1000
    config.eval = ConfigDict()
    config.eval.every = 0
    return config
