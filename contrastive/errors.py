"""Errors that are meant for the person at the terminal."""

import errno


class UserError(Exception):
    """Something that the user can put right: the message says what was given, what was expected
    and what to do. The command line prints it in one sentence, without a traceback."""

    status = 2  # exit status of the command


class ConfigError(UserError):
    """A key of the configuration is unknown, unused, of the wrong type or contradicts another."""


class SizeError(ConfigError, ValueError):
    """A tower is configured for other sizes than it is given."""


class DataError(UserError):
    """Data is missing, empty or unreadable."""


class MeasureError(DataError, ValueError):
    """There is nothing to measure, or what a model gave are no numbers."""


class NoSuchSplit(DataError):
    """The data is there, but has no such split: fine where a split may be missing."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to another configuration."""


class StorageError(UserError):
    """A disk is full, or what could be read before cannot be read now. Nothing of the run is wrong
    and it may pass, so a supervisor tries again."""

    status = 74


class UnwrittenCheckpoint(CheckpointError, StorageError):
    """A checkpoint could not be written."""


class WeightsError(UserError):
    """A file of weights is missing, damaged, unsafe, or of a model that is not known here."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_AWAY = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
_FORBIDDEN = (errno.EACCES, errno.EROFS)


def of_storage(error: OSError, message: str = "") -> UserError | None:
    """The error for the terminal that an error of the file system is; None: it is another's fault.

    Args:
      error: As Python raised it.
      message: What to say; else what the system says, and of which file.
    """
    message = message or f"{error.strerror}: {error.filename or 'while writing'}."
    if error.errno in (*_FULL, *_AWAY):
        return StorageError(message)
    return UserError(message) if error.errno in _FORBIDDEN else None


def first_line(error: BaseException, most: int = 200) -> str:
    """What an error of a library says in its first line, for a sentence of ours: at most so many
    characters, without the full stop; its type where it says nothing."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:most].rstrip(".")
