"""The demo: emoji pictures by three artists against their names, tested on an artist never seen.

    contrastive train --config=configs/emoji.py:clip --workdir=runs/emoji

The argument chooses the loss: ``clip`` (softmax, both ways), ``siglip`` (sigmoid), ``info_nce``
(softmax, image to text). About four minutes on two CPU cores. ``small`` is ``clip`` with pictures
of 24 pixels, a narrower image tower and a transformer that reads the words alone, for sweeps: a
step takes less than half the time. ``naflex`` is ``clip`` with pictures as patches in their own
proportions (SigLIP 2's NaFlex; those of the emoji are all square) and a small vision transformer;
put your own pictures of any aspect in the place of the emoji with ``--config.data.source``.

``minilm`` is ``clip`` with a text tower that was trained elsewhere and stays as it is (locked, as
the image tower in LiT, Zhai et al. 2022); a projection behind it learns:

    python -m experiments.data.minilm
    contrastive train --config=configs/emoji.py:minilm --workdir=runs/emoji-minilm
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError

_LOSSES = ("clip", "siglip", "info_nce")
_FORMS = ("small", "minilm", "naflex")

# Parts count, wherever they are.
_STAGES = {"kind": "conv", "pooled": "stages"}
_IMAGES = {
    "small": {"kind": "conv", "widths": (24, 48, 96)},
    # Patches of 4 pixels, as many as a square of 32 pixels has, in each picture's own grid.
    "naflex": {
        "kind": "naflex",
        "patch_size": 4,
        "grid": 8,
        "width": 128,
        "depth": 4,
        "heads": 4,
        "init": "siglip",
        "activation": "gelu_tanh",
    },
}
# What a caption says matters here, and not in which order.
_BAG = {"kind": "bag", "width": 128, "hidden": 0, "dropout": 0.25, "projection": "linear"}
_TEXTS = {
    "small": {"kind": "transformer", "width": 128, "depth": 1, "dropout": 0.25},
    "minilm": {
        "kind": "encoder",
        "width": 384,
        "depth": 6,
        "heads": 12,
        "length": 512,
        "dropout": 0.0,
    },
}


def get_config(variant: str = "clip") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if variant not in (*_LOSSES, *_FORMS):
        raise ConfigError(f"{variant!r}: choose one of {', '.join((*_LOSSES, *_FORMS))}.")
    config = ConfigDict()
    config.name = f"emoji-{variant}"
    config.seed = 0
    config.total_steps = 900
    config.batch_size = 256

    config.data = ConfigDict()
    config.data.source = "emoji"
    config.data.image_size = 32  # the sheets hold 48 pixels; augmentation crops and scales
    config.data.text_length = 48  # tokens, broader terms too; the last of long captions are cut
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.kind = "words"  # of a new name, the words that are known count
    config.data.tokenizer.vocabulary_size = 16384  # more than there are words and terms
    config.data.tokenizer.hidden = 0.15
    config.data.tokenizer.broader = 11  # "zebra", which no caption has, is also an animal
    config.data.augment = ConfigDict()
    config.data.augment.hue = 20.0  # artists disagree on shades
    config.data.augment.cutout = 0.2
    config.data.captions = ConfigDict()  # mostly with keywords: words that other concepts share
    config.data.captions.name = 0.35
    config.data.captions.name_and_keywords = 0.5
    config.data.captions.keywords = 0.15
    config.data.captions.most_keywords = 6

    config.model = ConfigDict()
    config.model.embedding_dim = 192
    config.model.image = ConfigDict(_IMAGES.get(variant, _STAGES))
    config.model.text = ConfigDict(_TEXTS.get(variant, _BAG))

    config.loss = ConfigDict()
    config.loss.name = variant if variant in _LOSSES else "clip"

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.weight_decay = 0.5

    config.average_decay = 0.99  # evaluation uses the moving average of the parameters

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 225

    config.eval = ConfigDict()
    config.eval.every = 225  # a quick evaluation during the run
    if variant == "small":
        _reduce(config)
    if variant == "minilm":
        _lock_minilm(config)
    if variant == "naflex":
        _keep_proportions(config)
    return config


def _reduce(config: ConfigDict) -> None:
    """Smaller pictures, and texts that are only their words."""
    data = ConfigDict()
    data.image_size, data.text_length = 24, 20
    data.tokenizer = {"broader": 0, "vocabulary_size": 8192}
    config.update({"data": data})


def _keep_proportions(config: ConfigDict) -> None:
    """Patches in the place of squares."""
    data = ConfigDict()
    data.preprocessing = "naflex"
    data.resize = {"patch": 4}
    config.update({"data": data})


def _lock_minilm(config: ConfigDict) -> None:
    """MiniLM as the text tower: its parameters and its tokenizer."""
    # A step takes four times as long as with the small tower (measured), nearly all of it reading
    # captions with MiniLM; so half the steps, and captions of at most 16 tokens (1 in 20 is cut).
    config.total_steps = 450
    config.init_from = "data/minilm"
    data, optimizer = ConfigDict(), ConfigDict()
    data.text_length = 16
    # It comes with init_from and knows every word.
    data.tokenizer = {"hidden": 0.0, "broader": 0}
    # Locked is what was imported; the projection from its 384 entries to the embedding is new.
    optimizer.multipliers = (("text/(?!projection/).*", None),)
    config.update({"data": data, "optimizer": optimizer})
