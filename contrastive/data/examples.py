"""The usable examples of a source: what can be read, and the account of what cannot.

Every sample is read and decoded once. What is damaged, missing or without words is counted, named
and left out; above a set share of such samples nothing starts.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import pathlib
from collections.abc import Callable, Iterator, Sequence
from time import monotonic as _now
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Int32, Int64, UInt8, UInt64
from PIL import Image

from contrastive.data import fast
from contrastive.data.augment import random_part
from contrastive.data.captions import canonical
from contrastive.data.config import DataConfig
from contrastive.data.records import DataErrors, IndexedSource, Record, SampleError, Source
from contrastive.data.splits import content_ids
from contrastive.data.transforms import decode_image, evaluation_image, resize, shaped
from contrastive.data.unchecked import Fetched
from contrastive.errors import DataError

Progress = Callable[[int, int], None]
_AHEAD = 64  # samples that are read ahead
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Examples:
    """The usable examples of a source.

    Attributes:
      index: Their indices in the source.
      captions, keywords: Their texts.
      ids: Content ids; examples with the same caption or the same picture have the same.
      images: Their pictures, square and small, if they fit in memory.
      fingerprint: A digest of all this and of the encoded pictures: equal data, equal fingerprint.
      errors: The samples that are left out.
    """

    index: Int64[np.ndarray, " n"]
    captions: Sequence[str]
    keywords: Sequence[Sequence[str]]
    ids: Int32[np.ndarray, " n"]
    images: Sequence[Image.Image] | None
    fingerprint: str
    errors: DataErrors

    def __len__(self) -> int:
        return len(self.captions)

    def fetch(self, rows: Sequence[int], read: Callable[[int, int], Image.Image]) -> Fetched:
        """Some examples; ``read`` gives the picture of an index, for the i-th of the rows, where
        none are in memory."""
        images = self.images
        return Fetched(
            [self.captions[i] for i in rows],
            [self.keywords[i] for i in rows],
            [
                read(int(self.index[row]), i) if images is None else images[row]
                for i, row in enumerate(rows)
            ],
            self.ids[rows],
            self.index[rows],
        )


def read_picture(
    record: Record, config: DataConfig, key: UInt64[np.ndarray, " 1"] | None = None
) -> Image.Image:
    """The picture of a record, square, no larger than augmentation needs it.

    Args:
      record: The record.
      config: Sizes, the rule, how to decode.
      key: Of the example, where a random part is taken; None: a random part is not taken yet.

    Raises:
      SampleError: The picture cannot be decoded.
    """
    cut = functools.partial(_cut, config=config, key=key)
    if config.decoding != "evaluation" and config.preprocessing != "clip":
        picture = fast.read(record["image"], cut, scaled=config.decoding == "train_fast")
        if picture is not None:
            return picture
    image = decode_image(record["image"])
    if config.preprocessing == "clip" and config.crop.area is None:
        return shaped(image, config.room, "clip")
    box, size = cut(*image.size)
    if box != (0, 0, *image.size):
        image = image.crop(box)
    return image if size is None else resize(image, size)


def _cut(
    width: int, height: int, config: DataConfig, key: UInt64[np.ndarray, " 1"] | None
) -> tuple[tuple[int, int, int, int], int | None]:
    """Which part of a picture is taken, and the side to which it is resized (None = it is not)."""
    if config.crop.area is not None and key is not None:
        return random_part(width, height, key, config.crop), config.image_size
    if config.preprocessing == "siglip":
        return (0, 0, width, height), config.room
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    room = config.room
    small = config.augment.geometric and config.crop.area is None and side <= room
    return (left, top, left + side, top + side), None if small else room


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
    in_memory &= config.crop.area is None  # each epoch takes other parts
    errors, rows = _errors_of_index(source), _Rows()
    total = len(source) + len(errors)
    read = functools.partial(read_picture, config=config)
    for index, record, picture in _usable(source, config, read, errors, progress):
        rows.add(index, record, picture if in_memory else None)
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
    picture: Image.Image | None = None
    error: SampleError | None = None


def _usable(
    source: Source,
    config: DataConfig,
    read: Callable[[Record], Image.Image],
    errors: DataErrors,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Record, Image.Image]]:
    """The samples that can be used, with their pictures; the others go to ``errors``."""

    def attempt(index: int) -> _Sample:
        key = f"sample {index}"
        try:
            record = source[index]
            key = record["key"]
            if not (record["caption"] or "").strip():
                raise SampleError("empty caption")
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
            if sample.record is not None and sample.picture is not None:
                yield sample.position, sample.record, sample.picture
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

    images: UInt8[np.ndarray, "n size size 3"]
    records: list[Record]
    ids: Int32[np.ndarray, " n"]
    errors: DataErrors


def read_evaluation_pairs(source: Source, config: DataConfig) -> EvaluationPairs:
    """Reads the pairs of an evaluation split, in order, by the rules of training.

    Raises:
      DataError: There is no usable sample, or too many are not.
    """
    errors, rows = _errors_of_index(source), _Rows()
    total = len(source) + len(errors)
    images: list[np.ndarray] = []
    records: list[Record] = []
    for index, record, picture in _usable(
        source, config, lambda record: decode_image(record["image"]), errors
    ):
        rows.add(index, record, None)
        records.append(record)
        images.append(evaluation_image(picture, config.image_size, config.preprocessing))
    _check_share(total, errors, config, None)
    return EvaluationPairs(np.stack(images), records, rows.examples(errors).ids, errors)


class _Rows:
    """Collects the columns of :class:`Examples`."""

    def __init__(self) -> None:
        self.index: list[int] = []
        self.captions: list[str] = []
        self.keywords: list[tuple[str, ...]] = []
        self.ids: list[int] = []
        self.digests: list[bytes] = []
        self.images: list[Image.Image | None] = []

    def add(self, index: int, record: Record, picture: Image.Image | None) -> None:
        self.index.append(index)
        self.captions.append(record["caption"].strip())
        self.keywords.append(tuple(record["keywords"]))
        self.ids.append(record["id"])
        self.digests.append(hashlib.blake2b(record["image"], digest_size=16).digest())
        self.images.append(picture)

    def examples(self, errors: DataErrors) -> Examples:
        ids = np.array(self.ids, np.int32)
        unknown = np.flatnonzero(ids < 0)
        numbers = content_ids([(canonical(self.captions[i]), self.digests[i]) for i in unknown])
        ids[unknown] = np.array(numbers, np.int32) + max(ids.max(), -1) + 1
        content = hashlib.blake2b(digest_size=8)
        for row in zip(self.index, self.captions, self.keywords, ids.tolist(), strict=True):
            content.update(json.dumps(row).encode())
        content.update(b"".join(self.digests))
        images = [image for image in self.images if image is not None]
        return Examples(
            index=np.array(self.index, np.int64),
            captions=self.captions,
            keywords=self.keywords,
            ids=ids,
            images=images or None,
            fingerprint=content.hexdigest(),
            errors=errors,
        )


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
