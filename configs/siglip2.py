"""SigLIP 2 for a pod: the sigmoid loss over pairs in many languages.

    contrastive plan --config=configs/siglip2.py:b16 --topology=v5e:16x16
    contrastive train --config=configs/siglip2.py:b16,webli --workdir=runs/siglip2-b16

Tschannen et al. 2025 (https://arxiv.org/abs/2502.14786). The argument chooses the image tower:
``b16``, ``l16``, ``so400m`` or ``gopt``, at 256 pixels, behind Gemma's vocabulary of 256,000 pieces
and texts of 64: 32,768 pairs a step, 40 billion in all, learning rate 1e-3 with 20,000 steps of
warm-up and cosine, decoupled weight decay 1e-4 a step (here relative to the learning rate: 0.1),
second-moment decay .95, gradients of norm 1 at most. Of the paper's training this is what learns
the shared space: its decoder of captions and boxes, self-distillation and masked prediction are
other objectives on the same image tower, and are not here.

A second word names the data, as in ``configs/siglip.py``; its texts need the tokenizer that the
authors publish, ``data/siglip2/tokenizer.json``.
"""

from ml_collections import ConfigDict

from contrastive.config import to_dict
from contrastive.data.published import pictures
from contrastive.towers import sizes

_TOWERS = {"b16": "B/16", "l16": "L/16", "so400m": "So400m/16", "gopt": "g-opt/16"}


def get_config(argument: str = "b16") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    size, _, data = argument.partition(",")
    published = sizes.published(sizes.SIGLIP2, sizes.published(_TOWERS, size))
    config = ConfigDict()
    config.name = f"siglip2-{size}"
    config.batch_size = 32_768
    config.total_steps = round(40e9 / config.batch_size)

    config.data = ConfigDict()
    config.data.source = "synthetic"
    config.data.image_size = published.image_size
    config.data.text_length = published.text_length
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = published.vocabulary_size

    # bfloat16 computation, float32 parameters; of a block only what enters it is kept
    config.model = ConfigDict(to_dict(sizes.frugal(published.model)))
    if data:
        config.name += f"-{data}"
        config.data.update(pictures(data, reading="siglip"))
        config.data.tokenizer.preset = "siglip2"
        config.data.tokenizer.path = "data/siglip2/tokenizer.json"
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
    config.mesh.fsdp = 16 if size in ("so400m", "gopt") else 1  # too large for every chip

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 1000
    config.eval = ConfigDict()
    config.eval.every = 0
    return config
