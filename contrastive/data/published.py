"""Published sets of pictures with captions as data: how they lie after the usual download, and how
published models read them. Licences and access are those of the sets; nothing is fetched here."""

from collections.abc import Mapping
from typing import Any, Literal

from contrastive.data.transforms import PIXEL_STATISTICS
from contrastive.errors import ConfigError

# Tars that are read one after another, in as many lanes: a multiple of the processes of a pod.
_TARS: Mapping[str, Any] = {"stream": {"lanes": 64}, "check": "during"}

PICTURES: dict[str, Mapping[str, Any]] = {
    # Schuhmann et al. 2021 and 2022, as img2dataset writes them: 10,000 pairs a tar, jpg and txt
    "laion400m": {"source": "data/laion400m/*.tar", **_TARS},
    "laion2b": {"source": "data/laion2b/*.tar", **_TARS},
    # Gadre et al. 2023, the 1.28 billion of DataComp-1B, as its own download script writes them
    "datacomp1b": {"source": "data/datacomp1b/shards/*.tar", **_TARS},
    # Changpinyo et al. 2021, as img2dataset writes it
    "cc12m": {"source": "data/cc12m/*.tar", **_TARS},
    # Sets like WebLI (Chen et al. 2022, not public): a folder that tensorflow-datasets prepared,
    # with an encoded picture and its alt-text
    "webli": {
        "source": "tfds:data/webli",
        "fields": {"image": "image", "caption": "text"},
        "check": "during",
    },
}
"""Where each set lies and how it is read, as settings of :class:`contrastive.data.DataConfig`."""

Reading = Literal["clip", "siglip"]


def pictures(name: str, *, reading: Reading) -> dict[str, Any]:
    """The settings of a set, with pictures as a family of models reads them.

    ``clip``: a random part of nine tenths of the area and more (open_clip's), else unchanged;
    ``siglip``: stretched, unchanged. Both decode large JPEGs at a smaller scale.

    Raises:
      ConfigError: No such set is known; the message lists those that are.
    """
    if name not in PICTURES:
        raise ConfigError(
            f"there is no published set {name!r}; known are {', '.join(PICTURES)}. Name your own "
            "by --config.data.source."
        )
    assert reading in PIXEL_STATISTICS
    unchanged = ("zoom", "stretch", "shift", "rotate", "flip", "brightness", "contrast")
    unchanged += ("saturation", "hue", "grayscale", "blur", "cutout")
    found = {**PICTURES[name], "preprocessing": reading, "decoding": "train_fast"}
    found["augment"] = dict.fromkeys(unchanged, 0.0)
    if reading == "clip":
        found["crop"] = {"area": (0.9, 1.0)}
    return found
