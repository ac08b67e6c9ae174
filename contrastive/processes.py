"""Several processes that train one model: agreement, and the loss of one of them.

Processes speak through the key-value store of JAX's coordination service, which lives in process 0;
no device takes part, so nothing here can hang in a collective, and every wait has an end. This is
the only module that reaches into JAX's internals (``jax._src.distributed``).

With one process everything here does nothing. How they meet: :mod:`contrastive.rendezvous`.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from contrastive.errors import ConfigError, UserError

T = TypeVar("T")
LOST = 75  # exit status of a process that could not go on without another; worth a restart


class LostProcess(UserError):
    """Another process is missing, hung or gone. A restart may help."""

    status = LOST


def part_of_batch(sharding: NamedSharding, batch_size: int) -> tuple[int, int]:
    """Which part of the batch this process feeds, of how many: the rows that its devices hold.

    Processes whose devices hold the same rows (tensor parallelism across hosts) feed the same part.

    Raises:
      ConfigError: The rows of the processes overlap or are not contiguous.
    """
    rows: dict[int, set[int]] = {}
    for device, index in sharding.devices_indices_map((batch_size,)).items():
        begin, stop, _ = index[0].indices(batch_size)
        rows.setdefault(device.process_index, set()).update(range(begin, stop))
    parts = sorted({(min(held), max(held) + 1) for held in rows.values()})
    size = batch_size // len(parts)
    even = [(i * size, (i + 1) * size) for i in range(len(parts))]
    mine = rows[jax.process_index()]
    if parts != even or any(len(held) != size for held in rows.values()):
        raise ConfigError(
            "config.mesh lays the batch out so that processes hold scattered or overlapping rows; "
            "order the axes so that each process holds one block of rows."
        )
    return parts.index((min(mine), max(mine) + 1)), len(parts)


@functools.cache
def code_digest() -> str:
    """A digest of the package's Python files, to tell hosts with other code."""
    folder = pathlib.Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


