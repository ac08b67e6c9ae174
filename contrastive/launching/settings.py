"""Where to run, from a file and the command line: ``--on=FILE.py`` and ``--on.KEY=VALUE``."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

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
    told = dict(override.removeprefix("--on.").split("=", 1) for override in overrides)
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
