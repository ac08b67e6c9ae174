"""SimCLR on emoji: two artists' drawings of a concept, or two augmentations of one drawing.

    contrastive train --config=configs/simclr.py:artists --workdir=runs/simclr

Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020
(https://arxiv.org/abs/2002.05709): NT-Xent behind a projection head that is dropped afterwards,
LAMB. The argument says what the second view is of: ``artists``, the same concept as another artist
drew it; ``augmented``, the same drawing. Both are tested on concepts that were never trained on, as
one artist drew them against another. ``resnet``: ``artists`` with the paper's tower for small
pictures, a ResNet-18 with batch normalisation over the global batch, here a quarter as wide.
``openmoji``: ``artists`` with OpenMoji as a fourth one (the extra ``openmoji``; share-alike).
``fashion``: two views of a picture of Fashion-MNIST by the paper's stack for small pictures (no
blur), to be probed by its ten classes:

    python -m experiments.data.fashion_mnist
    contrastive train --config=configs/simclr.py:fashion --workdir=runs/fashion
    contrastive evaluate runs/fashion --task=knn --task=linear_probe \\
        --data=data/fashion_mnist --baselines
"""

from ml_collections import ConfigDict

from contrastive.errors import ConfigError


def get_config(views: str = "artists") -> ConfigDict:
    """The recipe; everything that is not named here has the default of its dataclass."""
    if views not in ("artists", "augmented", "resnet", "fashion", "openmoji"):
        raise ConfigError(f"{views!r}: choose artists, augmented, resnet, fashion or openmoji.")
    config = ConfigDict()
    config.name = f"simclr-{views}"
    config.batch_size = 256
    config.total_steps = 600

    config.data = ConfigDict()
    config.data.source = "data/fashion_mnist" if views == "fashion" else "emoji"
    config.data.pairs = "views"
    config.data.image_size = 32
    config.data.views = ConfigDict()
    config.data.views.second = "picture" if views in ("augmented", "fashion") else "content"
    if views == "openmoji":
        config.data.emoji = ConfigDict({"openmoji": True})
    if views == "fashion":
        config.data.stack = ConfigDict({"name": "simclr", "strength": 0.5, "blur": False})
    else:
        config.data.augment = ConfigDict()
        config.data.augment.hue = 20.0  # artists disagree on shades
        config.data.augment.cutout = 0.2

    config.model = ConfigDict()
    config.model.embedding_dim = 256
    config.model.head = ConfigDict()
    config.model.head.layers = 2
    config.model.head.output = 128

    if views == "resnet":
        config.model.image = ConfigDict()
        config.model.image.kind = "resnet"
        config.model.image.form = "small"
        config.model.image.block = "basic"
        config.model.image.stem = 16
        config.model.image.widths = (16, 32, 64, 128)
        config.model.image.depths = (2, 2, 2, 2)
        config.model.image.statistics = "batch"
        config.model.image.projection = "linear"

    config.loss = ConfigDict()
    config.loss.name = "nt_xent"
    config.loss.scale_init = 10.0  # a temperature of .1

    config.optimizer = ConfigDict()
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate = 1e-2
    config.optimizer.warmup_steps = 50
    config.optimizer.weight_decay = 1e-4
    config.optimizer.multipliers = (("log_scale", None),)  # the temperature is fixed

    config.average_decay = 0.99

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 150
    config.eval = ConfigDict()
    config.eval.every = 150
    if views == "fashion":
        config.eval.pictures = 2000  # a set: each among all of them, beside raw pixels
    return config