class Processes:
    """What the processes of a run do together. ``Processes()`` is a run of one.

    Every method that waits raises :class:`LostProcess` when a process does not come within
    ``patience`` seconds.
    """

    def __init__(
        self, index: int = 0, count: int = 1, *, lost_after: float = 60.0, patience: float = 3600.0
    ) -> None:
        self.index, self.count = index, count
        self.lost_after, self.patience = lost_after, patience
        self._round = 0

    @property
    def first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.index == 0

    @property
    def _store(self) -> Any:
        from jax._src import distributed

        return distributed.global_state.client

    def gather(self, text: str, what: str) -> list[str]:
        """The texts of all processes, by index; ``what`` is named if one does not come."""
        if self.count == 1:
            return [text]
        self._round += 1
        folder = f"contrastive/{self._round}"
        self._store.key_value_set(f"{folder}/{self.index}", text or " ")
        deadline = time.monotonic() + self.patience
        found = []
        for index in range(self.count):
            while True:
                try:
                    found.append(self._store.blocking_key_value_get(f"{folder}/{index}", 1000))
                    break
                except Exception as error:  # not there yet, or no coordinator
                    self.raise_failure()
                    if time.monotonic() > deadline or "DEADLINE" not in str(error):
                        raise LostProcess(
                            f"process {index} did not come to: {what}. {self.status()}"
                        ) from error
        return [value.strip() for value in found]

    def together(self, call: Callable[[], T], what: str) -> T:
        """Calls in every process; if it fails with a :class:`UserError` in one, it fails in all."""
        if self.count == 1:
            return call()
        result, failure, host = None, "", socket.gethostname()
        try:
            result = call()
        except UserError as error:
            failure = json.dumps({"host": host, "message": f"{error}", "status": error.status})
        failures = self.gather(failure, what)
        for index, entry in enumerate(failures):
            if entry:
                known = json.loads(entry)
                where = "" if index == self.index else f"process {index} on {known['host']}: "
                error = UserError(where + known["message"])
                error.status = known["status"]
                raise error
        return result  # pyright: ignore[reportReturnType]

    def first_alone(self, call: Callable[[], T], what: str) -> T | None:
        """Calls in process 0 while the others wait."""
        return self.together(lambda: call() if self.first else None, what)

    def first_then_others(self, call: Callable[[], T], what: str) -> T:
        """Calls in process 0, then, when it is done, in the others: it may leave a file."""
        mine = self.first_alone(call, what)
        return self.together(lambda: mine if self.first else call(), what)  # pyright: ignore

    def compare(self, facts: Mapping[str, str]) -> None:
        """Makes sure that all processes start from the same thing.

        Raises:
          UserError: In all of them: names what differs and where.
        """
        mine = {"host": socket.gethostname(), **facts}
        everyone = [json.loads(text) for text in self.gather(json.dumps(mine), "comparing hosts")]
        for name in facts:
            values = Counter(one.get(name) for one in everyone)
            if len(values) > 1:
                usual = values.most_common(1)[0][0]
                odd = [
                    f"process {i} on {one['host']} has {one.get(name)}"
                    for i, one in enumerate(everyone)
                    if one.get(name) != usual
                ]
                raise UserError(
                    f"the processes do not agree on the {name}: {'; '.join(odd)}; the others have "
                    f"{usual}. All hosts need the same code, configuration and data."
                )

    # Signs of life, sent and read by the watchdog's thread.

    def report(self, beat: int, step: int) -> None:
        """Tells the others that this process lives, and the last step that it has finished."""
        if self.count > 1:
            value = {"beat": beat, "step": step, "host": socket.gethostname(), "pid": os.getpid()}
            key = f"contrastive/life/{self.index}"
            self._store.key_value_set(key, json.dumps(value), allow_overwrite=True)

    def reports(self) -> dict[int, dict[str, Any]]:
        """The newest report of each process.

        Raises:
          LostProcess: The coordinator does not answer.
        """
        if self.count == 1:
            return {}
        try:
            found = self._store.key_value_dir_get("contrastive/life/")
        except Exception as error:
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise LostProcess(f"process 0, the coordinator, does not answer: {reason}.") from error
        return {int(key.rpartition("/")[2]): json.loads(value) for key, value in found}

    def status(self) -> str:
        """The last step of each process, in words."""
        try:
            reports = self.reports()
        except LostProcess as error:
            return str(error)
        words = [
            f"process {i} on {r['host']} (pid {r['pid']}): {r['step']}"
            for i, r in sorted(reports.items())
        ]
        return f"Last finished step: {', '.join(words)}." if words else ""

    def fail(self, message: str, status: int) -> None:
        """Tells the others why this process ends."""
        if self.count > 1 and self._store is not None:
            host = socket.gethostname()
            value = json.dumps({"message": message, "status": status, "host": host})
            with contextlib.suppress(Exception):
                self._store.key_value_set(f"contrastive/failed/{self.index}", value)

    def failure(self) -> tuple[str, int] | None:
        """What another process has failed with, after its name and host; and its status."""
        if self.count == 1:
            return None
        try:
            found = self._store.key_value_dir_get("contrastive/failed/")
        except Exception:
            return None
        for key, value in found:
            index = int(key.rpartition("/")[2])
            if index != self.index:
                entry = json.loads(value)
                where = f"process {index} on {entry['host']}"
                return f"{where}: {entry['message']}", entry["status"]
        return None

    def explain(self, error: Exception) -> UserError | None:
        """What stands behind an error of the runtime: another process's failure, or its death.

        Waits a few seconds for the others to say something. None: nobody knows of a loss, so the
        error is this process's own.
        """
        if self.count == 1:
            return None
        silent: list[int] = []
        reports: dict[int, dict[str, Any]] = {}
        first, until = None, time.monotonic() + 6
        while time.monotonic() < until:
            try:
                self.raise_failure()
                reports = self.reports()
            except UserError as known:
                return known
            first = first or {i: r["beat"] for i, r in reports.items()}
            time.sleep(0.5)
            silent = [i for i, r in reports.items() if r["beat"] == first.get(i)]
        lost = [i for i in silent if i != self.index]
        if not lost:
            return None
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        names = ", ".join(f"{i} on {reports[i]['host']} (pid {reports[i]['pid']})" for i in lost)
        return LostProcess(f"process {names} is gone ({reason}). {self.status()}")

    def leave(self, message: str, status: int) -> NoReturn:
        """Ends this process at once, after telling the others why. An orderly exit would wait for
        them; they may be waiting for this one."""
        self.fail(message, status)
        if self.first:
            time.sleep(3)  # the others read the message here, in the coordinator
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def raise_failure(self) -> None:
        """Raises what another process has failed with, if one has."""
        found = self.failure()
        if found is not None:
            message, status = found
            error = UserError(message)
            error.status = status
            raise error


class SharedFlag:
    """A number that every process may raise, seen by all of them after the same step.

    A reduction over the devices rides behind each step and is read one step later, when it is long
    done: the hosts agree without waiting for each other.
    """

    def __init__(self, processes: Processes, mesh: Mesh) -> None:
        self._alone = processes.count == 1
        self._rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._local = sum(d.process_index == processes.index for d in mesh.devices.flat)
        self._largest = jax.jit(lambda x: x.max())
        self._before: jax.Array | None = None

    def read(self, value: int) -> int:
        """Sends ``value`` and returns the largest that was sent at the call before.

        To be called at the same step in every process. Alone: ``value`` itself, at once.
        """
        if self._alone:
            return value
        mine = np.full(self._local, value, np.int32)
        sent = self._largest(jax.make_array_from_process_local_data(self._rows, mine))
        before, self._before = self._before, sent
        return 0 if before is None else int(before)
