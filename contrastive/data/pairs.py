"""The kinds of pairs: what is read of a sample, and what a batch holds of it.

``captions``: ``image`` and ``text``. ``views``: ``view_a`` and ``view_b``, two views of one
picture (or of two pictures of one content), and where small crops are asked for ``crops``
``[batch, crops, size, size, 3]``. ``texts``: ``query`` and ``positive``, and where negatives are
asked for ``negatives`` ``[batch, k, length]`` with ``negative_weight`` and ``negative_id``
``[batch, k]``, as the losses take them: weight 0 where a pair has fewer than k. Joined texts are
``joined`` in the place of both, and ``joined_negatives``: the query with each negative. Labelled
ones have ``label``.

By the rule ``naflex`` a picture is ``[patches, bytes]``: patches with their places.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8, UInt64

from contrastive.data.augment import (
    Picture,
    as_images,
    augment,
    augment_as,
    augment_in_proportion,
)
from contrastive.data.captions import choose_captions
from contrastive.data.config import DataConfig
from contrastive.data.draws import derived, uniform
from contrastive.data.picture_config import CropConfig
from contrastive.data.tokenizer import Tokenizer
from contrastive.data.transforms import naflex_cut
from contrastive.data.unchecked import UNKNOWN, Fetched

_FIRST, _SECOND, _SMALL = "view a", "view b", "small view"
Keys = UInt64[np.ndarray, " batch"]


class Part(NamedTuple):
    """A random part of a picture, resized to a square."""

    key: UInt64[np.ndarray, " 1"]
    crop: CropConfig
    size: int


def parts(config: DataConfig, key: UInt64[np.ndarray, " 1"] | None) -> list[Part | None]:
    """The pictures that are made of one picture; None stands for the whole, which augmentation
    changes later. No key: random parts are not taken yet."""
    if config.pairs == "texts":
        return []
    crop, size = config.random_part, config.image_size
    if key is None or (crop.area is None and not config.views.small):
        return [None]
    if config.pairs == "captions":
        return [Part(key, crop, size)]
    both = [
        None if crop.area is None else Part(derived(key, view), crop, size)
        for view in (_FIRST, _SECOND)
    ]
    little = CropConfig(area=config.views.small_area, ratio=crop.ratio)
    return both + [
        Part(small, little, config.views.small_size) for small in _small_keys(key, config)
    ]


def _small_keys(keys: Keys, config: DataConfig) -> list[Keys]:
    return [derived(keys, f"{_SMALL} {i}") for i in range(config.views.small)]


def make_batch(
    found: Fetched,
    keys: Keys,
    config: DataConfig,
    tokenizer: Tokenizer,
    others: Fetched | None = None,
) -> tuple[dict[str, np.ndarray], int]:
    """What the towers see of a batch, and how many texts were cut.

    Args:
      found: The samples.
      keys: One for each, the source of all randomness.
      config: Kind of pairs, augmentation, negatives.
      tokenizer: Turns texts to ids.
      others: The samples that the second views are of; None: the same ones.
    """
    if config.pairs == "views":
        return view_batch(found, found if others is None else others, keys, config), 0
    if config.pairs == "texts":
        return _texts(found, keys, config, tokenizer)
    captions = choose_captions(found.captions, found.keywords, keys, config.captions)
    ids, truncated = _tokens(captions, keys, "hidden", config, tokenizer)
    images = [row[0] for row in found.images]
    return {"image": _pixels(images, keys, config, config.image_size), "text": ids}, truncated


def _tokens(
    texts: Sequence[str],
    keys: Keys,
    stream: str,
    config: DataConfig,
    tokenizer: Tokenizer,
    most: int | None = None,
) -> tuple[Int32[np.ndarray, "n length"], int]:
    """The ids of as many texts for each key, one after another; at most so many of a text."""
    ids, truncated = tokenizer.encode_counted(texts, most)
    ids = ids[:, :most]
    hidden = config.tokenizer.hidden
    if hidden:
        u = uniform(keys, stream, ids.size // len(keys)).reshape(ids.shape)
        ids = tokenizer.hide(ids, u, hidden)
    return ids, truncated


def _pixels(
    images: Sequence[Picture], keys: Keys, config: DataConfig, size: int, view: int = 0
) -> UInt8[np.ndarray, "batch size size 3"] | UInt8[np.ndarray, "batch patches bytes"]:
    stack = config.stack.stack
    if config.preprocessing == "naflex":
        return _patches(images, keys, config, view)
    if stack is not None:
        return augment_as(stack, images, keys, config.rand_augment, view)
    return augment(images, keys, config.augment, size, config.rand_augment)


def _patches(
    images: Sequence[Picture], keys: Keys, config: DataConfig, view: int
) -> UInt8[np.ndarray, "batch patches bytes"]:
    """Pictures of any proportions, each augmented by itself, as patches with their places."""
    stack = config.stack.stack
    if stack is None:
        changed = augment_in_proportion(
            as_images(images), keys, config.augment, config.rand_augment
        )
    else:
        changed = [
            augment_as(stack, [image], keys[i : i + 1], config.rand_augment, view)[0]
            for i, image in enumerate(images)
        ]
    return np.stack([naflex_cut(x, config.patches, config.resize.patch) for x in changed])


def view_batch(
    found: Fetched, others: Fetched, keys: Keys, config: DataConfig
) -> dict[str, np.ndarray]:
    """The views of a batch of pictures: first ones of ``found``, second ones of ``others``."""
    small = config.views.small
    second = min(1, len(found.images[0]) - small - 1)  # in the first's place if both are the whole
    batch = {
        f"view_{name}": _pixels(
            [row[second * view] for row in (found, others)[view].images],
            derived(keys, stream),
            config,
            config.image_size,
            view,
        )
        for view, (name, stream) in enumerate((("a", _FIRST), ("b", _SECOND)))
    }
    if small:
        crops = [
            _pixels([row[i - small] for row in found.images], key, config, config.views.small_size)
            for i, key in enumerate(_small_keys(keys, config))
        ]
        batch["crops"] = np.stack(crops, axis=1)
    return batch


def _texts(
    found: Fetched, keys: Keys, config: DataConfig, tokenizer: Tokenizer
) -> tuple[dict[str, np.ndarray], int]:
    first = found.captions if config.query_from == "positive" else found.queries
    queries = [config.query_prefix + text for text in first]
    positives = [config.passage_prefix + text for text in found.captions]
    batch: dict[str, np.ndarray] = {}
    if found.labels is not None:
        batch["label"] = found.labels
    if config.joined:
        batch["joined"], cut = tokenizer.encode_joined(queries, positives)
    else:
        most = config.query_length
        batch["query"], cut_query = _tokens(queries, keys, "hidden query", config, tokenizer, most)
        batch["positive"], cut = _tokens(positives, keys, "hidden positive", config, tokenizer)
        cut += cut_query
    if not config.negatives:
        return batch, cut
    rows, count = len(keys), config.negatives
    texts: list[str] = []
    batch["negative_weight"] = np.zeros((rows, count), np.float32)
    absent = UNKNOWN if found.ids.ndim == 2 else -1
    batch["negative_id"] = np.full((rows, count, *found.ids.shape[1:]), absent, found.ids.dtype)
    for i, chosen in enumerate(choose_negatives(found.negatives, keys, count)):
        texts += [config.passage_prefix + found.negatives[i][j] for j in chosen]
        texts += [""] * (count - len(chosen))
        batch["negative_weight"][i, : len(chosen)] = 1.0
        if chosen:
            batch["negative_id"][i, : len(chosen)] = [found.negative_ids[i][j] for j in chosen]
    if config.joined:
        each = [query for query in queries for _ in range(count)]
        ids, cut_negatives = tokenizer.encode_joined(each, texts)
    else:
        ids, cut_negatives = _tokens(texts, keys, "hidden negatives", config, tokenizer)
    batch["joined_negatives" if config.joined else "negatives"] = ids.reshape(rows, count, -1)
    return batch, cut + cut_negatives


def choose_negatives(negatives: Sequence[Sequence[Any]], keys: Keys, count: int) -> list[list[int]]:
    """Which of each row's negatives are taken: all, or ``count`` of them at random."""
    ranks = uniform(keys, "negatives", max(map(len, negatives), default=0))
    return [
        sorted(np.argsort(rank[: len(own)])[:count].tolist())
        for rank, own in zip(ranks, negatives, strict=True)
    ]
