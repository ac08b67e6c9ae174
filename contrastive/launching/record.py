"""What a run is made from, written into its folder before the first step: ``launch.json``.

A launcher makes the record where it starts and hands it to every process in the environment
variable :data:`VARIABLE`; a process that would train from another configuration or other code than
the launcher saw does not start.
"""

import datetime
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from contrastive import config as config_lib
from contrastive.errors import UserError
from contrastive.processes import code_digest
from contrastive.recipe import Recipe
from contrastive.whole import whole_file

VARIABLE = "CONTRASTIVE_LAUNCH"
COMMIT = "CONTRASTIVE_COMMIT"  # of a container, which has no repository
FILE = "launch.json"


def recipe_digest(recipe: Recipe) -> str:
    """A digest of the resolved settings, to tell hosts with other ones."""
    text = json.dumps(config_lib.to_dict(recipe), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def git_state(
    folder: pathlib.Path | None = None, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """The commit of the code and the files that differ from it; ``commit`` is None where that is
    not known: no repository, no git, and no :data:`COMMIT`."""
    folder = folder or pathlib.Path(__file__).parents[1]
    top = _git(folder, "rev-parse", "HEAD")
    if top is None or _git(folder, "ls-files", ".") == "":  # an installed copy in some repository
        return {"commit": environment.get(COMMIT), "dirty": None, "changed": []}
    changed = (_git(folder, "status", "--porcelain", "--", ":/") or "").splitlines()
    return {"commit": top, "dirty": bool(changed), "changed": [line[3:] for line in changed[:50]]}


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip() if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Python, and of each dependency the version that is installed."""
    names = {"jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"}
    try:
        wanted = importlib.metadata.requires("contrastive") or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder that was not installed
        wanted = []
    names |= {
        re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted if "extra ==" not in line
    }
    found = {"python": platform.python_version()}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def make_record(
    recipe: Recipe,
    command: Sequence[str],
    *,
    launcher: str | None,
    plan: Mapping[str, Any],
    devices: int | None = None,
) -> dict[str, Any]:
    """What is known where a run is started.

    Args:
      recipe: The resolved settings.
      command: The command that trains.
      launcher: Which one starts it; None: a person.
      plan: What the planner said, or ``{"skipped": WHY}``.
      devices: How many there will be, over all processes; None: not known.
    """
    return {
        "launcher": launcher,
        "devices": devices,
        "command": list(command),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "configuration": recipe_digest(recipe),
        "code": code_digest(),
        "git": git_state(),
        "versions": versions(),
        "plan": {key: value for key, value in plan.items() if key != "collectives"},
    }


def given_record(environment: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """The record of the launcher that started this process; None: there was none.

    Raises:
      UserError: What the environment holds is no record.
    """
    text = environment.get(VARIABLE)
    if not text:
        return None
    try:
        record = json.loads(text)
        return {"configuration": record["configuration"], "code": record["code"], **record}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the environment variable {VARIABLE} is not what a launcher writes; unset it, or "
            "start the run with contrastive launch."
        ) from error


def check_as_launched(record: Mapping[str, Any] | None, recipe: Recipe, *, devices: int) -> None:
    """Makes sure that this process trains what was launched, on ``devices`` devices in all.

    Raises:
      UserError: Its configuration or its code is another, or so is the number of devices; says what
        to do.
    """
    if record is None:
        return
    if record["code"] != code_digest():
        commit = (record.get("git") or {}).get("commit")
        raise UserError(
            f"the code here (digest {code_digest()}) is not the code that was launched (digest "
            f"{record['code']}, commit {commit}); install that commit here, or launch again."
        )
    if record["configuration"] != recipe_digest(recipe):
        raise UserError(
            f"the configuration resolves to {recipe_digest(recipe)} here and to "
            f"{record['configuration']} where the run was launched; the recipe file has changed "
            "since, or differs between the hosts: launch again."
        )
    wanted = record.get("devices")
    if wanted is not None and wanted != devices:
        raise UserError(
            f"the run was launched for {wanted} devices and JAX sees {devices}, over all "
            "processes: see that every process gets its devices (driver, CUDA_VISIBLE_DEVICES, "
            "XLA_FLAGS), or launch for those that are there."
        )


def write_record(workdir: pathlib.Path, record: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Writes ``launch.json``; ``here`` is what only the run itself knows: processes, devices."""
    text = json.dumps({**record, "run": dict(here)}, indent=2) + "\n"
    with whole_file(workdir / FILE) as path:
        path.write_text(text)
