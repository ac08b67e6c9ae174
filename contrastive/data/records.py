"""What readers yield, and the account of what could not be used.

A reader is a :class:`Source`: it has a length and gives the record of any index. A record that it
cannot give is a :class:`SampleError` with a short reason; whoever asked for it decides whether to
count it or to stop.
"""

import collections
import json
import pathlib
from collections.abc import Sequence
from typing import NotRequired, Protocol, TypedDict, runtime_checkable

import numpy as np

from contrastive.pairs import Pairs
from contrastive.whole import whole_file


class Record(TypedDict):
    """One pair before decoding. Readers may add keys of their own."""

    image: bytes  # an encoded picture: PNG, JPEG, WebP, GIF, ...; empty in pairs of texts
    caption: str  # the canonical caption, the one that evaluation uses; of texts, the positive
    keywords: list[str]  # other words for the same thing; may be empty
    query: NotRequired[str]  # of pairs of texts, in the picture's place
    negatives: NotRequired[list[str]]  # of pairs of texts
    label: NotRequired[int]  # of pairs of texts with labels: its number
    id: int  # of the content: equal ids show the same thing; -1 = unknown
    key: str  # names the sample in messages


@runtime_checkable
class Source(Protocol):
    """Random access to records. Indices are stable: they are the example ids of a run."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Record: ...


@runtime_checkable
class TextSource(Source, Protocol):
    """A source that can give the words of a record without reading its picture."""

    def text(self, index: int, /) -> tuple[str, list[str]]:
        """Caption and other words (of pairs of texts: the positive and the other texts)."""
        ...


@runtime_checkable
class IndexedSource(Source, Protocol):
    """A source that knows, without reading samples, what it holds.

    Attributes:
      fingerprint: A digest of the index: equal data, equal fingerprint.
      errors: The samples that the index leaves out, which have no index of their own.
    """

    fingerprint: str
    errors: "DataErrors"


class SampleError(Exception):
    """One sample cannot be used.

    Attributes:
      reason: A few words, the same for all samples with this fault; they are counted by it.
      detail: What is special about this one.
      key: Names the sample where the one who catches the error does not know it yet.
    """

    def __init__(self, reason: str, detail: str = "", *, key: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail, self.key = reason, detail, key


def check_words(record: Record, pairs: Pairs) -> None:
    """Raises :class:`SampleError` where a text that this kind of pair has is missing."""
    if pairs == "texts" and not record.get("query", "").strip():
        raise SampleError("empty query")
    if pairs != "views" and not (record["caption"] or "").strip():
        raise SampleError("empty positive" if pairs == "texts" else "empty caption")


def words(source: Source, index: int) -> tuple[str, list[str]]:
    """What :meth:`TextSource.text` gives, of any source."""
    if isinstance(source, TextSource):
        return source.text(index)
    record = source[index]
    query = [record["query"]] if "query" in record else []
    return record["caption"], [*record["keywords"], *query, *record.get("negatives", [])]


class InMemorySource:
    """A reader of records that are already in memory."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int, /) -> Record:
        return self._records[index]


class Subset:
    """Some records of a source, by index."""

    def __init__(self, source: Source, rows: Sequence[int]) -> None:
        self._source, self._rows = source, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Record:
        return self._source[self._rows[index]]


class Joined:
    """The records of several sources, one after another."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._ends = np.cumsum([len(source) for source in sources])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int, /) -> Record:
        part = int(np.searchsorted(self._ends, index, side="right"))
        source = self._sources[part]
        return source[index - int(self._ends[part]) + len(source)]


class DataErrors:
    """Samples that were skipped: counted by reason, each with its name."""

    def __init__(self) -> None:
        self.entries: list[dict[str, str | int]] = []
        self._counts: collections.Counter[str] = collections.Counter()

    def __len__(self) -> int:
        return self._counts.total()

    @property
    def counts(self) -> dict[str, int]:
        """Skipped samples by reason, the most frequent first."""
        return dict(self._counts.most_common())

    def add(self, index: int, key: str, error: SampleError) -> None:
        """Enters the sample ``index`` of a source."""
        entry: dict[str, str | int] = {"index": index, "key": printable(key)}
        entry["reason"] = error.reason
        if error.detail:
            entry["detail"] = printable(error.detail)
        self.entries.append(entry)
        self._counts[error.reason] += 1

    def count(self, reason: str, number: int) -> None:
        """Enters samples that are too many to be named."""
        self._counts[reason] += number

    def include(self, others: "DataErrors") -> None:
        """Enters all of another account."""
        self.entries += others.entries
        self._counts += others._counts

    def summary(self) -> str:
        """``"3 missing image, 1 empty caption"``."""
        return ", ".join(f"{count} {reason}" for reason, count in self.counts.items())

    def write(self, path: pathlib.Path) -> None:
        """Writes one JSON object a line; an empty account removes an old file."""
        if not len(self):
            path.unlink(missing_ok=True)
            return
        lines = [json.dumps(entry, ensure_ascii=False) for entry in self.entries]
        for reason, unnamed in self._unnamed().items():
            lines.append(json.dumps({"reason": reason, "more": unnamed}))
        with whole_file(path) as unfinished:
            unfinished.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _unnamed(self) -> dict[str, int]:
        named = collections.Counter(str(entry["reason"]) for entry in self.entries)
        return dict(self._counts - named)


def printable(text: str) -> str:
    """Shows bytes that were no UTF-8, which Python carries as lone surrogates, as ``\\x92``."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
