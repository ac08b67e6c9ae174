"""How much memory a piece of work takes; for both environments: it needs nothing but Python."""

import resource
import threading
from typing import Any


class Peak:
    """The largest resident size while the block runs.

    Attributes:
      start: Bytes at its beginning.
      peak: Bytes at most.
    """

    def __enter__(self) -> "Peak":
        self.start = self.peak = resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.peak = max(self.peak, resident())


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
