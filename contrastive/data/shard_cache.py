"""Copies of remote files on local disk, the least recently used of which make room for others.

A file that cannot be copied (the disk is full, say) is read where it is.
"""

import collections
import contextlib
import hashlib
import logging
import os
import pathlib
import tempfile
import threading
import time

from contrastive.data import files
from contrastive.errors import DataError

_ABANDONED_AFTER_S = 3600.0
_TRIES = 3
_log = logging.getLogger(__name__)


class ShardCache:
    """Local copies of remote files; several threads may ask at once.

    Args:
      folder: Where copies are kept, also for later runs.
      most_bytes: Room for them. A file that is larger is kept as long as nothing else is wanted.

    Raises:
      DataError: The folder cannot be made.
    """

    def __init__(self, folder: pathlib.Path, most_bytes: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{folder} cannot be made, where copies of remote tars are kept: "
                f"{error.strerror or error}. config.data.cache takes another place."
            ) from error
        self._folder, self._most = folder, most_bytes
        self._lock = threading.Lock()
        self._copying: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._sizes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._dropped: set[str] = set()
        self._elsewhere: set[str] = set()  # what cannot be copied
        self._warned = False
        kept = []
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes room
                kept.append((path.stat().st_mtime, path.stat().st_size, path))
        for modified, size, path in sorted(kept):
            if not path.name.startswith("."):
                self._sizes[path.name] = size
            elif time.time() - modified > _ABANDONED_AFTER_S:
                path.unlink(missing_ok=True)

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        """:func:`contrastive.data.files.read_at`, of a copy where the file is remote.

        Raises:
          OSError: The file cannot be read.
        """
        if not files.is_remote(path):
            return files.read_at(path, offset, size)
        for _ in range(_TRIES):
            if path in self._elsewhere:
                break
            try:
                return files.read_at(self._copy(path), offset, size)
            except FileNotFoundError:
                continue  # the copy has just made room for another
            except OSError as error:
                self._leave(path, error)
        return files.read_at(path, offset, size)

    def _leave(self, path: str, error: OSError) -> None:
        with self._lock:
            first = not self._elsewhere
            self._elsewhere.add(path)
        if first:
            _log.warning(
                "%s cannot be copied to %s (%s): it is read where it is, and so are others like "
                "it, which takes longer.",
                path,
                self._folder,
                error.strerror or error,
            )

    def _copy(self, path: str) -> str:
        digest = hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=12)
        name = f"{digest.hexdigest()}-{os.path.basename(path)}"
        copy = self._folder / name
        with self._lock:
            copying = self._copying[name]
        with copying:  # others that want the same file wait for this copy
            if not copy.exists():
                self._fetch(path, copy)
        with self._lock:
            if name not in self._sizes:  # another process has made it
                self._sizes[name] = copy.stat().st_size
            self._sizes.move_to_end(name)
        return str(copy)

    def _fetch(self, path: str, copy: pathlib.Path) -> None:
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as unfinished:
            temporary = pathlib.Path(unfinished.name)
        try:
            files.fetch(path, temporary)
            size = temporary.stat().st_size
            self._make_room(size, copy.name)
            os.replace(temporary, copy)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _make_room(self, size: int, name: str) -> None:
        with self._lock:
            if name in self._dropped and not self._warned:
                self._warned = True
                _log.warning(
                    "%s is fetched again: the tars that are read at a time do not fit into "
                    "config.data.stream.cache_gib = %g.",
                    name,
                    self._most / 2**30,
                )
            while self._sizes and sum(self._sizes.values()) + size > self._most:
                oldest, _ = self._sizes.popitem(last=False)
                (self._folder / oldest).unlink(missing_ok=True)
                self._dropped.add(oldest)
            self._sizes[name] = size
