"""The usable examples of a source: what can be read, and the account of what cannot.

Every sample is read and decoded once. What is damaged, missing or without words is counted, named
and left out; above a set share of such samples nothing starts.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import pathlib
from collections.abc import Callable, Iterator, Sequence
from time import monotonic as _now
from typing import Any, NamedTuple, TypeVar

import grain
import numpy as np
from jaxtyping import Int32, Int64, UInt8, UInt64
from PIL import Image

from contrastive.data import fast, pairs
from contrastive.data.augment import Picture, random_part
from contrastive.data.captions import canonical
from contrastive.data.config import DataConfig
from contrastive.data.records import (
    DataErrors,
    IndexedSource,
    Record,
    SampleError,
    Source,
    check_words,
)
from contrastive.data.splits import content_ids
from contrastive.data.transforms import (
    STRETCHES,
    TAKES_MIDDLE,
    decode_image,
    evaluation_image,
    naflex_resized,
    resize,
    shaped,
)
from contrastive.data.unchecked import Fetched
from contrastive.errors import DataError

T = TypeVar("T")
Progress = Callable[[int, int], None]
_AHEAD = 64  # samples that are read ahead
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Examples:
    """The usable examples of a source.

    Attributes:
      index: Their indices in the source.
      captions, keywords: Their texts (of pairs of texts: the positives, nothing).
      ids: Content ids; examples with the same caption or the same picture have the same, as far as
        ``config.content`` says so.
      images: Their pictures, square and small, if they fit in memory.
      fingerprint: A digest of all this and of the encoded pictures: equal data, equal fingerprint.
      errors: The samples that are left out.
      queries, negatives, negative_ids: Of pairs of texts. A negative that is the positive of some
        pair has its content id.
      labels: Of pairs of texts with labels, their numbers.
    """

    index: Int64[np.ndarray, " n"]
    captions: Sequence[str]
    keywords: Sequence[Sequence[str]]
    ids: Int32[np.ndarray, " n"]
    images: Sequence[Picture] | None
    fingerprint: str
    errors: DataErrors
    queries: Sequence[str] = ()
    negatives: Sequence[Sequence[str]] = ()
    negative_ids: Sequence[Sequence[int]] = ()
    labels: Int32[np.ndarray, " n"] | None = None

    def __len__(self) -> int:
        return len(self.captions)

    @functools.cached_property
    def of_content(self) -> Sequence[Sequence[int]]:
        """For each example, all those of its content."""
        members: dict[int, list[int]] = {}
        for row, identity in enumerate(self.ids.tolist()):
            members.setdefault(identity, []).append(row)
        return [members[identity] for identity in self.ids.tolist()]

    def fetch(self, rows: Sequence[int], read: Callable[[int, int], Sequence[Picture]]) -> Fetched:
        """Some examples; ``read`` gives the pictures of an index, for the i-th of the rows, where
        none are in memory."""
        images = self.images
        return Fetched(
            [self.captions[i] for i in rows],
            [self.keywords[i] for i in rows],
            [
                read(int(self.index[row]), i) if images is None else [images[row]]
                for i, row in enumerate(rows)
            ],
            self.ids[rows],
            self.index[rows],
            queries=[self.queries[i] for i in rows],
            negatives=[self.negatives[i] for i in rows],
            negative_ids=[self.negative_ids[i] for i in rows],
            labels=None if self.labels is None else self.labels[rows],
        )


def read_pictures(
    record: Record, config: DataConfig, key: UInt64[np.ndarray, " 1"] | None = None
) -> list[Picture]:
    """The pictures that are made of a record's (:func:`contrastive.data.pairs.parts`), square, no
    larger than augmentation needs them; by the rule ``naflex`` of whole patches.

    Args:
      record: The record.
      config: Sizes, the rule, how to decode.
      key: Of the example, where random parts are taken; None: they are not taken yet.

    Raises:
      SampleError: The picture cannot be decoded.
    """
    wanted = pairs.parts(config, key)
    if not wanted:
        return []
    cuts = [functools.partial(_cut, config=config, part=part) for part in wanted]
    if config.decoding != "evaluation" and config.preprocessing not in TAKES_MIDDLE:
        pictures = fast.read(record["image"], cuts, scaled=config.decoding == "train_fast")
        if pictures is not None:
            return [*pictures]
    image = decode_image(record["image"])
    if config.preprocessing == "naflex":
        return [_in_proportion(image, part, config) for part in wanted]
    return [_take(image, cut, part, config) for cut, part in zip(cuts, wanted, strict=True)]


def _in_proportion(image: Image.Image, part: pairs.Part | None, config: DataConfig) -> Image.Image:
    if part is not None:
        image = image.crop(random_part(*image.size, part.key, part.crop))
    return naflex_resized(image, config.patches, config.resize)


def _take(
    image: Image.Image, cut: fast.Cut, part: pairs.Part | None, config: DataConfig
) -> Image.Image:
    if config.preprocessing in TAKES_MIDDLE and part is None:
        return shaped(image, config.room, config.preprocessing, config.resize)
    box, size = cut(*image.size)
    if box != (0, 0, *image.size):
        image = image.crop(box)
    return image if size is None else resize(image, size, config.resize)


def _cut(
    width: int, height: int, config: DataConfig, part: pairs.Part | None
) -> tuple[tuple[int, int, int, int], int | None]:
    """Which part of a picture is taken, and the side to which it is resized (None = it is not)."""
    if part is not None:
        return random_part(width, height, part.key, part.crop), part.size
    if config.preprocessing in STRETCHES:
        return (0, 0, width, height), config.room
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    room = config.room
    small = config.augment.geometric and config.random_part.area is None and side <= room
    return (left, top, left + side, top + side), None if small else room


def blank_pictures(config: DataConfig) -> list[Picture]:
    """What stands for the pictures of a sample that cannot be read."""
    sides = [
        config.room if part is None else part.size
        for part in pairs.parts(config, np.zeros(1, np.uint64))
    ]
    return [Image.new("RGB", (side, side)) for side in sides]


def read_examples(
    source: Source,
    config: DataConfig,
    *,
    error_log: pathlib.Path | None = None,
    progress: Progress | None = None,
) -> Examples:
    """Reads and decodes every sample once.

    Args:
      source: The records.
      config: Picture sizes, memory limit and the share of bad samples that is allowed.
      error_log: Where skipped samples are listed, one JSON object a line.
      progress: Is told about once a second how many of how many samples are read.

    Raises:
      DataError: There is no usable sample, or too many are not.
    """
    room = config.room
    in_memory = len(source) * room * room * 4 <= config.memory_mib << 20
    in_memory &= config.random_part.area is None  # each epoch takes other parts
    in_memory &= not config.views.small
    errors, rows = _errors_of_index(source), _Rows(config)
    total = len(source) + len(errors)
    read = functools.partial(read_pictures, config=config)
    for index, record, pictures in _usable(source, config, read, errors, progress):
        rows.add(index, record, pictures[0] if in_memory and pictures else None)
    if error_log is not None:
        errors.write(error_log)
    _check_share(total, errors, config, error_log)
    return rows.examples(errors)


def _errors_of_index(source: Source) -> DataErrors:
    """The samples that the source's index leaves out already."""
    errors = DataErrors()
    if isinstance(source, IndexedSource):
        errors.include(source.errors)
    return errors


