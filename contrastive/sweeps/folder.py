"""The folder of a sweep, which is all that agents share: there is no service and no database.

``sweep.json`` names the trials; ``trials/NAME/`` is the workdir of one, with ``trial.json`` (its
settings and its resolved recipe) and ``state.json`` beside what training leaves. Whoever runs a
trial holds the lock on ``trials/NAME/.claim``: the system gives it back when a process dies, so a
trial that says ``running`` and is not locked was cut off and can be taken.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from contrastive import config as config_lib
from contrastive.errors import ConfigError, UserError, first_line
from contrastive.recipe import Recipe, check_resumable, flatten, load_recipe
from contrastive.sweeps.description import Sweep
from contrastive.whole import whole_file

Status: TypeAlias = Literal["waiting", "running", "done", "failed"]
TOLD = "told to stop"  # reason of a trial that a signal ended, after a checkpoint
_SUMMARY = ("name", "base", "metric", "processes", "direction", "trials", "wanted")
_REPAIR = {  # what to do about a damaged file
    "sweep.json": "remove it and give the command that made the folder again: trials keep what "
    "they have done",
    "trial.json": "remove it and give the command that made the folder again",
    "state.json": "remove it: the trial goes on from its checkpoint",
}
_READABLE = 80  # characters of a trial's name before the digest


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training run of a sweep.

    Attributes:
      index: Its number in this folder, which it keeps when the sweep grows.
      name: Readable settings and a digest of all of them: the same in every process.
      settings: What differs from trial to trial, with the types of the recipe.
      recipe: Everything, resolved once for all processes of the trial.
    """

    index: int
    name: str
    settings: dict[str, Any]
    recipe: Recipe


@dataclasses.dataclass(frozen=True)
class State:
    """Where a trial stands."""

    status: Status = "waiting"
    attempts: int = 0  # times it was started and not told to stop
    reason: str = ""  # of the failure, or of the last attempt's end
    final: bool = False  # it would fail again in the same way
    seconds: float = 0.0  # of all attempts
    peak_bytes: int = 0  # memory of a process
    host: str = ""
    began: float = 0.0  # of the running attempt, seconds since 1970


def make_trials(sweep: Sweep) -> list[Trial]:
    """The different trials of a sweep, every one checked: settings that come to the same recipe
    are one trial.

    Raises:
      ConfigError: A key is unknown (the nearest is named), or a value does not fit.
    """
    found: dict[str, Trial] = {}
    for given in sweep.trials():
        changes = {**sweep.fixed, **given}
        overrides = [f"--config.{key}={_text(value)}" for key, value in changes.items()]
        try:
            recipe = load_recipe(sweep.base, overrides)
        except ConfigError as error:
            shown = ", ".join(f"{key}={value}" for key, value in given.items()) or "its only trial"
            raise ConfigError(f"sweep {sweep.name!r}, {shown}: {error}") from error
        flat = flatten(config_lib.to_dict(recipe))
        typed = {key: flat[key] for key in changes}
        settings = {key: typed[key] for key in given}
        content = json.dumps(flat, sort_keys=True)
        if content not in found:
            name = _name(settings, typed)
            found[content] = Trial(len(found), name, settings, recipe)
    return list(found.values())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _name(settings: Mapping[str, Any], everything: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:8]
    parts = [f"{key.rpartition('.')[2]}={_plain(value)}" for key, value in settings.items()]
    return f"{','.join(parts)[:_READABLE] or 'trial'}-{digest}"


