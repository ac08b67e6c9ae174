"""E5: prefixes say which text is a query, at a temperature of .01.

    python -m experiments.data.debian_descriptions --output=data/debian
    contrastive train --config=configs/e5.py --workdir=runs/e5

Wang et al., Text Embeddings by Weakly-Supervised Contrastive Pre-training, 2022
(https://arxiv.org/abs/2212.03533): one tower, mean pooling, "query: " and "passage: ", InfoNCE over
the batch. Debian's short and long descriptions are the weakly supervised pairs.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    config = ConfigDict()
    config.name = "e5"
    config.batch_size = 256
    config.total_steps = 300

    config.data = ConfigDict()
    config.data.source = "data/debian/pairs.jsonl"
    config.data.pairs = "texts"
    config.data.query_prefix = "query: "
    config.data.passage_prefix = "passage: "
    config.data.text_length = 64
    config.data.query_length = 32  # short descriptions are short
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = 12288

    config.model = ConfigDict()
    config.model.embedding_dim = 192
    config.model.text = ConfigDict()
    config.model.text.kind = "transformer"
    config.model.text.width = 192
    config.model.text.depth = 2
    config.model.text.pooling = "mean"
    config.model.text.dropout = 0.1

    config.loss = ConfigDict()
    config.loss.name = "info_nce"
    config.loss.scale_init = 100.0

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 40
    config.optimizer.multipliers = (("log_scale", None),)  # the temperature is fixed

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 100
    config.eval = ConfigDict()
    config.eval.every = 100
    config.eval.pictures = 2000  # pairs a set
    return config