class _Sample(NamedTuple):
    position: int
    key: str
    record: Record | None = None
    pictures: Sequence[Any] = ()
    error: SampleError | None = None


def _usable(
    source: Source,
    config: DataConfig,
    read: Callable[[Record], Sequence[T]],
    errors: DataErrors,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Record, Sequence[T]]]:
    """The samples that can be used, with their pictures; the others go to ``errors``."""

    def attempt(index: int) -> _Sample:
        key = f"sample {index}"
        try:
            record = source[index]
            key = record["key"]
            check_words(record, config.pairs)
            return _Sample(index, key, record, read(record))
        except SampleError as error:
            return _Sample(index, error.key or key, error=error)

    options = grain.ReadOptions(num_threads=config.threads, prefetch_buffer_size=_AHEAD)
    samples = grain.MapDataset.range(len(source)).map(attempt).to_iter_dataset(options).__iter__()
    told = _now()
    try:
        for sample in samples:
            if progress is not None and _now() - told > 1.0:
                progress(sample.position, len(source))
                told = _now()
            if sample.record is not None:
                yield sample.position, sample.record, sample.pictures
            elif sample.error is not None:
                errors.add(sample.position, sample.key, sample.error)
    finally:
        samples.close()


class EvaluationPairs(NamedTuple):
    """What a model is evaluated on.

    Attributes:
      images: Their pixels, as towers see them outside of training.
      records: Their records, in the same order.
      ids: Content ids; pairs with the same caption or the same picture have the same.
      errors: The samples that are left out.
    """

    images: UInt8[np.ndarray, "n ..."]
    records: list[Record]
    ids: Int32[np.ndarray, " n"]
    errors: DataErrors


