"""Fine-tuning: an imported model (or a run) goes on with your pairs.

    contrastive import FOLDER --output=models/clip
    contrastive train --config=configs/finetune.py:models/clip --workdir=runs/tuned \\
        --config.data.source=pairs.csv

Towers, size and rule of the pictures, length and tokenizer of the texts and the loss are those of
the folder that the argument names. Locked-image tuning (LiT, Zhai et al. 2022) freezes the image
tower: ``--config.optimizer.multipliers="(('image/.*', None),)"``. Pictures of another size:
``--config.data.image_size=336`` (the position table is resized).
"""

import json
import pathlib

from ml_collections import ConfigDict

from contrastive.errors import ConfigError

_OF_THE_MODEL = ("image_size", "preprocessing", "resize", "text_length", "tokenizer")


def get_config(folder: str = "") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if not folder:
        raise ConfigError(
            "configs/finetune.py needs the folder of an imported model or of a run behind a colon, "
            "such as configs/finetune.py:models/clip."
        )
    file = pathlib.Path(folder).expanduser() / "config.json"
    if not file.is_file():
        raise ConfigError(
            f"configs/finetune.py:{folder}: there is no {file}; name the folder of a run, or of a "
            "model that contrastive import has written."
        )
    given = json.loads(file.read_text())
    if "total_steps" not in given:
        raise ConfigError(f"{folder} holds foreign weights; make it a model by contrastive import.")
    config = ConfigDict()
    config.name = f"finetune-{file.parent.name}"
    config.init_from = folder
    config.total_steps = 1000
    config.batch_size = 256

    config.model = ConfigDict(given["model"])
    config.data = ConfigDict({key: given["data"][key] for key in _OF_THE_MODEL})
    config.loss = ConfigDict(given["loss"])

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 1e-5
    config.optimizer.warmup_steps = 100
    config.optimizer.weight_decay = 0.2
    config.optimizer.b2 = 0.98
    return config
