"""Several processes on this machine that stand and fall together.

    python -m contrastive.launching.group FILE

starts the members that the JSON file describes, each with a log file of its own, and ends with the
status of the first that failed, after ending the others.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contrastive.processes import LOST
from contrastive.training.supervisor import STOPPED, STOPPING

PORT = "{port}"  # in an environment: a port that is free when the group starts
_GRACE = 15.0  # seconds in which the others may say their last word
_LONGER = 120.0  # the same after one that stopped in order: the others write the checkpoint


@dataclasses.dataclass(frozen=True)
class Member:
    """One process: its command, what is added to the environment, and its log file."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: str


def run_group(
    members: Sequence[Member],
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
    grace: float = _GRACE,
) -> int:
    """Runs all members to their end.

    SIGINT, SIGTERM and SIGUSR1 are passed on to all. When one fails, the others have ``grace``
    seconds to end by themselves, and are then killed.

    Args:
      members: The first one's output is shown.
      say: Receives sentences about ends.
      show: Receives what the first member prints.
      grace: Seconds.

    Returns:
      0 if all ended so, else the exit status of the first that failed; 128 + n if signal n ended
      it.
    """
    group = _Group(members, show)
    old = {s: signal.signal(s, group.pass_on) for s in STOPPING}
    try:
        return group.wait(say, grace)
    finally:
        group.kill()
        for number, handler in old.items():
            signal.signal(number, handler)


class _Group:
    def __init__(self, members: Sequence[Member], show: Callable[[str], None]) -> None:
        self._members, self._show = members, show
        self._parent = os.getppid()
        port = str(free_port())
        self._starts = [_size(member.log) for member in members]
        self._shown = open(members[0].log, "ab+")  # noqa: SIM115  read as the first one writes
        self._shown.seek(0, os.SEEK_END)
        self._children = [self._start(member, port) for member in members]

    @staticmethod
    def _start(member: Member, port: str) -> subprocess.Popen:
        given = {key: value.replace(PORT, port) for key, value in member.environment.items()}
        with open(member.log, "ab") as log:
            return subprocess.Popen(
                list(member.command),
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def pass_on(self, number: int, _: object) -> None:
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number)

    def kill(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
        self._tail()
        self._shown.close()

    def wait(self, say: Callable[[str], None], grace: float) -> int:
        first, until = None, float("inf")
        while True:
            statuses = [_status(child.poll()) for child in self._children]
            self._tail()
            failed = [i for i, status in enumerate(statuses) if status]
            if first is None and failed:
                # One that lost another is not the one that was lost
                first = min(failed, key=lambda i: statuses[i] == LOST)
                in_order = statuses[first] in STOPPED
                until = time.monotonic() + (max(grace, _LONGER) if in_order else grace)
                if not in_order:
                    say(self._words(first, statuses[first] or 0))
            if None not in statuses:
                return 0 if first is None else statuses[first] or 0
            if time.monotonic() > until:
                alive = [str(i) for i, status in enumerate(statuses) if status is None]
                say(f"process {', '.join(alive)} did not end within {grace:g} s and is killed.")
                assert first is not None
                return statuses[first] or 0
            if os.getppid() != self._parent:  # whoever started the group is gone
                return 1
            time.sleep(0.05)

    def _words(self, index: int, status: int) -> str:
        member = self._members[index]
        how = f"status {status}"
        if status > 128:
            with contextlib.suppress(ValueError):
                how = signal.Signals(status - 128).name
        with open(member.log, "rb") as log:
            log.seek(max(self._starts[index], _size(member.log) - 65_536))
            text = log.read().decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        said = f"; it said last: {lines[-1][:500]}" if lines else ""
        others = "" if len(self._members) == 1 else "; the others are ended"
        return (
            f"process {index} of {len(self._members)} (pid {self._children[index].pid}) was the "
            f"first to fail, with {how}{others}. Its log is {member.log}{said}"
        )

    def _tail(self) -> None:
        if text := self._shown.read():
            self._show(text.decode(errors="replace"))


def _status(code: int | None) -> int | None:
    return 128 - code if code is not None and code < 0 else code


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def write_group(path: pathlib.Path, members: Sequence[Member]) -> None:
    """Writes the file that ``python -m contrastive.launching.group`` reads."""
    path.write_text(json.dumps([dataclasses.asdict(member) for member in members], indent=2) + "\n")


def _main(arguments: Sequence[str]) -> int:
    entries: list[dict[str, Any]] = json.loads(pathlib.Path(arguments[0]).read_text())

    def say(text: str) -> None:
        print(f"contrastive launch: {text}", file=sys.stderr, flush=True)

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return run_group([Member(**entry) for entry in entries], say=say, show=show)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
