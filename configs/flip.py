"""FLIP for a pod: half of the patches in training, then a short tuning that sees them all.

    contrastive plan --config=configs/flip.py:l16 --topology=v5e:16x16
    contrastive train --config=configs/flip.py:l16,laion400m --workdir=runs/flip-l16
    contrastive train --config=configs/flip.py:l16-unmasked,laion400m --workdir=runs/flip-l16-tuned

Li et al., Scaling Language-Image Pre-training via Masking, 2023 (https://arxiv.org/abs/2212.00794).
The argument chooses the image tower: ``b16``, ``l16``, ``l14`` or ``h14``. 65,536 pairs a step,
12.8 billion in all (32 epochs of LAION-400M), with half of the patches of each picture, others in
each step. As in the authors' code (https://github.com/facebookresearch/flip): learning rate 4e-6
for every 256 pairs of a batch, with a warm-up of 40 epochs of ImageNet (H/14: 200), fixed positions
of the patches, and CLIP's learned temperature. ``-unmasked`` goes on from ``runs/flip-SIZE`` for
0.32 epochs at a hundredth of the rate with all patches. Evaluation always sees all patches.

A second word names the data, as in ``configs/clip.py``; texts are cut by BERT's vocabulary, which
comes with this package.
"""

from ml_collections import ConfigDict

from contrastive.config import to_dict
from contrastive.data.published import pictures
from contrastive.towers import sizes

_TOWERS = {"b16": "B/16", "l16": "L/16", "l14": "L/14", "h14": "H/14"}
_UNMASKED = "-unmasked"
_IMAGENET = 1_281_167  # pictures of an epoch, by which the authors count


def get_config(argument: str = "l16") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    name, _, data = argument.partition(",")
    size, tunes = name.removesuffix(_UNMASKED), name.endswith(_UNMASKED)
    published = sizes.published(sizes.FLIP, sizes.published(_TOWERS, size))
    config = ConfigDict()
    config.name = f"flip-{name}"
    config.batch_size = 65_536
    pairs = 0.128e9 if tunes else 12.8e9
    config.total_steps = round(pairs / config.batch_size)

    config.data = ConfigDict()
    config.data.source = "synthetic"
    config.data.image_size = published.image_size
    config.data.text_length = published.text_length
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = published.vocabulary_size
    if data:
        config.name += f"-{data}"
        config.data.update(pictures(data, reading="clip"))
        config.data.update({"crop": {"area": (0.5, 1.0)}, "augment": {"flip": 0.5}})
        config.data.tokenizer.preset = "bert"

    # bfloat16 computation, float32 parameters; of a block only what enters it is kept
    config.model = ConfigDict(to_dict(sizes.frugal(published.model)))
    config.model.update({"image": {"keep_patches": 1.0 if tunes else 0.5}})
    if tunes:
        config.init_from = f"runs/flip-{size}"

    config.loss = ConfigDict()
    config.loss.name = "clip"
    config.loss.exchange = "ring"  # the logit matrix is never whole anywhere

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = (4e-8 if tunes else 4e-6) * config.batch_size / 256
    epochs = 20 if tunes else 200 if size == "h14" else 40
    config.optimizer.warmup_steps = round(epochs * _IMAGENET / config.batch_size)
    config.optimizer.weight_decay = 0.2
    config.optimizer.b2 = 0.95

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 1000
    config.eval = ConfigDict()
    config.eval.every = 0
    return config
