"""What is in a tar, and where, from its headers alone.

Members that stand next to each other and share a key are a sample; the key is the path up to the
first dot of the base name, the field is what follows it, in lower case. A member that repeats a
field, or comes after its sample is closed, is ignored with a note. A tar that ends early loses the
sample that it ends in.
"""

import collections
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt32

from contrastive.data import files
from contrastive.data.records import printable

BLOCK = 512
_AFTER_END = 1 << 21  # bytes after the end mark that are looked at; padding is zeros
_MOST_NAMED = 1000  # bad samples and notes that a shard names; the rest is counted
_NAME = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$", re.DOTALL)
_GZIP, _ZSTD, _BZ2, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"


class Member(NamedTuple):
    """A regular file in a tar."""

    name: str
    offset: int  # of its first byte
    size: int


class Header(NamedTuple):
    """What one block of a tar says."""

    name: str
    size: int
    kind: bytes


class TarFault(Exception):
    """The tar cannot be read from here on.

    Attributes:
      member: The member that is cut short, if its header could be read.
    """

    def __init__(self, message: str, member: str = "") -> None:
        super().__init__(message)
        self.member = member


def parse_header(block: bytes) -> Header | None:
    """A header block; None for a block of zeros, which ends a tar.

    Raises:
      TarFault: It is no header.
    """
    if len(block) < BLOCK:
        raise TarFault("the archive is cut short")
    if block[257:262] != b"ustar" and not _checksum_holds(block):
        if not block.strip(b"\0"):
            return None
        raise TarFault("there is no header where one should be")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return Header(name.decode("utf-8", "surrogateescape"), _number(block[124:136]), block[156:157])


def _checksum_holds(block: bytes) -> bool:
    try:
        said = int(block[148:156].strip(b" \0") or b"-1", 8)
    except ValueError:
        return False
    return sum(block[:148]) + 8 * 32 + sum(block[156:]) == said


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # base 256, for sizes of 8 GiB and more
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise TarFault("a header holds no size") from error


def read_members(file: Any, size: int) -> Iterator[Member]:
    """The regular files of a tar, in order.

    Raises:
      TarFault: The tar is compressed, damaged or cut short; what came before is good.
    """
    position, long_name, extended = 0, None, {}
    while position < size:
        file.seek(position)
        block = file.read(BLOCK)
        if not position and block.startswith((_GZIP, _ZSTD, _BZ2, _XZ)):
            raise TarFault("it is compressed; unpack it first, samples are read at random places")
        header = parse_header(block)
        if header is None:
            if file.read(min(size - position, _AFTER_END)).strip(b"\0"):
                raise TarFault("zeros stand where a header should be, and more follows")
            return
        start, length = position + BLOCK, int(extended.get("size", header.size))
        if header.kind in b"12345":  # links, devices, folders
            length = 0
        if start + length > size:
            name = long_name or extended.get("path") or header.name
            raise TarFault("the archive is cut short", name)
        if header.kind == b"L":
            long_name = file.read(length).split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        elif header.kind in b"xg":
            found = _extended(file.read(length))
            extended = found if header.kind == b"x" else extended
        elif header.kind != b"K":
            if header.kind in (b"0", b"\0", b"7"):
                yield Member(long_name or extended.get("path") or header.name, start, length)
            long_name, extended = None, {}
        position = start + (length + BLOCK - 1) // BLOCK * BLOCK


def _extended(data: bytes) -> dict[str, str]:
    """The records ``"LENGTH KEY=VALUE\\n"`` of a pax header."""
    values: dict[str, str] = {}
    while data:
        digits, space, _ = data.partition(b" ")
        if not space or not digits.isdigit() or not len(digits) < int(digits) <= len(data):
            raise TarFault("an extended header is damaged")
        record = data[len(digits) + 1 : int(digits) - 1]
        key, _, value = record.decode("utf-8", "surrogateescape").partition("=")
        values[key] = value
        data = data[int(digits) :]
    return values


def split_name(name: str) -> tuple[str, str] | None:
    """Key and field of a member: ``a.b/0001.left.JPG`` is (``a.b/0001``, ``left.jpg``)."""
    match = _NAME.match(name.removeprefix("./"))
    return None if match is None else (match[1], match[2].lower())


