"""Starts a run and starts it again when it dies: ``contrastive train --restarts=N``.

A process that is killed, aborts or loses its peers cannot put itself right. Its parent can: the
same command again resumes from the last good checkpoint.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

USER_ERROR = 2  # something that a person has to put right
NON_FINITE = 3  # a loss that is not finite: once may be the machine, twice in a row is the run
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
STOPPED = tuple(128 + number for number in STOPPING)  # after a checkpoint, by itself
_LONG = 600.0  # a run that lived so long starts the waiting times anew


class Supervisor:
    """Runs a command in a process group of its own, at most ``1 + restarts`` times.

    Not started again: what ended well, what ended with a user error (:data:`USER_ERROR`), what was
    told to stop (SIGTERM, SIGINT and SIGUSR1 are passed on; a run that they reach directly says so
    by its status), and two losses in a row that are not finite.

    Args:
      command: The command that trains.
      restarts: How often it may be started again.
      again: The command that goes on with the run, where it is another one.
      say: Receives a sentence about every end.
      wait: Seconds before the first restart; doubled each time, up to a minute.
    """

    def __init__(
        self,
        command: Sequence[str],
        restarts: int,
        *,
        say: Callable[[str], None],
        wait: float = 1.0,
        again: Sequence[str] | None = None,
    ) -> None:
        self._command, self._restarts, self._say = list(command), restarts, say
        self._again = self._command if again is None else list(again)
        self._wait = wait
        self._told: int | None = None
        self._child: subprocess.Popen | None = None

    def run(self) -> int:
        """Returns the exit status of the last attempt; 128 + n where signal n ended it."""
        old = {s: signal.signal(s, self._pass_on) for s in STOPPING}
        try:
            return self._attempts()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _attempts(self) -> int:
        wait, before, attempt = self._wait, None, 0
        while True:
            begin = time.monotonic()
            status, in_order = self._once()
            lived = time.monotonic() - begin
            if self._told is not None or in_order or status in (0, USER_ERROR):
                return status
            if status == before == NON_FINITE:
                self._say("the loss was not finite twice in a row; not started again.")
                return status
            if attempt == self._restarts:
                self._say(f"{_how(status)}; all {self._restarts} restarts are used up.")
                return status
            attempt += 1
            self._command = self._again
            before, wait = status, self._wait if lived > _LONG else wait
            self._say(
                f"{_how(status)} after {lived:.0f} s; restart {attempt} of {self._restarts} in "
                f"{wait:g} s."
            )
            if self._sleep(wait):
                assert self._told is not None
                return 128 + self._told
            wait = min(2 * wait, 60.0)

    def _once(self) -> tuple[int, bool]:
        """The exit status, and whether it is that of a run which a signal told to stop."""
        self._child = subprocess.Popen(self._command, start_new_session=True)
        if self._told is not None:  # between two attempts
            self._child.send_signal(self._told)
        status = self._child.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)  # workers that outlived it
        return (status, status in STOPPED) if status >= 0 else (128 - status, False)

    def _pass_on(self, number: int, _: object) -> None:
        self._told = number
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def _sleep(self, seconds: float) -> bool:
        """Whether the waiting was ended by a signal."""
        end = time.monotonic() + seconds
        while self._told is None and time.monotonic() < end:
            time.sleep(min(0.1, seconds))
        return self._told is not None


def _how(status: int) -> str:
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"the run was ended by {signal.Signals(status - 128).name}"
    return f"the run ended with status {status}"


def without_option(arguments: Sequence[str], option: str) -> list[str]:
    """The arguments without ``option=VALUE`` or ``option VALUE``."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == option:
            skip = True
        elif not argument.startswith(f"{option}="):
            kept.append(argument)
    return kept
