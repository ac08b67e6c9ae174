"""Multiple negatives ranking: a short description finds the long one among the batch.

    python -m experiments.data.debian_descriptions --output=data/debian
    contrastive train --config=configs/mnrl.py --workdir=runs/mnrl

One tower reads both texts of a pair, and every other pair of the batch is a negative: the loss that
sentence-transformers calls MultipleNegativesRankingLoss, with its scale of 20. The argument chooses
the tower: ``bag`` (weighted token embeddings and an MLP, trained from nothing) or ``transformer``.
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError


def get_config(tower: str = "bag") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if tower not in ("bag", "transformer"):
        raise ConfigError(f"{tower!r}: choose bag or transformer.")
    config = ConfigDict()
    config.name = f"mnrl-{tower}"
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
    if tower == "bag":
        config.model.text.kind = "bag"
        config.model.text.width = 256
        config.model.text.dropout = 0.2
    else:
        config.model.text.kind = "transformer"
        config.model.text.width = 192
        config.model.text.depth = 2
        config.model.text.dropout = 0.1
        config.batch_size = 256

    config.loss = ConfigDict()
    config.loss.name = "info_nce"
    config.loss.scale_init = 20.0

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 3e-3 if tower == "bag" else 1e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.weight_decay = 0.1
    config.optimizer.multipliers = (("log_scale", None),)  # the temperature is fixed

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 200
    config.eval = ConfigDict()
    config.eval.every = 200
    config.eval.pictures = 2000  # pairs a set
    return config
