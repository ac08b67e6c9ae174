"""SimCSE on WordNet: a definition and itself under other dropout, or a word with its definition, a
similar word and an antonym.

    python -m experiments.data.wordnet --output=data/wordnet
    contrastive train --config=configs/simcse.py:unsup --workdir=runs/simcse

Gao et al., SimCSE, 2021 (https://arxiv.org/abs/2104.08821). ``unsup``: both views of a batch are
the same definitions, and only dropout makes them differ. A tower from nothing tells a text again by
any of its words, so dropout leaves half of the words out of each view: the two halves of a
definition have to find each other, which brings words together that are used together.
``unsup,transformer`` drops units instead, behind an MLP that is dropped afterwards, as in the paper
(which begins with BERT). ``sup``: a similar word is the positive, and an antonym the hard negative,
as contradictions are in the paper. Evaluation compares the halves of unseen pairs (of ``unsup``:
words and their definition), beside alignment and uniformity.

    python -m experiments.data.similarity
    contrastive evaluate runs/simcse --task=similarity --data=data/similarity/simlex999.jsonl
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError


def get_config(kind: str = "unsup") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if kind not in ("unsup", "unsup,transformer", "sup"):
        raise ConfigError(f"{kind!r}: choose unsup, unsup,transformer or sup.")
    config = ConfigDict()
    config.name = f"simcse-{kind.replace(',', '-')}"
    config.batch_size = 256
    config.total_steps = 600

    config.data = ConfigDict()
    config.data.source = "data/wordnet/pairs.jsonl"
    config.data.pairs = "texts"
    config.data.text_length = 32
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = 16384
    if kind == "sup":
        config.total_steps = 200  # three and a half passes over the words that have antonyms
        config.data.source = "data/wordnet/antonyms.jsonl"
        config.data.negatives = 1
    else:
        config.data.query_from = "positive"

    config.model = ConfigDict()
    config.model.text = ConfigDict()
    if kind == "unsup":
        config.batch_size = 512
        config.model.embedding_dim = 256
        config.model.text.kind = "bag"
        config.model.text.width = 256
        config.model.text.dropout = 0.5  # of the tokens
    else:
        config.model.embedding_dim = 192
        config.model.text.kind = "transformer"
        config.model.text.width = 192
        config.model.text.depth = 2
        config.model.text.dropout = 0.1
        config.model.text.pooling = "mean"
    if kind == "unsup,transformer":
        config.model.head = ConfigDict()
        config.model.head.layers = 2
        config.model.head.activation = "tanh"

    config.loss = ConfigDict()
    config.loss.name = "info_nce"
    config.loss.scale_init = 20.0  # a temperature of .05

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 3e-3 if kind == "unsup" else 1e-3
    config.optimizer.warmup_steps = config.total_steps // 12
    config.optimizer.multipliers = (("log_scale", None),)  # the temperature is fixed

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 200
    config.eval = ConfigDict()
    config.eval.every = 200
    config.eval.pictures = 2000  # pairs a set
    return config
