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
    config.total_steps = 1000
    config.batch_size = 256

    config.data = ConfigDict()
    config.data.source = "emoji"
    config.data.image_size = 32  # the sheets hold 48 pixels; augmentation crops and scales
    config.data.text_length = 24  # tokens; longer captions are cut, the end token stays

    config.model = ConfigDict()
    config.model.embedding_dim = 128

    config.loss = ConfigDict()
    config.loss.name = loss

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.weight_decay = 0.1

    config.average_decay = 0.99  # evaluation uses the moving average of the parameters

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 250

    config.eval = ConfigDict()
    config.eval.every = 250  # a quick evaluation during the run
    return config
