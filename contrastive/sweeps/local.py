"""Trials on this machine: each in a process of its own, several at a time where memory allows."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from contrastive.launching.group import free_port
from contrastive.processes import LOST
from contrastive.sweeps.folder import TOLD, State, SweepFolder, Trial
from contrastive.sweeps.launchers import LaunchSettings
from contrastive.sweeps.memory import available, resident

BUSY = LOST  # exit status of a trial that another process runs: worth another look later
_POLL = 0.3  # seconds
_SPARE = 1.2  # times the largest trial so far has to be free for another one


def submit(folder: pathlib.Path, indices: Sequence[int], settings: LaunchSettings) -> None:
    """Runs the trials and waits for them; others may run trials of the same folder meanwhile.

    The first trial runs alone until it is under way; with it, or with trials that have ended, it
    is known how much memory one takes. SIGINT and SIGTERM are passed on once: every trial saves a
    checkpoint and stops, and the same command goes on.

    Raises:
      KeyboardInterrupt: It was told to stop.
    """
    _Agent(SweepFolder(folder), indices, settings).run()


@dataclasses.dataclass
class _Running:
    """A trial and its processes."""

    trial: Trial
    processes: list[subprocess.Popen]
    log: Any
    attempts: int  # before this one
    largest: int = 0  # bytes

    def status(self) -> int | None:
        """The exit status when all have ended: the first that is not 0; None before."""
        found = [process.poll() for process in self.processes]
        if None in found:
            return None
        return next((status for status in found if status), 0)

    def measure(self) -> int:
        """Bytes held now; remembers the most."""
        now = sum(resident(process.pid) for process in self.processes)
        self.largest = max(self.largest, now)
        return now


class _Agent:
    def __init__(
        self, folder: SweepFolder, indices: Sequence[int], settings: LaunchSettings
    ) -> None:
        self.folder, self.settings = folder, settings
        self.trials = [folder.trial(index) for index in indices]
        states = {trial.name: folder.state(trial.name) for trial in self.trials}
        # What failed before this command was given is tried as often as what is new.
        self.limits = {
            name: state.attempts + 1 + settings.retries for name, state in states.items()
        }
        self.retried = {name for name, state in states.items() if state.status == "failed"}
        self.running: list[_Running] = []
        self.told: int | None = None
        self.largest = max((state.peak_bytes for state in states.values()), default=0)

    def run(self) -> None:
        old = {s: signal.signal(s, self._pass_on) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self._round():
                time.sleep(_POLL)
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
        if self.told is not None:
            raise KeyboardInterrupt

    def _round(self) -> bool:
        """Looks at what has ended, starts what can be started; whether there is more to do."""
        for one in [one for one in self.running if one.status() is not None]:
            self.running.remove(one)
            self._ended(one)
        if self.told is not None:
            return bool(self.running)
        mine = {one.trial.name for one in self.running}
        states = {
            trial.name: self.folder.state(trial.name)
            for trial in self.trials
            if trial.name not in mine
        }
        waiting = [t for t in self.trials if t.name in states and self._startable(t, states)]
        if waiting and len(self.running) < self.settings.parallel and self._there_is_room():
            self._start(waiting[0], states[waiting[0].name])
        elsewhere = any(state.status == "running" for state in states.values())
        return bool(self.running or waiting or elsewhere)

    def _startable(self, trial: Trial, states: dict[str, State]) -> bool:
        state = states[trial.name]
        if state.status in ("done", "running"):
            return False
        if trial.name in self.retried:
            return True  # failed before this command: whoever called has put something right
        return not state.final and state.attempts < self.limits[trial.name]

    def _there_is_room(self) -> bool:
        held = [one.measure() for one in self.running]
        if not self.running:
            return True
        peaks = [one.largest for one in self.running]
        under_way = [self._has_begun(one.trial) for one in self.running]
        if not self.largest and not any(under_way):
            return False  # nothing is known of a trial's memory yet
        need = max([self.largest, *peaks])
        growth = sum(max(0, need - now) for now in held)
        return available() - growth > _SPARE * need

    def _has_begun(self, trial: Trial) -> bool:
        metrics = self.folder.workdir(trial.name) / "metrics.jsonl"
        return metrics.exists() and metrics.stat().st_size > 0

    def _start(self, trial: Trial, state: State) -> None:
        self.retried.discard(trial.name)
        count = self.settings.processes
        command = [sys.executable, "-m", "contrastive.cli", "sweep", str(self.folder.path)]
        command += [f"--trial={trial.index}"]
        several = [f"--coordinator=localhost:{free_port()}", f"--processes={count}"]
        log = open(self.folder.workdir(trial.name) / "log.txt", "ab")  # noqa: SIM115
        self.settings.say(f"trial {trial.index} ({trial.name}) starts.")
        processes = [
            subprocess.Popen(
                command + ([*several, f"--process={i}"] if count > 1 else []),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it through this process, and once
            )
            for i in range(count)
        ]
        self.running.append(_Running(trial, processes, log, state.attempts))

    def _ended(self, one: _Running) -> None:
        one.log.close()
        for process in one.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # workers that outlived it
        status, name = one.status(), one.trial.name
        assert status is not None
        with self.folder.claimed(name) as mine:
            state = self.folder.state(name)
            if mine:
                state = self._settled(one, status, state)
        self.largest = max(self.largest, state.peak_bytes, one.largest)
        word = {"done": f"done in {state.seconds:.0f} s", "running": "runs elsewhere"}
        reason = f": {state.reason}" if state.reason else ""  # one told before it began has none
        said = word.get(state.status, f"{state.status}{reason}")
        self.settings.say(f"trial {one.trial.index} ({name}): {said}.")

    def _settled(self, one: _Running, status: int, state: State) -> State:
        """The state of a trial whose process has ended, which may have left no word."""
        ended_well = status in (0, BUSY) or state.status == "done" or self.told is not None
        spoke = state.attempts > one.attempts and state.status == "failed"
        if ended_well or spoke or state.reason == TOLD:
            return state
        how = f"signal {-status}" if status < 0 else f"status {status}"
        log = self.folder.workdir(one.trial.name) / "log.txt"
        state = dataclasses.replace(
            state,
            status="failed",
            reason=f"ended with {how}; see {log}",
            # One that ended before it could say that it has begun counts, too.
            attempts=max(state.attempts, one.attempts + 1),
        )
        self.folder.write_state(one.trial.name, state)
        return state

    def _pass_on(self, number: int, _: object) -> None:
        self.told = number
        for one in self.running:
            for process in one.processes:
                if process.poll() is None:
                    process.send_signal(number)
