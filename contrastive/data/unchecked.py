"""Samples that are checked as they are read: for sets that nobody can read through first.

The index says what exists, so the order is a function of the seed alone. A sample that turns out to
be bad keeps its place: its row gets weight 0, counts nowhere in the loss, and nothing moves up. So
hosts agree on every batch without talking, and each good sample still comes once an epoch.
"""

import bisect
import contextlib
import dataclasses
import hashlib
import json
import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64, UInt32, UInt64

from contrastive.data.augment import Picture
from contrastive.data.captions import canonical
from contrastive.data.config import DataConfig
from contrastive.data.records import (
    DataErrors,
    IndexedSource,
    Pairs,
    Record,
    SampleError,
    Source,
    check_words,
)
from contrastive.errors import DataError

_LEAST = 1000  # samples that are seen before a share of bad ones means something
UNKNOWN = 0xFFFFFFFF, 0xFFFFFFFF
"""The content id that equals no other."""
_log = logging.getLogger(__name__)


class Bad(NamedTuple):
    """A sample that cannot be used."""

    number: int  # in the source
    key: str
    error: SampleError


@dataclasses.dataclass(frozen=True)
class Fetched:
    """The samples of some rows, before augmentation.

    Attributes:
      captions, keywords: Their texts (of pairs of texts: the positives, nothing).
      images: The square pictures made of each, see :func:`contrastive.data.pairs.parts`.
      ids: Content ids.
      index: Their indices in the source.
      weight: 0 for a row that could not be read, else 1; None where that cannot happen.
      bad: Why.
      queries, negatives, negative_ids: Of pairs of texts; the ids are the negatives' content ids.
      labels: Of pairs of texts with labels, their numbers; 0 for a row that could not be read.
    """

    captions: Sequence[str]
    keywords: Sequence[Sequence[str]]
    images: Sequence[Sequence[Picture]]
    ids: Int32[np.ndarray, " b"] | UInt32[np.ndarray, "b 2"]
    index: Int64[np.ndarray, " b"]
    weight: Float32[np.ndarray, " b"] | None = None
    bad: Sequence[Bad] = ()
    queries: Sequence[str] = ()
    negatives: Sequence[Sequence[str]] = ()
    negative_ids: Sequence[Sequence[Any]] = ()
    labels: Int32[np.ndarray, " b"] | None = None


class UncheckedExamples:
    """The samples of a source, in its order, read when they are wanted.

    Content ids are 64-bit hashes: of the record's id where it has one, else of the half of the pair
    that ``config.content`` names, else of the caption (the positive; for views, of the picture). So
    pairs with equal captions are no negatives of each other; equal pictures under different
    captions are not found: that would take a look at all of them.

    Args:
      source: The records.
      config: Sizes, the kind of pairs and the share of bad samples that is allowed.
      read: Turns a record into its pictures, with the key of the example.
      blank: The pictures of a sample that cannot be read.
    """

    images = None  # nothing is kept in memory

    def __init__(
        self,
        source: Source,
        config: DataConfig,
        read: Callable[[Record, UInt64[np.ndarray, " 1"]], list[Picture]],
        blank: Sequence[Picture],
    ) -> None:
        self._source, self._read, self._blank = source, read, blank
        self._pairs: Pairs = config.pairs
        self._labelled = bool(config.fields.labels)
        self._by_picture = config.pairs == "views" or config.content == "first"
        self.fingerprint = _fingerprint(source)

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, rows: Sequence[int], keys: UInt64[np.ndarray, " b"]) -> Fetched:
        """Reads rows; one that is bad is empty and has weight 0."""
        records: list[Record] = []
        images: list[Sequence[Picture]] = []
        ids: list[tuple[int, int]] = []
        bad: list[Bad] = []
        weight = np.ones(len(rows), np.float32)
        for i, index in enumerate(rows):
            key = f"sample {index}"
            try:
                record = self._source[index]
                key = record["key"]
                check_words(record, self._pairs)
                pictures = self._read(record, keys[i : i + 1])
            except SampleError as error:
                # a copy: the error itself holds on to its traceback, and that to whole batches
                bad.append(Bad(index, error.key or key, SampleError(error.reason, error.detail)))
                weight[i] = 0.0
                record = Record(image=b"", caption="", keywords=[], id=-1, key=key)
                pictures, identity = self._blank, UNKNOWN
            else:
                identity = self._content(record)
            records.append(record)
            images.append(pictures)
            ids.append(identity)
        negatives = [record.get("negatives", []) for record in records]
        return Fetched(
            [(record["caption"] or "").strip() for record in records],
            [record["keywords"] for record in records],
            images,
            np.array(ids, np.uint32).reshape(-1, 2),
            np.array(rows, np.int64),
            weight,
            bad,
            [record.get("query", "").strip() for record in records],
            negatives,
            [_negative_ids(record, own) for record, own in zip(records, ids, strict=True)],
            np.array([record.get("label", 0) for record in records], np.int32)
            if self._labelled
            else None,
        )

    def _content(self, record: Record) -> tuple[int, int]:
        if record["id"] >= 0:
            return _hashed(f"id {record['id']}".encode())
        return _hashed(record["image"]) if self._by_picture else _caption_id(record["caption"])


