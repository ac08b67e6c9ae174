"""Are the nodes of a job alike, and do they see what they need? Asked before the job begins.

Every node writes a report into a folder of the workdir, and one reads them all: a node whose report
is missing does not share the folder.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from contrastive.errors import UserError
from contrastive.launching.record import recipe_digest, versions
from contrastive.processes import code_digest
from contrastive.recipe import Recipe
from contrastive.whole import whole_file

# Equal on all nodes, or the job does not begin: a key of the reports and the words for it
_EQUAL = {
    "code": "code of the package",
    "configuration": "configuration",
    "versions": "version of",
    "driver": "NVIDIA driver",
    "network": "variable",
}


def node_report(recipe: Recipe, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What this node is: name, code, configuration, versions, GPUs and driver, NCCL's variables."""
    gpus = _gpus()
    return {
        "node": environment.get("SLURMD_NODENAME") or socket.gethostname(),
        "host": socket.gethostname(),
        "code": code_digest(),
        "configuration": recipe_digest(recipe),
        "versions": versions(),
        "gpus": len(gpus),
        "driver": ", ".join(sorted({driver for _, driver in gpus})) or "none",
        "devices": sorted({name for name, _ in gpus}),
        "network": {
            key: value
            for key, value in sorted(environment.items())
            if re.match(r"(NCCL|XLA|UCX|FI|LIBTPU|MEGASCALE)_", key)
        },
    }


def _gpus() -> list[tuple[str, str]]:
    """Name and driver of each GPU that the driver lists."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = ["--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run([tool, *query], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return []
    rows = [line.rpartition(",") for line in done.stdout.splitlines() if "," in line]
    return (
        [(name.strip(), driver.strip()) for name, _, driver in rows] if not done.returncode else []
    )


def write_report(folder: pathlib.Path, report: Mapping[str, Any]) -> None:
    """Writes a node's report under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"{report['node']}.json") as path:
        path.write_text(json.dumps(report, indent=2) + "\n")


def read_reports(folder: pathlib.Path) -> list[dict[str, Any]]:
    """All reports, by name."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def check_nodes(
    record: Mapping[str, Any] | None,
    reports: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    gpus: int,
) -> None:
    """Compares the nodes with each other and with what was launched.

    Args:
      record: The launcher's; None: there is none.
      reports: Of the nodes, from the folder that they should share.
      names: Of all nodes.
      gpus: That each has to have; 0: not asked.

    Raises:
      UserError: One sentence that names every node that is not as it should be, and how.
    """
    faults = _missing(reports, names)
    faults += [
        f"{one['node']} has {one['gpus']} GPUs of {gpus} (driver: {one['driver']})"
        for one in reports
        if gpus and one["gpus"] != gpus
    ]
    rows = [(str(one["node"]), _flat(one)) for one in reports]
    wanted = _flat(record) if record else {}
    for key, words in sorted({key: words for _, row in rows for key, words in row.items()}.items()):
        faults += _odd(key, words[0], rows, wanted.get(key))
    if faults:
        raise UserError(
            f"the nodes are not fit for the job: {'; '.join(faults)}. Put these right, or leave "
            "the nodes out (--exclude), and submit again."
        )


def _missing(reports: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    seen = {one["node"] for one in reports}
    absent = [name for name in names if name not in seen]
    return [f"{', '.join(absent)} left no report in the workdir, which all nodes have to share"] * (
        bool(absent)
    )


def _flat(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Key to (words, value) of everything that has to be equal."""
    found = {}
    for key, words in _EQUAL.items():
        value = report.get(key)
        if isinstance(value, Mapping):
            found |= {f"{key}/{name}": (f"{words} {name}", str(v)) for name, v in value.items()}
        elif value is not None:
            found[key] = (words, str(value))
    return found


def _odd(
    key: str,
    words: str,
    rows: Sequence[tuple[str, Mapping[str, tuple[str, str]]]],
    wanted: tuple[str, str] | None,
) -> list[str]:
    values = {node: row.get(key, (words, "none"))[1] for node, row in rows}
    if key in ("code", "configuration") and wanted is not None:
        usual, source = wanted[1], "launched was"
    else:
        counts = sorted(values.values(), key=lambda v: (-list(values.values()).count(v), v))
        usual, source = counts[0], "the others have"
    odd = [f"{node} has {value}" for node, value in values.items() if value != usual]
    return [f"{words}: {', '.join(odd)}, {source} {usual}"] if odd else []
