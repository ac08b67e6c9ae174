"""The folder of a run: made, checked, locked against a second run, set aside."""

import contextlib
import errno
import fcntl
import os
import pathlib
from collections.abc import Iterator

from contrastive.errors import UserError


def set_aside(workdir: pathlib.Path) -> pathlib.Path | None:
    """Renames an existing run to ``NAME.old-1`` (or the next free number); nothing is deleted.

    Raises:
      UserError: The folder is not that of a run, or another process trains in it.
    """
    if not workdir.exists():
        return None
    if not (workdir / "config.json").exists() and any(workdir.iterdir()):
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
      UserError: It cannot be created or written, or another process trains in it.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = os.open(workdir / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "free some space" if error.errno == errno.ENOSPC else "choose another --workdir"
        raise UserError(f"cannot write to {workdir} ({reason}); {hint}.") from error
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