def _negative_ids(record: Record, own: tuple[int, int]) -> list[tuple[int, int]]:
    """Those of a record's negatives; its own positive has its own, whatever that was made of."""
    positive = canonical(record["caption"] or "")
    return [
        own if canonical(text) == positive else _caption_id(text)
        for text in record.get("negatives", [])
    ]


def _caption_id(caption: str) -> tuple[int, int]:
    return _hashed(f"caption {canonical(caption)}".encode("utf-8", "surrogatepass"))


def _hashed(content: bytes) -> tuple[int, int]:
    digest = hashlib.blake2b(content, digest_size=8).digest()
    words = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")
    return words if words != UNKNOWN else (0, 0)


def _fingerprint(source: Source) -> str:
    if isinstance(source, IndexedSource):
        return f"index-{source.fingerprint}"
    raise DataError(
        f"{type(source).__name__} has no index, which config.data.check = 'during' needs to know "
        "whether data has changed. Use 'before'."
    )


class Account:
    """Counts the bad samples that batches have met, names each once, and stops above a share.

    It stands at a step, as the loader does: what a run has met after its last checkpoint is
    forgotten when it goes on from there, and met again.

    Args:
      source: Its index may leave samples out already.
      config: The share of bad samples that is allowed.
      log: Where they are listed, one JSON object a line, with the step that met them first.
      rows: Of a batch, in this process.

    Attributes:
      errors: What is listed.
      bad: Rows so far that could not be read; a sample counts each time that it comes.
    """

    def __init__(
        self, source: Source, config: DataConfig, log: pathlib.Path | None, rows: int
    ) -> None:
        self._allowed, self._log, self._rows = config.max_bad_share, log, rows
        self._needed = min(len(source), _LEAST)
        self._step, self.bad, self._begun = 0, 0, False
        self.errors = DataErrors()
        if isinstance(source, IndexedSource):
            self.errors.include(source.errors)
            _check_index(source, config)
        self._of_index = len(self.errors)
        self._named: set[int] = set()
        self._steps: list[int] = []  # at which the named ones were met, in order

    def begin(self, step: int, bad: int) -> None:
        """Goes on after a step, up to which so many rows were bad: of the log, what was listed up
        to there stays."""
        self._step, self.bad, self._begun = step, bad, True
        if self._log is None:
            return
        kept = [entry for entry in _read_log(self._log) if 0 < entry["step"] <= step]
        self.errors.write(self._log)
        for entry in sorted(kept, key=lambda entry: entry["step"]):
            if entry["index"] in self._named:
                continue  # several processes that share a part of the batch share its log
            key, reason, detail = (str(entry.get(k, "")) for k in ("key", "reason", "detail"))
            self._name(Bad(entry["index"], key, SampleError(reason, detail)), entry["step"])

    def skipped(self, step: int) -> int:
        """How many samples were met up to a step that cannot be used, each once, and those that the
        index leaves out."""
        return self._of_index + bisect.bisect_right(self._steps, step)

    def add(self, bad: Sequence[Bad]) -> None:
        """Enters a batch.

        Raises:
          DataError: Too many samples are bad.
        """
        if not self._begun:
            self.begin(0, 0)
        self._step += 1
        self.bad += len(bad)
        for sample in bad:
            if sample.number not in self._named:
                if not self._named:
                    _log.warning(
                        "%s cannot be used: %s. It is passed over, like others that will be "
                        "counted and listed without a word.",
                        sample.key,
                        sample.error,
                    )
                self._name(sample, self._step)
        seen = self._step * self._rows
        limit = self._allowed * max(seen, self._needed)
        if self.bad > limit or self.bad == seen >= self._needed:
            raise DataError(
                f"{self.bad:,} of the {seen:,} samples so far ({self.bad / seen:.1%})"
                f" cannot be used: {self.errors.summary()}. config.data.max_bad_share allows "
                f"{self._allowed:.1%}." + (f" All are listed in {self._log}." if self._log else "")
            )

    def _name(self, sample: Bad, step: int) -> None:
        self._named.add(sample.number)
        self._steps.append(step)
        self.errors.add(*sample)
        self.errors.entries[-1]["step"] = step
        if self._log is not None:
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(json.dumps(self.errors.entries[-1], ensure_ascii=False) + "\n")


def _read_log(log: pathlib.Path) -> list[dict[str, Any]]:
    """What an earlier part of the run has listed of samples that it has met."""
    known: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError), open(log, encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(ValueError):  # a line may be cut short by a crash
                entry = json.loads(line)
                if isinstance(entry.get("step"), int) and entry.get("index", -1) >= 0:
                    known.append(entry)
    return known


def _check_index(source: IndexedSource, config: DataConfig) -> None:
    """Stops before the first step where the index leaves too much out."""
    left_out, total = len(source.errors), len(source) + len(source.errors)
    if left_out > config.max_bad_share * total:
        raise DataError(
            f"{left_out:,} of {total:,} samples ({left_out / total:.1%}) cannot be used: "
            f"{source.errors.summary()}. config.data.max_bad_share allows "
            f"{config.max_bad_share:.1%}."
        )
