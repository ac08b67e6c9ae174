"""Errors that are meant for the person at the terminal."""


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


class WeightsError(UserError):
    """A file of weights is missing, damaged, unsafe, or of a model that is not known here."""


def first_line(error: BaseException, most: int = 200) -> str:
    """What an error of a library says in its first line, for a sentence of ours: at most so many
    characters, without the full stop; its type where it says nothing."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:most].rstrip(".")
