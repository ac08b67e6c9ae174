"""Lines that say when, where and which process: what several processes say is read in one place."""

import contextlib
import datetime
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


class PrefixedLines:
    """A text stream that puts ``prefix()`` before every line.

    Lines are passed on whole, so those of two threads are not mixed.

    Args:
      stream: Where they go.
      prefix: What stands before a line, asked for when its first character comes.
    """

    def __init__(self, stream: Any, prefix: Callable[[], str]) -> None:
        self._stream, self._prefix = stream, prefix
        self._begun, self._lock = "", threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            for piece in text.splitlines(keepends=True):
                self._begun = self._begun or self._prefix()
                self._begun += piece
                if piece.endswith(("\n", "\r")):
                    self._stream.write(self._begun)
                    self._begun = ""
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        """False: a line that is drawn again and again has no prefix."""
        return False

    def finish(self) -> None:
        """Passes on a line that has no end."""
        with self._lock:
            if self._begun:
                self._stream.write(self._begun + "\n")
                self._begun = ""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def line_prefix(process: int, processes: int) -> str:
    """``2026-11-30T21:47:03Z HOST 1/8 | ``: the clock in UTC, the host, the process of so many."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{now} {socket.gethostname()} {process}/{processes} | "


@contextlib.contextmanager
def prefixed_output(process: int, processes: int) -> Iterator[None]:
    """Everything that Python prints inside has :func:`line_prefix` before each line."""
    before = sys.stdout, sys.stderr
    wrapped = [PrefixedLines(s, lambda: line_prefix(process, processes)) for s in before]
    sys.stdout, sys.stderr = wrapped
    try:
        yield
    finally:
        for stream in wrapped:
            stream.finish()
        sys.stdout, sys.stderr = before