def _plain(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return "".join(c if c.isalnum() or c in "._+" else "_" for c in text)


class SweepFolder:
    """A sweep on disk.

    Args:
      path: The folder; :meth:`plan` makes it.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    # --- the trials ---

    def plan(self, sweep: Sweep, trials: Sequence[Trial]) -> None:
        """Writes down the trials. Those that are there keep number, name and state; those that the
        sweep no longer has are kept, and not run.

        Raises:
          UserError: The folder cannot be made, or belongs to another sweep.
          ConfigError: A trial that has begun had other settings, by a change of its recipe.
        """
        with self.locked():
            known = self._read()["trials"] if self._file.exists() else []
            self._check_name(sweep)
            order = {name: number for number, name in enumerate(known)}
            for trial in trials:
                order.setdefault(trial.name, len(order))
            for trial in trials:
                self._keep(dataclasses.replace(trial, index=order[trial.name]))
            summary = {
                **{k: getattr(sweep, k) for k in ("name", "base", "metric", "processes")},
                "direction": sweep.best_is,
                "trials": list(order),
                "wanted": [trial.name for trial in trials],
            }
            with whole_file(self._file) as path:
                path.write_text(json.dumps(summary, indent=2) + "\n")

    def _check_name(self, sweep: Sweep) -> None:
        if self._file.exists():
            if (name := self._read()["name"]) != sweep.name:
                raise UserError(
                    f"{self.path} holds the sweep {name!r}, not {sweep.name!r}; choose another "
                    "--output."
                )
        elif (self.path / "config.json").exists():
            raise UserError(f"{self.path} is the folder of a run; choose another --output.")

    def _keep(self, trial: Trial) -> None:
        workdir = self.workdir(trial.name)
        workdir.mkdir(parents=True, exist_ok=True)
        file = workdir / "trial.json"
        if file.exists() and (workdir / "metrics.jsonl").exists():
            check_resumable(self.trial(trial.name).recipe, trial.recipe, workdir)
        content = dataclasses.asdict(trial) | {"recipe": config_lib.to_dict(trial.recipe)}
        with whole_file(file) as path:
            path.write_text(json.dumps(content, indent=2) + "\n")

    def summary(self) -> dict[str, Any]:
        """``name, base, metric, direction, processes, trials, wanted``.

        Raises:
          UserError: This is not the folder of a sweep.
        """
        return self._read()

    def trials(self) -> list[Trial]:
        """Those that the sweep has now, by index."""
        wanted = set(self._read()["wanted"])
        return [self.trial(name) for name in self._read()["trials"] if name in wanted]

    def trial(self, which: str | int) -> Trial:
        """A trial by name or index.

        Raises:
          UserError: There is none, or its file is damaged.
        """
        names: list[str] = self._read()["trials"]
        if isinstance(which, int) and not 0 <= which < len(names):
            raise UserError(
                f"{self.path} has no trial {which}: they are numbered 0 to {len(names) - 1}."
            )
        name = names[which] if isinstance(which, int) else which
        file = self.workdir(name) / "trial.json"
        content = self._json(file)
        with _readable(file):
            recipe = config_lib.build(Recipe, content.pop("recipe"))
            return Trial(**content, recipe=recipe)

    def workdir(self, name: str) -> pathlib.Path:
        """The workdir of a trial."""
        return self.path / "trials" / name

    # --- their states ---

    def state(self, name: str) -> State:
        """What was last written about a trial; one that was cut off counts as waiting."""
        file = self.workdir(name) / "state.json"
        if not file.exists():
            return State()
        state = self._state(file)
        if state.status == "running" and not self.is_claimed(name):
            again = self._state(file)  # it may have ended in between
            if again.status == "running":
                reason = f"cut off on {again.host}"
                return dataclasses.replace(again, status="waiting", reason=reason)
            return again
        return state

    def _state(self, file: pathlib.Path) -> State:
        content = self._json(file)
        with _readable(file):
            return config_lib.build(State, content, "state")

    def write_state(self, name: str, state: State) -> None:
        """Only for whoever holds the claim."""
        with whole_file(self.workdir(name) / "state.json") as path:
            path.write_text(json.dumps(dataclasses.asdict(state)) + "\n")

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """Holds a trial for this process; gives False where another one does."""
        lock = os.open(self.workdir(name) / ".claim", os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            except BlockingIOError:
                mine = False
            except OSError as error:
                raise self._no_locks(error) from error
            yield mine
        finally:
            os.close(lock)

    def is_claimed(self, name: str) -> bool:
        """Whether a process holds the trial now."""
        file = self.workdir(name) / ".claim"
        if not file.exists():
            return False
        lock = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise self._no_locks(error) from error
        finally:
            os.close(lock)
        return False

    def _no_locks(self, error: OSError) -> UserError:
        return UserError(
            f"{self.path} is on a file system without locks ({error.strerror}), which keep two "
            "from running the same trial; put the sweep's folder on another."
        )

    # --- files ---

    @property
    def _file(self) -> pathlib.Path:
        return self.path / "sweep.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder while trials are planned or handed over; waits for others.

        Raises:
          UserError: It cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UserError(f"cannot write to {self.path} ({error.strerror}).") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                raise self._no_locks(error) from error
            yield
        finally:
            os.close(lock)

    def _read(self) -> dict[str, Any]:
        if not self._file.is_file():
            raise UserError(
                f"{self.path} is not the folder of a sweep: there is no {self._file}. "
                "`contrastive sweep FILE.py --output=DIR` makes one."
            )
        content = self._json(self._file)
        with _readable(self._file):
            return {key: content[key] for key in _SUMMARY}

    @staticmethod
    def _json(file: pathlib.Path) -> dict[str, Any]:
        with _readable(file):
            return dict(json.loads(file.read_text(encoding="utf-8")))


@contextlib.contextmanager
def _readable(file: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else first_line(error)
        raise UserError(f"{file} is damaged ({reason}); {_REPAIR[file.name]}.") from error


def begin(state: State) -> State:
    """The state of a trial that is started now."""
    return dataclasses.replace(
        state,
        status="running",
        attempts=state.attempts + 1,
        reason="",
        final=False,
        host=f"{socket.gethostname()}, pid {os.getpid()}",
        began=time.time(),
    )
