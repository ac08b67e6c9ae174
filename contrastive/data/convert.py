"""From any source to shards that are read fast at random: ArrayRecord, or webdataset tars.

What is written of a sample follows from the kind of pairs: picture and caption, the picture, or
query, positive and negatives (these as ArrayRecord only: tars hold no pairs of texts).
"""

import contextlib
import io
import json
import math
import pathlib
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, runtime_checkable

from contrastive.data.example_source import make_example
from contrastive.data.records import (
    DataErrors,
    IndexedSource,
    Pairs,
    Record,
    SampleError,
    Source,
    check_words,
)
from contrastive.data.survey import picture_kind
from contrastive.errors import DataError
from contrastive.whole import whole_file

Target = Literal["array_record", "webdataset"]
Progress = Callable[[int, int], None]
_SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp", "gif": "gif", "tiff": "tif", "bmp": "bmp"}


@runtime_checkable
class _Shard(Protocol):
    def write(self, number: int, record: Record) -> None: ...

    def close(self) -> None: ...


class _Tar:
    """Samples as picture, text and, where there is more, JSON; nothing of the moment is written."""

    def __init__(self, path: pathlib.Path, pairs: Pairs) -> None:
        self._captions = pairs == "captions"
        self._tar = tarfile.TarFile(path, "w", format=tarfile.USTAR_FORMAT)

    def write(self, number: int, record: Record) -> None:
        suffix = _SUFFIXES.get(picture_kind(record["image"]), "png")
        self._add(f"{number:09}.{suffix}", record["image"])
        more: dict[str, Any] = {"key": _key(record), "content_id": record["id"]}
        if self._captions:
            self._add(f"{number:09}.txt", record["caption"].encode())
            more["keywords"] = list(record["keywords"])
        self._add(f"{number:09}.json", json.dumps(more, ensure_ascii=False).encode())

    def _add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def close(self) -> None:
        self._tar.close()


class _ArrayRecord:
    """Samples as ``tf.train.Example``, each in a chunk of its own: random reads are cheap."""

    def __init__(self, path: pathlib.Path, pairs: Pairs) -> None:
        from array_record.python import array_record_module  # pyright: ignore

        self._pairs = pairs
        self._writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")

    def write(self, number: int, record: Record) -> None:
        more: dict[str, Any] = {"key": _key(record).encode(), "content_id": record["id"]}
        self._writer.write(make_example(self._halves(record) | more))

    def _halves(self, record: Record) -> dict[str, Any]:
        if self._pairs == "texts":
            negatives = [text.encode() for text in record.get("negatives", [])]
            query, positive = record.get("query", ""), record["caption"]
            label = {"label": record["label"]} if "label" in record else {}
            texts = {"query": query.encode(), "positive": positive.encode()}
            return texts | {"negatives": negatives} | label
        if self._pairs == "views":
            return {"image": record["image"]}
        keywords = [word.encode() for word in record["keywords"]]
        caption = record["caption"].encode()
        return {"image": record["image"], "caption": caption, "keywords": keywords}

    def close(self) -> None:
        self._writer.close()


_SHARDS: dict[Target, Callable[[pathlib.Path, Pairs], _Shard]] = {
    "webdataset": _Tar,
    "array_record": _ArrayRecord,
}


def _key(record: Record) -> str:
    return record["key"].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def convert(
    source: Source,
    target: Target,
    folder: pathlib.Path,
    *,
    pairs: Pairs = "captions",
    split: str,
    shard_size: int,
    progress: Progress | None = None,
) -> DataErrors:
    """Writes all records of a source, in order, as ``SPLIT-….tar`` or ``SPLIT.array_record-…``.

    Pictures are copied as they are. Records that cannot be read or lack a text are left out.

    Args:
      source: The records.
      target: What to write.
      folder: Where; it is made, and must hold nothing of this split.
      pairs: What is written of a record.
      split: Begins the files' names.
      shard_size: Records a file.
      progress: Is told how many of how many records are done.

    Returns:
      What was left out.

    Raises:
      DataError: The folder cannot be written to or holds such files already, or tars are asked for
        that hold pairs of texts.
    """
    if target == "webdataset" and pairs == "texts":
        raise DataError("webdataset tars hold no pairs of texts: use --to=array_record.")
    count = max(math.ceil(len(source) / shard_size), 1)
    names = list(_names(target, split, count))
    errors = DataErrors()
    if isinstance(source, IndexedSource):
        errors.include(source.errors)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob(f"{split}[-.]*")):
            raise DataError(f"{folder} holds files of the split {split!r} already.")
        for number, name in enumerate(names):
            rows = range(number * shard_size, min((number + 1) * shard_size, len(source)))
            with (
                whole_file(folder / name) as path,
                contextlib.closing(_SHARDS[target](path, pairs)) as shard,
            ):
                for row in rows:
                    _copy(source, row, shard, pairs, errors)
                    if progress is not None:
                        progress(row + 1, len(source))
    except OSError as error:
        raise DataError(f"{folder} cannot be written to: {error.strerror or error}.") from error
    return errors


def _names(target: Target, split: str, count: int) -> Iterator[str]:
    for number in range(count):
        if target == "webdataset":
            yield f"{split}-{number:06}.tar"
        else:
            yield f"{split}.array_record-{number:05}-of-{count:05}"


def _copy(source: Source, row: int, shard: _Shard, pairs: Pairs, errors: DataErrors) -> None:
    key = f"sample {row}"
    try:
        record = source[row]
        key = record["key"]
        check_words(record, pairs)
    except SampleError as error:
        errors.add(row, error.key or key, error)
        return
    shard.write(row, record)
