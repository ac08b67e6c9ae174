"""A thread that ends a run which no longer moves, with a message that says where it stopped.

A hung collective, a stuck loader or a lost host cannot be caught: the main thread waits inside a
call that never returns. So another thread watches, and ends the process. What was saved stays; a
supervisor or the batch system starts it again.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from contrastive.processes import LOST, LostProcess, Processes

# What may take longer than a step, by this factor: compilation, evaluation, the end of a save.
_PATIENCE = 10.0


class Watchdog:
    """Watches this process's steps, and the other processes' signs of life.

    Args:
      processes: The run's processes; alone, only the steps are watched.
      seconds: How long a step may take; ten times as long before the first step is finished and
        while paused. None: not limited.
      end: Ends the process; replaced in tests.
    """

    def __init__(
        self,
        processes: Processes,
        seconds: float | None,
        *,
        end: Callable[[str, int], None] | None = None,
    ) -> None:
        self._processes, self._seconds = processes, seconds
        self._end = end or _end
        self._step: int | None = None
        self._since, self._slow = time.monotonic(), True
        self._beat = 0
        self._seen: dict[int, tuple[int, float]] = {}  # beat of a process, and since when
        self._answered = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._seconds is not None or self._processes.count > 1:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def finished(self, step: int) -> None:
        """A step is done: its numbers are on the host."""
        self._step, self._since, self._slow = step, time.monotonic(), False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Something that is not a step and may take longer."""
        slow, self._slow, self._since = self._slow, True, time.monotonic()
        try:
            yield
        finally:
            self._slow, self._since = slow, time.monotonic()

    def _watch(self) -> None:
        pause = 1.0 if self._seconds is None else min(1.0, self._seconds / 5)
        while not self._closed.wait(pause):
            try:
                self._look()
            except LostProcess as error:
                self._leave(str(error), LOST)

    def _look(self) -> None:
        now = time.monotonic()
        if self._processes.count > 1:
            self._look_at_others(now)
        if self._seconds is None:
            return
        limit = self._seconds * (_PATIENCE if self._slow else 1.0)
        if now - self._since > limit:
            step = "before the first step" if self._step is None else f"after step {self._step}"
            raise LostProcess(
                f"nothing was finished for {limit:g} s {step} (config.train.watchdog_seconds = "
                f"{self._seconds:g}); ending. {self._processes.status()}".rstrip()
            )

    def _look_at_others(self, now: float) -> None:
        failed = self._processes.failure()
        if failed is not None:
            index, message, status = failed
            self._leave(f"process {index}: {message}", status)
        self._beat += 1
        patience = self._processes.lost_after
        try:
            self._processes.report(self._beat, self._step or 0)
            reports = self._processes.reports()
        except Exception as error:
            if now - self._answered > min(patience, 10.0):
                address = "process 0, the coordinator, no longer answers"
                raise LostProcess(f"{address} ({str(error).splitlines()[0]}).") from error
            return
        self._answered = now
        for index, report in reports.items():
            beat, since = self._seen.get(index, (-1, now))
            if report["beat"] != beat:
                self._seen[index] = (report["beat"], now)
            elif now - since > patience:
                raise LostProcess(
                    f"process {index} on {report['host']} (pid {report['pid']}) has not answered "
                    f"for {patience:g} s. {self._processes.status()}"
                )

    def _leave(self, message: str, status: int) -> None:
        if not self._closed.is_set():
            self._processes.fail(message, status)
            self._end(message, status)
            self._closed.set()


def _end(message: str, status: int) -> None:
    print(f"contrastive train: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)
