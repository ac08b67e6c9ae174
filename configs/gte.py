"""GTE: one denominator over both directions and both sides of the pairs.

    python -m experiments.data.debian_descriptions --output=data/debian
    contrastive train --config=configs/gte.py --workdir=runs/gte

Li et al., Towards General Text Embeddings with Multi-stage Contrastive Learning, 2023
(https://arxiv.org/abs/2308.03281): the improved contrastive loss at a temperature of .01, here with
the bag-of-tokens tower of ``configs/mnrl.py``, whose pairs it shares.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    config = ConfigDict()
    config.name = "gte"
    config.batch_size = 1024
    config.total_steps = 800

    config.data = ConfigDict()
    config.data.source = "data/debian/pairs.jsonl"
    config.data.pairs = "texts"
    config.data.text_length = 64
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = 16384

    config.model = ConfigDict()
    config.model.embedding_dim = 256
    config.model.text = ConfigDict()
    config.model.text.kind = "bag"
    config.model.text.width = 256
    config.model.text.dropout = 0.2

    config.loss = ConfigDict()
    config.loss.name = "gte"
    config.loss.scale_init = 100.0

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.multipliers = (("log_scale", None),)  # the temperature is fixed

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 200
    config.eval = ConfigDict()
    config.eval.every = 200
    config.eval.pictures = 2000  # pairs a set
    return config
