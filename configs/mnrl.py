"""Multiple negatives ranking: a short description finds the long one among the batch.

    python -m experiments.data.debian_descriptions --output=data/debian
    contrastive train --config=configs/mnrl.py --workdir=runs/mnrl

One tower reads both texts of a pair, and every other pair of the batch is a negative: the loss that
sentence-transformers calls MultipleNegativesRankingLoss, with its scale of 20. The argument chooses
the tower: ``bag`` (weighted token embeddings and an MLP, trained from nothing), ``transformer``, or
``minilm``, which goes on from the weights of all-MiniLM-L6-v2:

    python -m experiments.data.minilm
    contrastive train --config=configs/mnrl.py:minilm --workdir=runs/mnrl-minilm

Sentence-BERT's ablation is a second word: ``transformer,cls`` or ``minilm,max`` pools the tokens of
a text by ``mean``, ``cls`` (the first one), ``max`` or ``last``.
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError

_POOLINGS = ("mean", "cls", "max", "last")


def get_config(argument: str = "bag") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    tower, _, pooling = argument.partition(",")
    if tower not in ("bag", "transformer", "minilm"):
        raise ConfigError(f"{tower!r}: choose bag, transformer or minilm.")
    if pooling and (pooling not in _POOLINGS or tower == "bag"):
        raise ConfigError(
            f"{argument!r}: transformer and minilm pool by {', '.join(_POOLINGS)}; a bag is a sum."
        )
    config = ConfigDict()
    config.name = f"mnrl-{argument.replace(',', '-')}"
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
        config.data.query_length = 32  # short descriptions are short
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
    if tower == "minilm":
        _go_on_from_minilm(config)
    if pooling:
        config.model.text.pooling = pooling
    return config


def _go_on_from_minilm(config: ConfigDict) -> None:
    """The tower, tokenizer and parameters of all-MiniLM-L6-v2."""
    config.init_from = "data/minilm"  # its tokenizer comes with it
    config.batch_size = 64
    config.total_steps = 150  # a quarter of the pairs: it knows the language by then
    config.update({"optimizer": {"learning_rate": 5e-5, "warmup_steps": 15}})
    config.update({"checkpoint": {"every": 75}, "eval": {"every": 75}})
    text = {"kind": "encoder", "width": 384, "depth": 6, "heads": 12, "length": 512}
    text |= {"projection": "none", "dropout": 0.1}
    config.model = ConfigDict({"embedding_dim": 384, "text": text})
