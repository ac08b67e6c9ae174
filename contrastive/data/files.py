"""Names of files with patterns in them, and bytes from anywhere in a file.

Local paths go through the operating system; what looks like ``gs://``, ``s3://``, ``hf://`` or any
other protocol goes through fsspec.
"""

import contextlib
import glob
import itertools
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from contrastive.errors import DataError, first_line

_PROTOCOL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST_NAMED = 5


def is_remote(path: str) -> bool:
    """Whether a path names a protocol."""
    return _PROTOCOL.match(path) is not None


def check_local(path: str, what: str, instead: str) -> None:
    """Raises :class:`DataError` where ``what`` are read by code that knows local files only."""
    if is_remote(path):
        raise DataError(
            f"{path}: {what} are read from local disks only. Mount the bucket, copy them here, or "
            f"use {instead}, which buckets can hold."
        )


def expand_braces(pattern: str) -> list[str]:
    """``a-{08..10}.tar`` to three names, ``{x,y}.tar`` to two; without braces the pattern itself.

    Raises:
      DataError: Braces that are neither a range of numbers nor a list.
    """
    parts = _BRACES.split(pattern)
    choices = [_choices(part, pattern) if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(inside: str, pattern: str) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if numbers:
        first, last = numbers.groups()
        if int(last) < int(first):
            raise DataError(f"{pattern}: the range {{{inside}}} runs downward.")
        return [str(i).zfill(len(first)) for i in range(int(first), int(last) + 1)]
    if "," in inside:
        return inside.split(",")
    raise DataError(
        f"{pattern}: {{{inside}}} is neither a range such as {{0000..0099}} nor a list such as "
        "{a,b}."
    )


class NothingThere(DataError):
    """None of the files that a pattern names is there."""


def expand(pattern: str, suffixes: Sequence[str] = ()) -> list[str]:
    """The files that a pattern names, in order.

    Args:
      pattern: A file, a folder, or a pattern with ``{0000..0099}``, ``{a,b}``, ``*`` and ``?``.
      suffixes: Which files of a folder are meant.

    Raises:
      DataError: Files that are named are not there (they are listed), or a pattern with ``*`` or
        a folder holds none.
    """
    found: list[str] = []
    missing: list[str] = []
    for name in expand_braces(pattern):
        name = name if is_remote(name) else os.path.expanduser(name)
        try:
            matches = _matches(name, suffixes)
        except OSError as error:
            raise DataError(f"{name} cannot be looked up: {error.strerror or error}.") from error
        if not matches:
            missing.append(name)
        found += sorted(matches)
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise (DataError if found else NothingThere)(
            f"{pattern}: {len(missing)} of the files that it names are not there or hold nothing: "
            f"{', '.join(missing[:_MOST_NAMED])}{more}."
        )
    return found


def _matches(name: str, suffixes: Sequence[str]) -> list[str]:
    if any(c in name for c in "*?["):
        return _glob(name)
    if _is_dir(name):
        return [n for s in suffixes for n in _glob(f"{name.rstrip('/')}/*{s}*")]
    return [name] if exists(name) else []


def _glob(pattern: str) -> list[str]:
    if not is_remote(pattern):
        return glob.glob(pattern)
    protocol = pattern.partition("://")[0]
    with _remote(pattern) as (system, path):
        return [f"{protocol}://{name.lstrip('/')}" for name in system.glob(path)]


def _is_dir(path: str) -> bool:
    if not is_remote(path):
        return os.path.isdir(path)
    with _remote(path) as (system, inner):
        return bool(system.isdir(inner))


def exists(path: str) -> bool:
    """Whether there is such a file."""
    if not is_remote(path):
        return os.path.exists(path)
    with _remote(path) as (system, inner):
        return bool(system.exists(inner))


def stamp(path: str) -> tuple[int, int]:
    """Size in bytes, and time of the last change where the file system tells it (else 0)."""
    if not is_remote(path):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    with _remote(path) as (system, inner):
        return int(system.info(inner)["size"]), 0


def read_bytes(path: str) -> bytes:
    """All of a file.

    Raises:
      OSError: It cannot be read.
    """
    if not is_remote(path):
        return pathlib.Path(path).read_bytes()
    with _remote(path) as (system, inner):
        return system.cat_file(inner)


def read_at(path: str, offset: int, size: int) -> bytes:
    """``size`` bytes from ``offset`` on; fewer where the file ends before.

    Raises:
      OSError: It cannot be read.
    """
    if is_remote(path):
        with _remote(path) as (system, inner):
            return system.cat_file(inner, start=offset, end=offset + size)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(descriptor, size, offset)
        while 0 < len(data) < size:  # a signal or a network file system gave less
            more = os.pread(descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(descriptor)


def fetch(path: str, to: pathlib.Path) -> None:
    """Copies a remote file.

    Raises:
      OSError: It cannot be read, or the copy not be written.
    """
    with _remote(path) as (system, inner):
        system.get_file(inner, str(to))


def open_binary(path: str) -> Any:
    """A seekable file object of bytes."""
    if not is_remote(path):
        return open(path, "rb")
    with _remote(path) as (system, inner):
        return system.open(inner, "rb")


def beside(path: str, name: str) -> str:
    """``name`` relative to the folder of ``path``; absolute and remote names stay."""
    if is_remote(name) or os.path.isabs(name):
        return name
    return f"{path.rpartition('/')[0]}/{name}" if "/" in path else name


def of_split(pattern: str, split: str) -> tuple[str, bool]:
    """The pattern of one split, and whether the pattern names splits at all."""
    named = "{split}" in pattern
    return pattern.replace("{split}", split), named


def split_of_name(path: str) -> str | None:
    """The split that a file's name begins with (``train-00000-of-00004.parquet``), if any."""
    name = path.rpartition("/")[2].lower()
    for split, words in _SPLIT_WORDS.items():
        if re.match(rf"({'|'.join(words)})([^a-z]|$)", name):
            return split
    return None


_SPLIT_WORDS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val"),
    "test": ("test",),
}


@contextlib.contextmanager
def _remote(path: str) -> Iterator[tuple[Any, str]]:
    """The file system of a path, and the path in it. What its library says in errors of its own
    (no credentials, no such host) becomes an :class:`OSError`, which readers know."""
    try:
        import fsspec

        found = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{path}: {error}. Files in buckets need contrastive[remote], or the fsspec package of "
            "that protocol."
        ) from error
    try:
        yield found
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {first_line(error)}") from error


def lines(path: str) -> Iterator[bytes]:
    """The lines of a file."""
    with open_binary(path) as file:
        yield from file
