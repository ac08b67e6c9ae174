"""About 1,900 emoji, each drawn by several artists, with names and keywords: pairs to learn from.

A model that has seen three artists' drawings is asked for the drawings of a fourth
(``unseen_artist``) and for things that no artist drew for it (``unseen_concepts``). The drawings
are committed as one sheet a style; :class:`EmojiBuilder` turns them into a tensorflow-datasets data
set and :func:`open_split` reads it. Licences and attributions: ``LICENSES.md`` beside this file.
"""

from typing import TYPE_CHECKING, Any

from contrastive.data.emoji.concepts import (
    OPENMOJI_SPLIT,
    OPTIONAL_STYLES,
    STYLES,
    TEST_STYLES,
    TRAIN_STYLES,
    VALIDATION_SPLIT,
    Concept,
    load_concepts,
)
from contrastive.data.emoji.pictures import concept_image

if TYPE_CHECKING:
    from contrastive.data.emoji.builder import EmojiBuilder, split_members
    from contrastive.data.emoji.source import EmojiRecord, EmojiSource, open_split

__all__ = [
    "OPENMOJI_SPLIT",
    "OPTIONAL_STYLES",
    "STYLES",
    "TEST_STYLES",
    "TRAIN_STYLES",
    "VALIDATION_SPLIT",
    "Concept",
    "EmojiBuilder",
    "EmojiRecord",
    "EmojiSource",
    "concept_image",
    "load_concepts",
    "open_split",
    "split_members",
]


def __getattr__(name: str) -> Any:
    """Imports tensorflow-datasets only when the builder or a split is asked for."""
    if name in ("EmojiBuilder", "split_members"):
        from contrastive.data.emoji import builder

        return getattr(builder, name)
    if name in ("EmojiRecord", "EmojiSource", "open_split"):
        from contrastive.data.emoji import source

        return getattr(source, name)
    raise AttributeError(f"module 'contrastive.data.emoji' has no attribute {name!r}")
