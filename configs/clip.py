"""Softmax models for a pod: CLIP at its published sizes.

    contrastive plan --config=configs/clip.py:b16 --topology=v5e:16x16
    contrastive train --config=configs/clip.py:b16 --workdir=runs/clip-b16

The argument chooses the image tower: ``b32``, ``b16``, ``l14`` (Radford et al. 2021,
https://arxiv.org/abs/2103.00020: 32,768 pairs a step, 12.8 billion in all) or ``h14``
(Cherti et al. 2022, https://arxiv.org/abs/2212.07143: 79,104 pairs a step, 34 billion in all).

Without a second word the data are synthetic (random pairs): good for plans, dry runs and
throughput. ``clip.py:b16,laion2b`` reads that set from ``data/laion2b``; known are ``laion400m``,
``laion2b``, ``datacomp1b``, ``cc12m`` and ``webli`` (contrastive/data/published.py says how they
lie), and yours is named by ``--config.data.source=…`` (docs/data.md).
"""

from ml_collections import ConfigDict

from contrastive.config import to_dict
from contrastive.data.published import pictures
from contrastive.towers import sizes

# image tower, pairs a step, pairs in all, peak learning rate
_RECIPES = {
    "b32": ("B/32", 32_768, 12.8e9, 5e-4),
    "b16": ("B/16", 32_768, 12.8e9, 5e-4),
    "l14": ("L/14", 32_768, 12.8e9, 4e-4),
    "h14": ("H/14", 79_104, 34e9, 5e-4),
}


def get_config(argument: str = "b16") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    size, _, data = argument.partition(",")
    tower, batch_size, pairs, learning_rate = sizes.published(_RECIPES, size)
    published = sizes.published(sizes.CLIP, tower)
    config = ConfigDict()
    config.name = f"clip-{size}"
    config.batch_size = batch_size
    config.total_steps = round(pairs / batch_size)

    config.data = ConfigDict()
    config.data.source = "synthetic"
    config.data.image_size = published.image_size
    config.data.text_length = published.text_length
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = published.vocabulary_size
    if data:
        config.name += f"-{data}"
        config.data.update(pictures(data, reading="clip"))
        config.data.tokenizer.preset = "clip"

    # bfloat16 computation, float32 parameters; of a block only what enters it is kept
    config.model = ConfigDict(to_dict(sizes.frugal(published.model)))

    config.loss = ConfigDict()
    config.loss.name = "clip"
    config.loss.exchange = "ring"  # the logit matrix is never whole anywhere

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = learning_rate
    config.optimizer.warmup_steps = 2000
    config.optimizer.weight_decay = 0.2
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-6

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 1000
    config.eval = ConfigDict()
    config.eval.every = 0
    return config
