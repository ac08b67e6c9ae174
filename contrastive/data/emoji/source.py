"""Random access to the records of one split; the data set is prepared on first use."""

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
import threading
import time
from importlib import resources
from pathlib import Path
from typing import Any, SupportsIndex

import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from contrastive.data.emoji.builder import OPENMOJI_SPLITS, SPLITS, EmojiBuilder, split_members
from contrastive.data.emoji.concepts import STYLES
from contrastive.data.emoji.pictures import openmoji_version, require_openmoji
from contrastive.data.records import Record
from contrastive.errors import DataError, NoSuchSplit

_ABANDONED_AFTER_S = 3600.0
_TEMPORARY_PREFIX = ".emoji-"
_PREPARING = threading.Lock()  # output is redirected for the whole process meanwhile


class EmojiRecord(Record):
    """One drawing and its words; ``id`` is the concept's index and ``key`` names the drawing."""

    style: str
    group: str
    subgroup: str
    base: str
    split: str


class EmojiSource:
    """The records of one split, ``source[i]`` for ``i`` in ``0..len(source) - 1``.

    Follows grain's RandomAccessDataSource protocol. Records are kept in memory once read (the
    training split is 15 MB), may be read from several threads, and must not be changed by the
    reader. Pickling sends the place of the files, not the records.
    """

    def __init__(self, split: str, folder: Path):
        self.split = split
        self._folder = folder
        self._open()

    def _open(self) -> None:
        config = "openmoji" if self.split in OPENMOJI_SPLITS else "committed"
        try:
            builder = EmojiBuilder(config=config, data_dir=self._folder)
            self._reader = builder.as_data_source(
                split=self.split,  # pyright: ignore[reportCallIssue]  (tfds decorates it)
                deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
            )
            self._records: list[EmojiRecord | None] = [None] * len(self._reader)
            last = self[len(self) - 1]
        except Exception as error:
            raise self._damaged() from error
        *others, (style, concept) = split_members(self.split)
        if len(self) != len(others) + 1 or (last["style"], last["id"]) != (style, concept.index):
            raise self._damaged()

    def _damaged(self) -> DataError:
        return DataError(
            f"the prepared emoji data in {self._folder} are damaged: delete that folder, and the "
            "next run will prepare them again"
        )

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: SupportsIndex) -> EmojiRecord:
        position = index.__index__()
        if not 0 <= position < len(self._records):
            raise IndexError(f"record {position} of {len(self._records)} in {self.split}")
        record = self._records[position]
        if record is None:
            record = self._records[position] = _record(self._reader[position])
        return record

    def __repr__(self) -> str:
        return f"EmojiSource(split={self.split!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"split": self.split, "_folder": self._folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def open_split(split: str, cache_dir: str | os.PathLike[str]) -> EmojiSource:
    """The records of one split, read from ArrayRecord files in ``cache_dir``.

    The first call prepares the files (a few seconds, 14 MB); they are trusted only once complete,
    however many processes prepare them at once or are killed on the way.

    Args:
        split: ``train`` (training styles, training concepts), ``unseen_artist`` (Twemoji, training
            concepts), ``unseen_concepts`` (Noto, held-out concepts), ``unseen_both`` (Twemoji,
            held-out concepts), ``unseen_artist_openmoji`` or ``unseen_both_openmoji``.
        cache_dir: a folder that may be written to; it is made when it is not there.

    Raises:
        DataError: an unknown split, OpenMoji is not installed, the folder cannot be written to, or
            the prepared files are damaged.
    """
    if split not in SPLITS | OPENMOJI_SPLITS:
        known = ", ".join(SPLITS | OPENMOJI_SPLITS)
        raise NoSuchSplit(f"the emoji data have no split {split!r}; the splits are {known}")
    if split in OPENMOJI_SPLITS:
        require_openmoji()
    with _PREPARING:
        folder = _prepare("openmoji" if split in OPENMOJI_SPLITS else "committed", Path(cache_dir))
    return EmojiSource(split, folder)


def _record(serialized: bytes) -> EmojiRecord:
    """Reads one tf.train.Example; tfds' own decoder of all features takes ten times as long."""
    example = tf_example_pb2.Example.FromString(serialized)  # pyright: ignore[reportAttributeAccessIssue]
    features = example.features.feature
    return {
        "image": features["image"].bytes_list.value[0],
        "caption": _text(features["caption"]),
        "keywords": [word.decode() for word in features["keywords"].bytes_list.value],
        "id": features["id"].int64_list.value[0],
        "key": _text(features["key"]),
        "style": _text(features["style"]),
        "group": _text(features["group"]),
        "subgroup": _text(features["subgroup"]),
        "base": _text(features["base"]),
        "split": _text(features["split"]),
    }


def _text(feature: Any) -> str:
    return feature.bytes_list.value[0].decode()


def _fingerprint(config: str) -> str:
    """Changes with whatever the prepared files are made from."""
    digest = hashlib.blake2b(digest_size=6)
    digest.update(f"{config} {EmojiBuilder.VERSION}".encode())
    if config == "openmoji":
        digest.update(f"{openmoji_version()}".encode())
    files = ["emoji.json", *(f"{style}.png" for style in STYLES)]
    for name in files if config == "committed" else files[:1]:
        digest.update(resources.files("contrastive.data.emoji").joinpath(name).read_bytes())
    return digest.hexdigest()


def _prepare(config: str, cache_dir: Path) -> Path:
    """The folder of the complete data set, which gets its name only when it is complete."""
    folder = cache_dir / f"emoji-{config}-{_fingerprint(config)}"
    if folder.is_dir():
        return folder
    temporary = None
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache_dir)
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=cache_dir))
        _build(config, temporary)
        temporary.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was first
            temporary.rename(folder)
        if not folder.is_dir():
            raise OSError("the prepared folder could not be given its name")
    except DataError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise DataError(
            f"cannot prepare the emoji data in {cache_dir} ({reason or error}): choose a folder "
            "that can be written to and has 50 MB of free space"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _build(config: str, folder: Path) -> None:
    builder = EmojiBuilder(config=config, data_dir=folder)
    # tensorflow-datasets prints its progress; the caller's terminal is not its to write on.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
        )
    shutil.rmtree(folder / "downloads", ignore_errors=True)


def _remove_abandoned(cache_dir: Path) -> None:
    """Removes what killed processes have left."""
    for path in cache_dir.glob(f"{_TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
