"""Dense passage retrieval: a tower for questions and a tower for passages.

    python -m experiments.data.debian_descriptions --output=data/debian
    contrastive train --config=configs/dpr.py --workdir=runs/dpr

Karpukhin et al., Dense Passage Retrieval for Open-Domain Question Answering, 2020
(https://arxiv.org/abs/2004.04906). The argument names the pairs: ``debian``, short descriptions
that find long ones, with negatives from the batch only; ``bm25``, the same with one hard negative
a question from ``data/debian/negatives.jsonl`` (lines of ``{"key": ..., "negatives": [...]}``);
``wordnet``, words that find their definition, with that of another sense as hard negative. Hard
negatives of one question are negatives of all; equal passages are told by their content ids.
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError


def get_config(pairs: str = "debian") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if pairs not in ("debian", "bm25", "wordnet"):
        raise ConfigError(f"{pairs!r}: choose debian, bm25 or wordnet.")
    config = ConfigDict()
    config.name = f"dpr-{pairs}"
    config.batch_size = 512
    config.total_steps = 800

    config.data = ConfigDict()
    config.data.pairs = "texts"
    config.data.source = "data/debian/pairs.jsonl"
    config.data.text_length = 64
    if pairs == "wordnet":
        config.data.source = "data/wordnet/pairs.jsonl"
        config.data.text_length = 32
    if pairs == "bm25":
        config.data.fields = ConfigDict()
        config.data.fields.negatives_file = "data/debian/negatives.jsonl"
    if pairs != "debian":
        config.data.negatives = 1
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