class Slot(NamedTuple):
    """A member that samples are to have: the first of some fields."""

    what: str  # for messages: image, caption
    fields: tuple[str, ...]
    required: bool


class ShardIndex(NamedTuple):
    """The samples of one tar.

    Attributes:
      rows: For each sample, block number and size of the member in each slot, then 32 bits of a
        hash of the key. A slot that is empty has size 0.
      bad: (key, reason, detail) of samples that cannot be used, as far as they are named.
      counts: All of them by reason.
      notes: What else was odd.
      fields: How many members have each field.
    """

    rows: UInt32[np.ndarray, "n columns"]
    bad: list[tuple[str, str, str]]
    counts: Mapping[str, int]
    notes: list[str]
    fields: Mapping[str, int]


class _Shard:
    """Collects a :class:`ShardIndex`."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = slots
        self.rows: list[list[int]] = []
        self.bad: list[tuple[str, str, str]] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.notes: list[str] = []
        self.fields: collections.Counter[str] = collections.Counter()
        self.seen: set[str] = set()
        self._dotted = False
        self._wanted = {field for slot in slots for field in slot.fields}

    def note(self, text: str) -> None:
        if len(self.notes) < _MOST_NAMED:
            self.notes.append(printable(text))

    def drop(self, key: str, reason: str, detail: str = "") -> None:
        self.counts[reason] += 1
        if len(self.bad) < _MOST_NAMED:
            self.bad.append((printable(key), reason, printable(detail)))

    def hint_at_dot(self, key: str, field: str) -> None:
        if not self._dotted and "." in field and field not in self._wanted:
            self._dotted = True
            self.note(
                f"{key}.{field}: the base name has a dot, and the field is all that follows the "
                f"first one, {field!r}"
            )

    def close(self, key: str, sample: Mapping[str, Member]) -> None:
        row: list[int] = []
        for slot in self.slots:
            field = next((f for f in slot.fields if f in sample), None)
            if field is None and slot.required:
                self.drop(key, f"no {slot.what}", f"it has {', '.join(sample)}")
                return
            member = None if field is None else sample[field]
            row += [0, 0] if member is None else [member.offset // BLOCK, member.size]
        if max(row) >= 1 << 32:
            self.drop(key, "too far into the archive", "offsets reach 2 TiB, sizes 4 GiB")
            return
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=4).digest()
        self.rows.append([*row, int.from_bytes(digest, "big")])


def _torn(shard: _Shard, key: str | None, sample: dict[str, Member], fault: TarFault) -> str:
    """The sample that a tar ends in; the one before it is whole and is kept."""
    cut = split_name(fault.member)
    if key is None:
        return "its beginning" if cut is None else cut[0]
    if cut is not None and cut[0] == key:
        return key
    if cut is None and any(s.required and not sample.keys() & set(s.fields) for s in shard.slots):
        return key
    shard.close(key, sample)
    return "what follows " + key if cut is None else cut[0]


def index_shard(path: str, slots: Sequence[Slot]) -> ShardIndex:
    """Reads the headers of a tar.

    Raises:
      OSError: It cannot be read.
    """
    shard = _Shard(slots)
    key, sample = None, {}
    try:
        with files.open_binary(path) as file:
            for member in read_members(file, files.stamp(path)[0]):
                parts = split_name(member.name)
                if parts is None:
                    continue
                shard.fields[parts[1]] += 1
                shard.hint_at_dot(*parts)
                if parts[0] != key:
                    if parts[0] in shard.seen:
                        shard.note(f"{member.name} comes after its sample and is ignored")
                        continue
                    if key is not None:
                        shard.close(key, sample)
                    key, sample = parts[0], {}
                    shard.seen.add(key)
                if parts[1] in sample:
                    shard.note(f"{member.name} is there twice; the first counts")
                else:
                    sample[parts[1]] = member
        if key is not None:
            shard.close(key, sample)
        if not shard.seen:
            shard.note("it holds no samples")
    except TarFault as fault:
        shard.note(str(fault))
        shard.drop(_torn(shard, key, sample, fault), "truncated archive", str(fault))
    columns = 2 * len(slots) + 1
    rows = np.array(shard.rows, np.uint32).reshape(-1, columns)
    return ShardIndex(rows, shard.bad, shard.counts, shard.notes, shard.fields)
