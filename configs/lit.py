"""LiT for a pod: a text tower learns to read a locked image tower.

    contrastive import FOLDER --output=models/vit-b16          # a vision transformer
    contrastive plan --config=configs/lit.py:b16 --topology=v5e:4x4
    contrastive train --config=configs/lit.py:b16,cc12m --workdir=runs/lit-b16

Zhai et al., LiT: Zero-Shot Transfer with Locked-image text Tuning, 2022
(https://arxiv.org/abs/2111.07991). The argument chooses the image tower, a vision transformer
trained on ImageNet-21k or larger (``b16``, ``l16``), and a text tower of the same size that starts
from nothing: 16,384 pairs a step, 900 million in all, softmax both ways. Nothing of the image tower
learns but the new projection behind it; gradients of what is locked are not computed, and no
moments are kept. The learning rate, its warm-up over 3 % of the steps, gradients of norm 1 at most
and the first temperature, .1, are those of the authors' code (``lit_coco.py`` in
https://github.com/google-research/big_vision), which uses an Adafactor; here it is AdamW.

A second word names the data, as in ``configs/clip.py``; its texts need a SentencePiece model of
32,000 pieces, ``data/siglip/sentencepiece.model``.
"""

from ml_collections import ConfigDict

from contrastive.config import to_dict
from contrastive.data.published import pictures
from contrastive.towers import sizes

_TOWERS = {"b16": "B/16", "l16": "L/16"}


def get_config(argument: str = "b16") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    size, _, data = argument.partition(",")
    published = sizes.published(sizes.LIT, sizes.published(_TOWERS, size))
    config = ConfigDict()
    config.name = f"lit-{size}"
    config.init_from = f"models/vit-{size}"
    config.batch_size = 16_384
    config.total_steps = round(900e6 / config.batch_size)

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
        config.data.tokenizer.preset = "siglip"
        config.data.tokenizer.path = "data/siglip/sentencepiece.model"
        config.model.update({"text": {"vocabulary_size": published.vocabulary_size}})

    config.loss = ConfigDict()
    config.loss.name = "clip"
    config.loss.scale_init = 10.0
    config.loss.exchange = "ring"  # the logit matrix is never whole anywhere

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = round(0.03 * config.total_steps)
    config.optimizer.weight_decay = 0.1  # 1e-4 a step, relative to the learning rate
    config.optimizer.clip_norm = 1.0
    config.optimizer.multipliers = (("image/(?!projection/).*", None),)  # locked

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 1000
    config.eval = ConfigDict()
    config.eval.every = 0
    return config
