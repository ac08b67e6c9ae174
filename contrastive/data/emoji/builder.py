"""The emoji as a tensorflow-datasets data set, in ArrayRecord files and without TensorFlow."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from contrastive.data.emoji.concepts import (
    OPENMOJI_SPLIT,
    OPTIONAL_STYLES,
    TEST_STYLES,
    TRAIN_STYLES,
    Concept,
    load_concepts,
)
from contrastive.data.emoji.pictures import concept_image, tile_size

# split: (styles, whether the concepts are the held-out ones). Retrieval on unseen concepts shows
# the first training style only, so that every query picture has one right name.
SPLITS: dict[str, tuple[tuple[str, ...], bool]] = {
    "train": (TRAIN_STYLES, False),
    "unseen_artist": (TEST_STYLES, False),
    "unseen_concepts": (TRAIN_STYLES[:1], True),
    "unseen_both": (TEST_STYLES, True),
}
OPENMOJI_SPLITS: dict[str, tuple[tuple[str, ...], bool]] = {
    OPENMOJI_SPLIT: (OPTIONAL_STYLES, False),
    "unseen_both_openmoji": (OPTIONAL_STYLES, True),
}


def split_members(split: str) -> Iterator[tuple[str, Concept]]:
    """(style, concept) of every example of a split, in its order: style by style."""
    styles, held_out = (SPLITS | OPENMOJI_SPLITS)[split]
    for style in styles:
        for concept in load_concepts():
            if concept.held_out == held_out and (
                style in concept.styles or style in OPTIONAL_STYLES
            ):
                yield style, concept


class EmojiBuilder(tfds.core.GeneratorBasedBuilder):
    """Emoji pictures by several artists with CLDR names and keywords.

    The config ``committed`` has the splits ``train``, ``unseen_artist``, ``unseen_concepts`` and
    ``unseen_both``; the config ``openmoji`` needs ``contrastive[openmoji]`` and has
    ``unseen_artist_openmoji`` and ``unseen_both_openmoji``. An example has ``image`` (PNG),
    ``caption``, ``keywords``, ``id`` (concept index), ``key`` (``noto/1F9C7``), ``style``,
    ``group``, ``subgroup``, ``base`` and ``split``. Nothing is downloaded.
    """

    name = "emoji"
    url_infos = None  # nothing to download, so no table of checksums to look for
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "1,914 concepts of Unicode 17."}  # noqa: RUF012
    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(name="committed", description="The styles of this package."),
        tfds.core.BuilderConfig(name="openmoji", description="OpenMoji's drawings."),
    ]

    def __init__(self, *, file_format: str | None = "array_record", **kwargs: Any):
        super().__init__(file_format=file_format, **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        size = tile_size()
        text = tfds.features.Text
        features = tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(size, size, 3), encoding_format="png"),
                "caption": text(),
                "keywords": tfds.features.Sequence(text()),
                "id": tfds.features.Scalar(dtype=np.int64),
                "key": text(),
                "style": text(),
                "group": text(),
                "subgroup": text(),
                "base": text(),
                "split": text(),
            }
        )
        return tfds.core.DatasetInfo(
            builder=self,
            description="Emoji pictures by several artists with CLDR names and keywords.",
            features=features,
            disable_shuffling=True,  # split_members says the order
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        config = self.builder_config
        splits = OPENMOJI_SPLITS if config and config.name == "openmoji" else SPLITS
        return {split: self._generate_examples(split) for split in splits}

    def _generate_examples(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for style, concept in split_members(split):
            key = f"{style}/{concept.codepoints}"
            picture = io.BytesIO()
            Image.fromarray(concept_image(style, concept.index)).save(
                picture, "PNG", compress_level=1
            )
            picture.seek(0)
            yield (
                key,
                {
                    "image": picture,
                    "caption": concept.name,
                    "keywords": list(concept.keywords),
                    "id": concept.index,
                    "key": key,
                    "style": style,
                    "group": concept.group,
                    "subgroup": concept.subgroup,
                    "base": concept.base,
                    "split": split,
                },
            )
