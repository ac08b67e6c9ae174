"""Tars of samples (webdataset), read at random through an index.

The headers of every tar are walked once (``contrastive data index``, or on first use for few tars);
the index is a table of 4-byte numbers on disk that is mapped into memory, about 20 bytes a sample.
A sample is then one read at a known place, so that shuffling is global and exact, whatever the
number of tars, hosts and workers. The header before a member is read with it: where it does not say
what the index says, the tar has changed.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import logging
import multiprocessing
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt32

from contrastive.data import files
from contrastive.data.fields import IMAGE_NAMES, JSON, Fields, parse_json
from contrastive.data.records import DataErrors, Record, SampleError
from contrastive.data.source_config import FieldsConfig
from contrastive.data.tar_index import (
    BLOCK,
    ShardIndex,
    Slot,
    TarFault,
    index_shard,
    parse_header,
    split_name,
)
from contrastive.errors import DataError, StorageError

_ON_FIRST_USE = 256  # so many tars are indexed without being asked
_NEAR = 1 << 16  # members so close together are read at once
_VERSION = 1
_LOOKED_AT = 20  # JSON members that are looked at to see which values there are
_log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
ReadAt = Callable[[str, int, int], bytes]


class _Layout(NamedTuple):
    """What is read of each sample: members, and values in its JSON member."""

    fields: Fields
    slots: tuple[Slot, ...]


class TarIndex:
    """Where the samples of some tars are.

    Attributes:
      shards: The tars.
      starts: Number of the first sample of each tar, and the number of all.
      table: For each sample, block and size of its members.
      hashes: For each sample, 32 bits of its key's hash.
      members: The field of each member; the first is the image's and may be any of several.
      errors: Samples that are left out.
      fingerprint: A digest of all of it.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        about = json.loads((folder / "index.json").read_text())
        self.shards: list[str] = about["shards"]
        self.starts = np.array(about["starts"], np.int64)
        self.members: list[str] = about["members"]
        self.fingerprint: str = about["fingerprint"]
        self.notes: list[str] = about["notes"]
        count = int(self.starts[-1])
        self.table = _mapped(folder / "samples.bin", (count, 2 * len(self.members)))
        self.hashes = _mapped(folder / "keys.bin", (count,))
        self.errors = DataErrors()
        named: dict[str, int] = {}
        for key, reason, detail in about["bad"]:
            self.errors.add(-1, key, SampleError(reason, detail))
            named[reason] = named.get(reason, 0) + 1
        for reason, number in about["counts"].items():
            self.errors.count(reason, number - named.get(reason, 0))

    def __len__(self) -> int:
        return int(self.starts[-1])


def _mapped(path: pathlib.Path, shape: tuple[int, ...]) -> UInt32[np.ndarray, "..."]:
    """Numbers of a file, read where they are looked at."""
    return np.memmap(path, np.uint32, "r", shape=shape) if shape[0] else np.zeros(shape, np.uint32)


def tar_index(
    pattern: str,
    config: FieldsConfig,
    cache: pathlib.Path,
    *,
    captions: bool = True,
    workers: int = 0,
    on_first_use: bool = False,
    progress: Progress | None = None,
) -> tuple[TarIndex, Fields]:
    """The index of the tars that a pattern names; made if it is not in the cache.

    Args:
      pattern: Tars, see :func:`contrastive.data.files.expand`.
      config: Which members are image and caption.
      cache: Where indices are kept.
      captions: Whether a sample needs a caption; else captions are not read.
      workers: Processes that walk the tars; 0 = none but this one.
      on_first_use: Whether this is not the command that makes indices: large ones are not begun.
      progress: Is told how many of how many tars are done.

    Raises:
      DataError: Tars are missing, none holds a sample with image and caption, or there is no index
        of very many tars yet.
    """
    shards, digest = _identify(pattern, config, captions)
    folder = cache / f"webdataset-{digest}"
    layout = _layout(pattern, shards, config, captions)
    if not folder.is_dir():
        if on_first_use and len(shards) > _ON_FIRST_USE:
            raise DataError(
                f"There is no index of the {len(shards):,} tars of {pattern} yet (or they have "
                "changed since). Make it once with 'contrastive data index' and this configuration."
            )
        _build(folder, shards, layout.slots, digest, workers, progress)
    index = TarIndex(folder)
    for note in index.notes[:20]:
        _log.warning("%s", note)
    if len(index.notes) > 20:
        _log.warning("%d more notes are in %s.", len(index.notes) - 20, folder / "index.json")
    if not len(index):
        raise DataError(
            f"{pattern} holds no sample that can be used: {index.errors.summary()}. Fields that "
            f"were found: {_listed(layout.fields.found)}. Set config.data.fields.image and caption "
            "to those that hold them."
        )
    return index, layout.fields


