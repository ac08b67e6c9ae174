"""Signals that tell a run to stop: it does so between two steps, after a checkpoint."""

import signal
from typing import Any

from contrastive.training.supervisor import STOPPING


class Signals:
    """Remembers a signal that says to stop, so that the loop can do so between steps; a second one
    acts at once. SIGUSR1 is what batch systems send before the end of the time."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "Signals":
        self._old = {s: signal.signal(s, self._handle) for s in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: Any) -> None:
        self.received = number
        signal.signal(number, self._old[signal.Signals(number)])
