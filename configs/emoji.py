"""The demo: emoji pictures by three artists against their names, tested on an artist never seen.

    contrastive train --config=configs/emoji.py:clip --workdir=runs/emoji

The argument chooses the loss: ``clip`` (softmax, both ways), ``siglip`` (sigmoid), ``info_nce``
(softmax, image to text). About four minutes on two CPU cores.
"""

from ml_collections import ConfigDict


def get_config(loss: str = "clip") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    config = ConfigDict()
    config.name = f"emoji-{loss}"
    config.seed = 0
    config.total_steps = 900
    config.batch_size = 256

    config.data = ConfigDict()
    config.data.source = "emoji"
    config.data.image_size = 32  # the sheets hold 48 pixels; augmentation crops and scales
    config.data.text_length = 20  # tokens; longer captions are cut, the end token stays
    config.data.tokenizer = ConfigDict()
    config.data.tokenizer.kind = "words"  # of a new name, the words that are known count
    config.data.tokenizer.vocabulary_size = 8192
    config.data.tokenizer.hidden = 0.15
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
    config.model.text = ConfigDict()
    config.model.text.kind = "transformer"
    config.model.text.width = 128
    config.model.text.depth = 1  # captions have two or three words
    config.model.text.dropout = 0.25

    config.loss = ConfigDict()
    config.loss.name = loss

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.weight_decay = 0.5

    config.average_decay = 0.99  # evaluation uses the moving average of the parameters

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 225

    config.eval = ConfigDict()
    config.eval.every = 225  # a quick evaluation during the run
    return config