def read_evaluation_pairs(source: Source, config: DataConfig) -> EvaluationPairs:
    """Reads the pairs of an evaluation split, in order, by the rules of training.

    Raises:
      DataError: There is no usable sample, or too many are not.
    """
    errors, rows = _errors_of_index(source), _Rows(config)
    total = len(source) + len(errors)
    images: list[np.ndarray] = []
    records: list[Record] = []
    for index, record, (picture,) in _usable(
        source, config, lambda record: [decode_image(record["image"])], errors
    ):
        rows.add(index, record, None)
        records.append(record)
        images.append(
            evaluation_image(picture, config.image_size, config.preprocessing, config.resize)
        )
    _check_share(total, errors, config, None)
    return EvaluationPairs(np.stack(images), records, rows.examples(errors).ids, errors)


class _Rows:
    """Collects the columns of :class:`Examples`."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self.index: list[int] = []
        self.captions: list[str] = []
        self.keywords: list[tuple[str, ...]] = []
        self.queries: list[str] = []
        self.negatives: list[list[str]] = []
        self.labels: list[int] = []
        self.ids: list[int] = []
        self.digests: list[bytes] = []
        self.images: list[Picture | None] = []

    def add(self, index: int, record: Record, picture: Picture | None) -> None:
        self.index.append(index)
        self.captions.append((record["caption"] or "").strip())
        self.keywords.append(tuple(record["keywords"]))
        self.ids.append(record["id"])
        first, query = record["image"], record.get("query", "").strip()
        if self._config.pairs == "texts":
            first = canonical(query).encode("utf-8", "surrogatepass")
        self.queries.append(query)
        self.negatives.append(record.get("negatives", []))
        if self._config.fields.labels:
            self.labels.append(record.get("label", 0))
        self.digests.append(hashlib.blake2b(first, digest_size=16).digest())
        self.images.append(picture)

    def examples(self, errors: DataErrors) -> Examples:
        ids = np.array(self.ids, np.int32)
        unknown = np.flatnonzero(ids < 0)
        numbers = content_ids([self._features(i) for i in unknown.tolist()])
        first = max(int(ids.max()), -1) + 1
        if first + len(unknown) + sum(map(len, self.negatives)) > 2**31:
            raise DataError(
                f"the content ids of the data (config.data.fields.id) reach {first - 1}, which "
                "leaves no numbers for pairs and negatives that have none: use smaller ones."
            )
        ids[unknown] = np.array([first + number for number in numbers], np.int32)
        content = hashlib.blake2b(digest_size=8)
        for row in zip(self.index, self.captions, self.keywords, ids.tolist(), strict=True):
            content.update(json.dumps(row).encode())
        content.update(b"".join(self.digests))
        content.update(json.dumps(self.negatives).encode() if any(self.negatives) else b"")
        content.update(json.dumps(self.labels).encode() if self.labels else b"")
        images = [image for image in self.images if image is not None]
        return Examples(
            index=np.array(self.index, np.int64),
            captions=self.captions,
            keywords=self.keywords,
            ids=ids,
            images=images or None,
            fingerprint=content.hexdigest(),
            errors=errors,
            queries=self.queries,
            negatives=self.negatives,
            negative_ids=self._negative_ids(ids),
            labels=np.array(self.labels, np.int32) if self._config.fields.labels else None,
        )

    def _features(self, row: int) -> tuple[object, ...]:
        """What makes examples equal in content."""
        first, second = self.digests[row], canonical(self.captions[row])
        if self._config.pairs == "views" or self._config.content == "first":
            return (first,)
        return (second,) if self._config.content == "second" else (second, first)

    def _negative_ids(self, ids: Int32[np.ndarray, " n"]) -> list[list[int]]:
        if not any(self.negatives):
            return [[] for _ in self.negatives]
        known: dict[str, int] = {}
        for caption, identity in zip(self.captions, ids.tolist(), strict=True):
            known.setdefault(canonical(caption), identity)
        free = itertools.count(int(ids.max(initial=-1)) + 1)
        return [
            [
                int(own) if text == canonical(caption)  # whatever ids the source gives
                else known[text] if text in known else known.setdefault(text, next(free))
                for text in map(canonical, negatives)
            ]
            for negatives, caption, own in zip(self.negatives, self.captions, ids, strict=True)
        ]  # fmt: skip


def _check_share(
    total: int, errors: DataErrors, config: DataConfig, error_log: pathlib.Path | None
) -> None:
    bad = len(errors)
    if total == 0:
        raise DataError("The data source is empty.")
    if not bad:
        return
    first = errors.entries[0]
    where = f"All are listed in {error_log}." if error_log else ""
    account = (
        f"{bad:,} of {total:,} samples ({bad / total:.1%}) cannot be used: {errors.summary()}. "
        f"The first is {first['key']}: {first['reason']}."
    )
    if bad == total or bad > config.max_bad_share * total:
        limit = f"config.data.max_bad_share allows {config.max_bad_share:.1%}."
        raise DataError(" ".join(filter(None, (account, limit, where))))
    _log.warning("%s They are skipped. %s", account, where)