def _identify(pattern: str, config: FieldsConfig, captions: bool) -> tuple[list[str], str]:
    """The tars, and a digest of their names, sizes and times and of what is read of them."""
    shards = files.expand(pattern, (".tar",))
    stamps = [(0, 0) if files.is_remote(shard) else files.stamp(shard) for shard in shards]
    described = json.dumps([_VERSION, shards, stamps, _names_in(config), captions])
    return shards, hashlib.blake2b(
        described.encode("utf-8", "surrogatepass"), digest_size=12
    ).hexdigest()


def _names_in(config: FieldsConfig) -> list[str | None]:
    return [config.image, config.caption, config.keywords, config.id, config.key]


def _listed(found: Iterable[str]) -> str:
    return ", ".join(map(repr, list(found)[:20])) or "none"


def _layout(pattern: str, shards: Sequence[str], config: FieldsConfig, captions: bool) -> _Layout:
    """Settles which members hold what, by the first tar that has samples."""
    found, values = _first_sample_fields(shards)
    if not found:
        raise DataError(f"{pattern}: none of the {len(shards)} tars holds any sample.")
    usual = [name for name in IMAGE_NAMES if name in found]
    if config.image is None and not usual:
        raise DataError(
            f"{pattern} has no field for the image: looked for {', '.join(IMAGE_NAMES)}; its "
            f"fields are {_listed(found)}. Set config.data.fields.image to the name of yours."
        )
    names = [*found, *(JSON + name for name in values)]
    fields = Fields(config, names, pattern, captions=captions)
    images = IMAGE_NAMES if config.image is None else (fields.image,)
    slots = [Slot("image", images, True)]
    if fields.caption is not None:
        slots.append(Slot("caption", (_member(fields.caption),), True))
    for name in (fields.keywords, fields.id, fields.key):
        if name is not None and all(_member(name) not in slot.fields for slot in slots):
            slots.append(Slot(_member(name), (_member(name),), False))
    return _Layout(fields, tuple(slots))


def _member(name: str) -> str:
    return "json" if name.startswith(JSON) else name


def _first_sample_fields(shards: Sequence[str]) -> tuple[list[str], list[str]]:
    """The fields of the first tar that has samples, and the names in its first JSON members."""
    probe = (Slot("json", ("json",), True),)
    for shard in shards:
        try:
            index = index_shard(shard, probe)
        except OSError as error:
            raise DataError(f"{shard} cannot be read: {error.strerror or error}.") from error
        if not index.fields:
            continue
        found = [field for field, _ in sorted(index.fields.items(), key=lambda item: -item[1])]
        names: dict[str, None] = {}
        for row in np.asarray(index.rows[:_LOOKED_AT], np.int64):
            with contextlib.suppress(ValueError):
                value = parse_json(files.read_at(shard, int(row[0]) * BLOCK, int(row[1])))
                names |= dict.fromkeys(value) if isinstance(value, dict) else {}
        return found, list(names)
    return [], []


