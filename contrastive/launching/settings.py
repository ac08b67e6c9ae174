"""Where to run, from a file and the command line: ``--on=FILE.py`` and ``--on.KEY=VALUE``."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from contrastive import config as config_lib
from contrastive.errors import ConfigError

T = TypeVar("T")


def machine_settings(cls: type[T], on: str | None, overrides: Sequence[str]) -> T:
    """The settings of a launcher.

    Args:
      cls: Their dataclass.
      on: ``FILE.py:ARGUMENT``, whose ``get_machine`` returns them; None: all defaults.
      overrides: ``--on.KEY=VALUE``.

    Raises:
      ConfigError: There is no such file, a key is unknown or missing, or a value is not possible.
    """
    given = config_lib.load_file(on, function="get_machine", option="--on=") if on else {}
    parts = (override.removeprefix("--on.").partition("=") for override in overrides)
    told = {key: value for key, _, value in parts}
    needed = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]  # pyright: ignore[reportArgumentType]
    if missing := [name for name in needed if name not in given and name not in told]:
        raise ConfigError(
            f"--on.{' and --on.'.join(missing)} missing: give them, or a file that does, such as "
            "--on=launch/gke.py:v5e-256."
        )
    first = {name: told[name] for name in needed if name in told}  # all of them are texts
    try:
        return config_lib.resolve(cls, {**given, **first}, overrides)
    except ConfigError as error:
        raise ConfigError(str(error).replace("config.", "--on.")) from error


def check_at_least(settings: Any, **least: int | float) -> None:
    """Raises :class:`ConfigError` where a number of these settings is smaller than that."""
    for name, low in least.items():
        value = getattr(settings, name)
        if value is not None and value < low:
            raise ConfigError(f"--on.{name}={value} has to be at least {low}.")


def check_workdir(workdir: Any, *, mount: str, bucket: str) -> None:
    """Raises :class:`ConfigError` unless the folder lies in the bucket, which all hosts mount."""
    if not re.fullmatch(r"/+[^/].*", mount):
        raise ConfigError(f"--on.mount={mount} has to be a folder that begins with /.")
    if not pathlib.Path(os.path.normpath(workdir)).is_relative_to(os.path.normpath(mount)):
        raise ConfigError(
            f"the folder {workdir} is on a disk that no other host sees, and that is lost with the "
            f"machine; give a folder below --on.mount={mount}, where {bucket} is mounted."
        )
