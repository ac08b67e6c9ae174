"""Sentence-BERT on WordNet's relations, and a cross-encoder for contrast.

    python -m experiments.data.wordnet --output=data/wordnet
    contrastive train --config=configs/sentence_bert.py:softmax --workdir=runs/sbert
    contrastive evaluate runs/sbert --task similarity --data data/similarity/simlex999.jsonl

Reimers & Gurevych, Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks, 2019
(https://arxiv.org/abs/1908.10084). A word with its definition, and another word: similar, opposite
or unrelated. The argument chooses the objective: ``softmax``, the label by a layer over
(u, v, |u − v|) that is dropped when rows are compared; ``triplet``, a similar word nearer than one
that is opposite or unrelated, by a margin of distances; ``cross``, one encoder reads both texts
together and a layer says the label (it gives no rows: only accuracies compare with the others);
``rank``, the same encoder scores a similar word above wrong ones (a judge for
``contrastive mine --judge`` is such a run on the pairs that are mined).

``--config.model.text.pooling=`` mean, cls, max or last is the paper's ablation.
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError


def get_config(objective: str = "softmax") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if objective not in ("softmax", "triplet", "cross", "rank"):
        raise ConfigError(f"{objective!r}: choose softmax, triplet, cross or rank.")
    config = ConfigDict()
    config.name = f"sentence-bert-{objective}"
    config.batch_size = 256
    config.total_steps = 300

    config.data = ConfigDict()
    config.data.pairs = "texts"
    config.data.text_length = 24
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.vocabulary_size = 16384
    if objective in ("softmax", "cross"):
        config.data.source = "data/wordnet/relations.jsonl"
        config.data.fields = ConfigDict()
        config.data.fields.labels = ("similar", "opposite", "unrelated")
    else:
        config.data.source = "data/wordnet/triplets.jsonl"
        config.data.negatives = 1
    if objective in ("cross", "rank"):
        config.data.joined = True
        config.data.text_length = 32

    config.model = ConfigDict()
    config.model.embedding_dim = 192
    config.model.text = ConfigDict()
    config.model.text.kind = "transformer"
    config.model.text.width = 192
    config.model.text.depth = 2
    config.model.text.dropout = 0.1
    config.model.text.pooling = "cls" if objective in ("cross", "rank") else "mean"

    config.loss = ConfigDict()
    config.loss.name = {
        "softmax": "classifier",
        "triplet": "triplet",
        "cross": "classifier",
        "rank": "relevance",
    }[objective]
    if objective == "triplet":
        config.loss.margin = 1.0

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 30

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 100
    config.eval = ConfigDict()
    config.eval.every = 100
    config.eval.pictures = 2000  # pairs a set
    return config
