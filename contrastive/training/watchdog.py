"""A thread that ends a run which no longer moves, with a message that says where it stopped.

A hung collective, a stuck loader or a lost host cannot be caught: the main thread waits inside a
call that never returns. So another thread watches, and ends the process. What was saved stays; a
supervisor or the batch system starts it again.
"""

import contextlib
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from contrastive.processes import LOST, LostProcess, Processes

HEARTBEAT = "CONTRASTIVE_HEARTBEAT"  # names a file that is touched as long as Python runs


class Watchdog:
    """Watches this process's steps, and the other processes' signs of life.

    Args:
      processes: The run's processes; alone, only the steps are watched.
      seconds: How long a step may take; None: not limited.
      patience: How long it may be silent while it does something else, such as compiling; None: not
        limited.
      end: Ends the process; replaced in tests.
    """

    def __init__(
        self,
        processes: Processes,
        seconds: float | None,
        patience: float | None,
        *,
        end: Callable[[str, int], None] | None = None,
    ) -> None:
        self._processes = processes
        self._limits = {"watchdog_seconds": seconds, "patience_seconds": patience}
        self._end = end or _end
        self._step: int | None = None
        # What is being done that is not a step, and since when nothing was finished
        self._doing: tuple[str | None, float] = ("starting", time.monotonic())
        self._beat = 0
        self._seen: dict[int, tuple[int, float]] = {}  # beat of a process, and since when
        self._answered = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._processes.count > 1 or any(self._limits.values()):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def finished(self, step: int) -> None:
        """A step is done: its numbers are on the host."""
        self._step, self._doing = step, (None, time.monotonic())

    def begins(self, what: str) -> None:
        """From here on the process does ``what`` (words that follow "while"), until a step is done
        or something else begins."""
        self._doing = (what, time.monotonic())

    def alive(self) -> None:
        """A part of what is being done is done."""
        self._doing = (self._doing[0], time.monotonic())

    @contextlib.contextmanager
    def paused(self, what: str) -> Iterator[None]:
        """``what`` is done between two steps."""
        before, _ = self._doing
        self.begins(what)
        try:
            yield
        finally:
            self._doing = (before, time.monotonic())

    def _watch(self) -> None:
        pause = min([1.0, *(limit / 5 for limit in self._limits.values() if limit is not None)])
        heartbeat = os.environ.get(HEARTBEAT)
        while not self._closed.wait(pause):
            if heartbeat:
                with contextlib.suppress(OSError):
                    pathlib.Path(heartbeat).touch()
            try:
                self._look()
            except LostProcess as error:
                self._leave(str(error), LOST)

    def _look(self) -> None:
        now = time.monotonic()
        if self._processes.count > 1:
            self._look_at_others(now)
        doing, since = self._doing
        key = "watchdog_seconds" if doing is None else "patience_seconds"
        limit = self._limits[key]
        if limit is not None and now - since > limit:
            where = "before the first step" if self._step is None else f"after step {self._step}"
            what = "" if doing is None else f" while {doing}"
            raise LostProcess(
                f"nothing was finished for {limit:g} s {where}{what} (config.train.{key} = "
                f"{limit:g}); ending. {self._processes.status()}".rstrip()
            )

    def _look_at_others(self, now: float) -> None:
        failed = self._processes.failure()
        if failed is not None:
            self._leave(*failed)
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