def _build(
    folder: pathlib.Path,
    shards: Sequence[str],
    slots: Sequence[Slot],
    digest: str,
    workers: int,
    progress: Progress | None,
) -> None:
    """Writes an index, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=".index-", dir=folder.parent))
    about: dict[str, Any] = {
        "shards": list(shards),
        "starts": [0],
        "members": [slot.what if len(slot.fields) > 1 else "".join(slot.fields) for slot in slots],
        "bad": [],
        "counts": {},
        "notes": [],
    }
    content = hashlib.blake2b(digest.encode(), digest_size=8)
    try:
        with (
            open(temporary / "samples.bin", "wb") as table,
            open(temporary / "keys.bin", "wb") as keys,
        ):
            for done, (shard, index) in enumerate(_indices(shards, slots, workers), 1):
                table.write(index.rows[:, :-1].tobytes())
                keys.write(index.rows[:, -1].tobytes())
                content.update(hashlib.blake2b(index.rows.tobytes(), digest_size=16).digest())
                _add(about, shard, index)
                if progress is not None:
                    progress(done, len(shards))
        about["fingerprint"] = content.hexdigest()
        (temporary / "index.json").write_text(json.dumps(about))
        temporary.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was first
            temporary.rename(folder)
    except OSError as error:
        raise DataError(
            f"The index of {len(shards)} tars cannot be made in {folder.parent}: "
            f"{error.strerror or error} ({error.filename})."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _add(about: dict[str, Any], shard: str, index: ShardIndex) -> None:
    about["starts"].append(about["starts"][-1] + len(index.rows))
    name = os.path.basename(shard)
    room = 10_000 - len(about["bad"])
    about["bad"] += [[f"{name}/{key}", reason, detail] for key, reason, detail in index.bad[:room]]
    for reason, number in index.counts.items():
        about["counts"][reason] = about["counts"].get(reason, 0) + number
    about["notes"] += [f"{shard}: {note}" for note in index.notes[: 10_000 - len(about["notes"])]]


def _indices(
    shards: Sequence[str], slots: Sequence[Slot], workers: int
) -> Iterator[tuple[str, ShardIndex]]:
    work = functools.partial(index_shard, slots=slots)
    if not workers:
        yield from zip(shards, map(work, shards), strict=True)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from zip(shards, pool.map(work, shards, chunksize=4), strict=True)


class WebDatasetSource:
    """Samples of tars at random places.

    Args:
      index: Where they are.
      fields: Which member is what.
      rows: Which of them, as numbers in the index; None: all.
      read_at: How bytes are read from a tar.
    """

    def __init__(
        self,
        index: TarIndex,
        fields: Fields,
        rows: Integer[np.ndarray, " n"] | None = None,
        read_at: ReadAt = files.read_at,
    ) -> None:
        self._index, self.fields, self._rows, self._read_at = index, fields, rows, read_at
        part = "" if rows is None else hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()
        self.fingerprint = index.fingerprint + part
        self.errors = index.errors

    def __len__(self) -> int:
        return len(self._index) if self._rows is None else len(self._rows)

    def __getitem__(self, index: int, /) -> Record:
        shard, row = self._place(index)
        key, values = self._read(shard, row, range(len(self._index.members)))
        return self.fields.record(values, base=shard, key=key)

    @property
    def starts(self) -> Int64[np.ndarray, " tars"]:
        """Number of the first sample of each tar, and the number of all."""
        if self._rows is None:
            return self._index.starts
        return np.searchsorted(self._rows, self._index.starts).astype(np.int64)

    def text(self, index: int, /) -> tuple[str, list[str]]:
        """Caption and keywords of a sample without reading its picture."""
        shard, row = self._place(index)
        _, values = self._read(shard, row, range(1, len(self._index.members)))
        return self.fields.text(values)

    def _place(self, index: int) -> tuple[str, list[int]]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = index if self._rows is None else int(self._rows[index])
        shard = int(np.searchsorted(self._index.starts, number, side="right")) - 1
        return self._index.shards[shard], self._index.table[number].tolist()

    def _read(
        self, shard: str, row: Sequence[int], members: Sequence[int]
    ) -> tuple[str, dict[str, Any]]:
        """The key of a sample and the values of some of its members."""
        name = os.path.basename(shard)
        where = f"{name}/block {row[0]}"
        present = [m for m in members if row[2 * m]]
        try:
            chunks = _read_blocks(
                shard, [(row[2 * m], row[2 * m + 1]) for m in present], self._read_at
            )
            values: dict[str, Any] = {}
            for member, data in zip(present, chunks, strict=True):
                header = parse_header(data[:BLOCK])
                if header is None or header.size not in (row[2 * member + 1], 0):
                    raise TarFault("the archive has changed since it was indexed")
                key = (split_name(header.name) or (header.name, ""))[0]
                where = f"{name}/{key}"
                field = self.fields.image if member == 0 else self._index.members[member]
                values[field] = data[BLOCK:]
        except TarFault as error:
            raise SampleError("archive changed", str(error), key=where) from error
        except OSError as error:
            raise StorageError(
                f"{shard} cannot be read any more ({error.strerror or error}); its index was made "
                "when it could. Put it back, and the same command goes on."
            ) from error
        return where, self._with_json(values, where)

    def _with_json(self, values: dict[str, Any], key: str) -> dict[str, Any]:
        names = (self.fields.caption, self.fields.keywords, self.fields.id, self.fields.key)
        inside = [name for name in names if name is not None and name.startswith(JSON)]
        if not inside or "json" not in values:
            return values
        try:
            content = parse_json(values["json"])
            if not isinstance(content, dict):
                raise ValueError("it is not an object")
        except ValueError as error:
            raise SampleError("JSON is malformed", str(error), key=key) from error
        return values | {name: content.get(name[len(JSON) :]) for name in inside}


def _read_blocks(shard: str, places: Sequence[tuple[int, int]], read_at: ReadAt) -> list[bytes]:
    """Each member with the header before it; neighbours in one read.

    Raises:
      TarFault: The archive ends before.
    """
    if not places:
        return []
    begin = min(block for block, _ in places) * BLOCK - BLOCK
    end = max(block * BLOCK + size for block, size in places)
    wanted = sum(size for _, size in places)
    if end - begin - wanted > _NEAR:
        return [chunk for place in places for chunk in _read_blocks(shard, [place], read_at)]
    data = read_at(shard, begin, end - begin)
    if len(data) < end - begin:
        raise TarFault("the archive ends before the sample")
    starts = [block * BLOCK - BLOCK - begin for block, _ in places]
    return [
        data[start : start + BLOCK + size] for start, (_, size) in zip(starts, places, strict=True)
    ]


def held_out(index: TarIndex, share: float, part: int = 1 << 20) -> Bool[np.ndarray, " n"]:
    """Which samples belong to the validation split, by the hash of their keys."""
    mask = np.empty(len(index), bool)
    for begin in range(0, len(index), part):
        hashes = index.hashes[begin : begin + part]
        mask[begin : begin + part] = hashes < share * 2.0**32
    return mask
