"""Who runs the trials of a sweep: this machine, or a scheduler.

A launcher is a callable ``(folder, indices, settings) -> handle``. It sees to it that for every
index the command

    contrastive sweep FOLDER --trial=INDEX

is run (exit status 0: done), somewhere that reads and writes the same folder. It returns None when
that is over, or what a person needs to find the jobs again when they go on elsewhere.
"""

import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from contrastive.config import nearest
from contrastive.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """What the sweep or the command line says about running trials."""

    parallel: int = 1  # trials at a time
    retries: int = 1  # how often a failed trial is started again
    processes: int = 1  # processes of one trial
    on: str | None = None  # what to ask a scheduler for: --on=FILE.py
    overrides: tuple[str, ...] = ()  # --on.KEY=VALUE
    say: Callable[[str], None] = print  # receives a sentence about what happens


Launcher: TypeAlias = Callable[[pathlib.Path, Sequence[int], LaunchSettings], str | None]
"""Runs trials, or hands them to something that does."""

# Imported when they are used: a launcher may need what not everyone has.
LAUNCHERS: Mapping[str, str] = {
    "local": "contrastive.sweeps.local:submit",
    "slurm": "contrastive.sweeps.slurm:submit",
    "gke": "contrastive.sweeps.gke:submit",
}


def find_launcher(name: str) -> Launcher:
    """The launcher of this name.

    Raises:
      ConfigError: There is none.
    """
    if name not in LAUNCHERS:
        raise ConfigError(f"--launcher={name} is not known{nearest(name, LAUNCHERS)}")
    module, _, function = LAUNCHERS[name].partition(":")
    return getattr(importlib.import_module(module), function)
