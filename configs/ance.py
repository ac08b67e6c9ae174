"""ANCE: dense passage retrieval with hard negatives that the model mines as it trains.

    python -m experiments.data.debian_descriptions --output=data/debian
    contrastive train --config=configs/ance.py --workdir=runs/ance

Xiong et al., Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval,
2021 (https://arxiv.org/abs/2007.00808). The towers, data and steps of ``configs/dpr.py``: every 100
steps a copy of the model ranks all passages for all queries beside training (exactly; the paper
searches approximately), and 100 steps later what it ranks from place 6 on is the negatives. Until
then negatives come from the batch only; ``bm25`` begins with ``data/debian/negatives.jsonl``,
as the paper does.
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError


def get_config(begin: str = "batch") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if begin not in ("batch", "bm25"):
        raise ConfigError(f"{begin!r}: choose batch or bm25.")
    config = ConfigDict()
    config.name = "ance" if begin == "batch" else f"ance-{begin}"
    config.batch_size = 512
    config.total_steps = 800

    config.data = ConfigDict()
    config.data.pairs = "texts"
    config.data.source = "data/debian/pairs.jsonl"
    config.data.text_length = 64
    config.data.negatives = 1
    config.data.mined = ConfigDict()
    config.data.mined.every = 100
    config.data.mined.candidates = 20
    config.data.mined.skip = 5  # the first ones are often right too
    if begin == "bm25":
        config.data.fields = ConfigDict()
        config.data.fields.negatives_file = "data/debian/negatives.jsonl"
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = 8192

    config.model = ConfigDict()
    config.model.shared = False
    config.model.embedding_dim = 256
    config.model.text = ConfigDict()
    config.model.text.kind = "bag"
    config.model.text.width = 256
    config.model.text.dropout = 0.1

    config.loss = ConfigDict()
    config.loss.name = "info_nce"
    config.loss.scale_init = 20.0

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 50

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 200
    config.eval = ConfigDict()
    config.eval.every = 200
    config.eval.pictures = 2000  # pairs a set
    return config
