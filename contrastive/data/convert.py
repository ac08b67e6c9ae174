"""From any source to shards that are read fast at random: ArrayRecord, or webdataset tars."""

import contextlib
import io
import json
import math
import pathlib
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, runtime_checkable

from contrastive.data.example_source import make_example
from contrastive.data.records import DataErrors, IndexedSource, Record, SampleError, Source
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

    def __init__(self, path: pathlib.Path) -> None:
        self._tar = tarfile.TarFile(path, "w", format=tarfile.USTAR_FORMAT)

    def write(self, number: int, record: Record) -> None:
        suffix = _SUFFIXES.get(picture_kind(record["image"]), "png")
        self._add(f"{number:09}.{suffix}", record["image"])
        self._add(f"{number:09}.txt", record["caption"].encode())
        more = _more(record)
        self._add(f"{number:09}.json", json.dumps(more, ensure_ascii=False).encode())

    def _add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def close(self) -> None:
        self._tar.close()


class _ArrayRecord:
    """Samples as ``tf.train.Example``, each in a chunk of its own: random reads are cheap."""

    def __init__(self, path: pathlib.Path) -> None:
        from array_record.python import array_record_module  # pyright: ignore

        self._writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")

    def write(self, number: int, record: Record) -> None:
        more = _more(record)
        features: dict[str, Any] = {
            "image": record["image"],
            "caption": record["caption"].encode(),
            "key": more["key"].encode(),
            "keywords": [word.encode() for word in record["keywords"]],
            "content_id": more["content_id"],
        }
        self._writer.write(make_example(features))

    def close(self) -> None:
        self._writer.close()


def _more(record: Record) -> dict[str, Any]:
    key = record["key"].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return {"key": key, "keywords": list(record["keywords"]), "content_id": record["id"]}


def convert(
    source: Source,
    target: Target,
    folder: pathlib.Path,
    *,
    split: str,
    shard_size: int,
    progress: Progress | None = None,
) -> DataErrors:
    """Writes all records of a source, in order, as ``SPLIT-….tar`` or ``SPLIT.array_record-…``.

    Pictures are copied as they are. Records that cannot be read or have no caption are left out.

    Args:
      source: The records.
      target: What to write.
      folder: Where; it is made, and must hold nothing of this split.
      split: Begins the files' names.
      shard_size: Records a file.
      progress: Is told how many of how many records are done.

    Returns:
      What was left out.

    Raises:
      DataError: The folder cannot be written to or holds such files already, or nothing is left.
    """
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
            with whole_file(folder / name) as path:
                shard = _Tar(path) if target == "webdataset" else _ArrayRecord(path)
                with contextlib.closing(shard):
                    for row in rows:
                        _copy(source, row, shard, errors)
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


def _copy(source: Source, row: int, shard: _Shard, errors: DataErrors) -> None:
    try:
        record = source[row]
        if not (record["caption"] or "").strip():
            raise SampleError("empty caption", key=record["key"])
    except SampleError as error:
        errors.add(row, error.key or f"sample {row}", error)
        return
    shard.write(row, record)
