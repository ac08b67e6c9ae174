"""MoCo on emoji: keys from a momentum encoder, with a queue (v2) or without (v3).

    contrastive train --config=configs/moco.py:v2 --workdir=runs/moco

``v2`` (Chen et al. 2020, https://arxiv.org/abs/2003.04297): a drawing finds another artist's
drawing of the same concept among the keys of the last 4,096 drawings. ``v3`` (Chen et al. 2021,
https://arxiv.org/abs/2104.02057): no queue, both views are queries once, behind a predictor, and
the momentum goes to 1. Decays are those for a run of hundreds of steps, not of 100,000. Keys of the
query's own concept are no negatives.
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError


def get_config(version: str = "v2") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if version not in ("v2", "v3"):
        raise ConfigError(f"{version!r}: choose v2 or v3.")
    config = ConfigDict()
    config.name = f"moco-{version}"
    config.batch_size = 256
    config.total_steps = 600

    config.data = ConfigDict()
    config.data.source = "emoji"
    config.data.pairs = "views"
    config.data.image_size = 32
    config.data.views = ConfigDict()
    config.data.views.second = "content"
    config.data.augment = ConfigDict()
    config.data.augment.hue = 20.0  # artists disagree on shades
    config.data.augment.cutout = 0.2

    config.model = ConfigDict()
    config.model.embedding_dim = 256
    config.model.head = ConfigDict()
    config.model.head.layers = 2
    config.model.head.output = 128

    config.loss = ConfigDict()
    config.loss.name = "info_nce"
    config.loss.scale_init = 10.0  # a temperature of .1

    config.momentum = ConfigDict()
    if version == "v2":
        # Keys that are 16 batches old have to look like fresh ones, or the loss tells them by their
        # age: with .95 and twice the rate it was 4.5 halfway and 6.4 at the end.
        config.momentum.decay = 0.99
        config.momentum.queue = 4096
    else:
        config.momentum.decay = 0.95
        config.momentum.schedule = "cosine"
        config.momentum.symmetric = True
        config.model.head.norm = "batch"
        config.model.predictor = ConfigDict()
        config.model.predictor.layers = 2
        config.model.predictor.norm = "batch"

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3 if version == "v2" else 2e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.weight_decay = 0.1
    config.optimizer.multipliers = (("log_scale", None),)  # the temperature is fixed

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 150
    config.eval = ConfigDict()
    config.eval.every = 150
    return config
