"""The folder of a run: made, checked, locked against a second run, set aside."""

import contextlib
import errno
import fcntl
import os
import pathlib
import re
import time
import uuid
from collections.abc import Iterator

from contrastive.errors import UserError, of_storage
from contrastive.processes import Processes

# What a launcher, or a start that came to nothing, leaves in the folder of a run
_BEFORE_A_RUN = {"launch", "launch.json", "logs", ".lock", ".shared"}


def set_aside(workdir: pathlib.Path) -> pathlib.Path | None:
    """Renames an existing run to ``NAME.old-1`` (or the next free number); nothing is deleted.

    Raises:
      UserError: The folder is not that of a run, or another process trains in it.
    """
    if not workdir.exists():
        return None
    others = any(entry.name not in _BEFORE_A_RUN for entry in workdir.iterdir())
    if others and not (workdir / "config.json").exists():
        raise UserError(
            f"{workdir} is not empty and not the folder of a run, so --new does not move it away; "
            "choose another --workdir."
        )
    number = 1
    while (target := workdir.with_name(f"{workdir.name}.old-{number}")).exists():
        number += 1
    with opened(workdir):
        workdir.rename(target)
    return target


def has_begun(workdir: pathlib.Path) -> bool:
    """Whether a run came as far as its first step. One that was refused before, for a path that is
    not there for example, leaves nothing that a corrected configuration could damage."""
    metrics, checkpoints = workdir / "metrics.jsonl", workdir / "checkpoints"
    return (metrics.exists() and metrics.stat().st_size > 0) or (
        checkpoints.is_dir() and any(checkpoints.iterdir())
    )


@contextlib.contextmanager
def opened(workdir: pathlib.Path) -> Iterator[None]:
    """Creates the folder and holds it for this process.

    Raises:
      StorageError: There is no room for it.
      UserError: It cannot be created or written, another process trains in it, or it is a bucket's
        address.
    """
    if found := re.match(r"[A-Za-z][A-Za-z0-9+]+:/", str(workdir)):  # a path has lost the second /
        raise UserError(
            f"--workdir={str(workdir).replace(':/', '://', 1)}: a run needs a folder that can be "
            f"locked and appended to; mount the bucket ({found[0]}/…) and give the folder."
        )
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = os.open(workdir / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        message = f"cannot write to {workdir} ({error.strerror or error}); "
        message += (
            "free some space." if error.errno == errno.ENOSPC else "choose another --workdir."
        )
        raise of_storage(error, message) or UserError(message) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 32, 0).decode() or "unknown"
            raise UserError(
                f"another process (pid {holder}) trains in {workdir}; wait for it, stop it, or "
                "choose another --workdir."
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def check_shared(workdir: pathlib.Path, processes: Processes, *, seconds: float = 20.0) -> None:
    """Makes sure that all processes see the folder that process 0 writes to.

    Args:
      workdir: The run's folder, made by process 0.
      processes: Those that train together.
      seconds: How late a network file system may be.

    Raises:
      UserError: In all processes: one sees another folder, or none; says on which host.
    """
    if processes.count == 1:
        return
    file, word = workdir / ".shared", uuid.uuid4().hex
    processes.first_alone(lambda: file.write_text(word), "writing to the workdir")
    word = processes.gather(word, "comparing the workdir")[0]

    def look() -> None:
        end = time.monotonic() + seconds
        while not (file.is_file() and file.read_text() == word):
            if time.monotonic() > end:
                raise UserError(
                    f"the folder {workdir} here is not the one that process 0 writes to; "
                    "--workdir has to be on a file system that all hosts share."
                )
            time.sleep(0.2)

    processes.together(look, "looking into the workdir")
