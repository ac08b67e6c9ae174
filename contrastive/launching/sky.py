"""SkyPilot: a task file for other clouds. Nodes of GPUs; SkyPilot finds them, sets them up, and
with ``sky jobs launch`` starts the run again elsewhere when they are taken away."""

import dataclasses
import math
import shlex
from typing import Any

import yaml

from contrastive.errors import ConfigError
from contrastive.launching.gke import dns_name
from contrastive.launching.job import Job
from contrastive.launching.record import COMMIT, VARIABLE
from contrastive.launching.settings import check_at_least
from contrastive.launching.topology import COLLECTIVES, Machine, parse_machine

_PORT = 8476
_ACCELERATORS = {"h100": "H100", "h200": "H200"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkyMachine:
    """What is asked of SkyPilot."""

    topology: str  # h100:2x8 (nodes x GPUs)
    bucket: str  # s3://… or gs://…; --workdir lies in it, below mount
    mount: str = "/checkpoints"
    spot: bool = True
    cloud: str | None = None  # None: the cheapest that is configured
    disk_gb: int = 512

    def __post_init__(self) -> None:
        if parse_machine(self.topology).chip not in _ACCELERATORS:
            raise ConfigError(
                f"--on.topology={self.topology}: SkyPilot tasks are for "
                f"{', '.join(_ACCELERATORS)}; for TPUs use contrastive launch tpu or gke."
            )
        if "://" not in self.bucket:
            raise ConfigError(f"--on.bucket={self.bucket} has to be s3://NAME or gs://NAME.")
        check_at_least(self, disk_gb=1)

    @property
    def machine(self) -> Machine:
        return parse_machine(self.topology)


def task(job: Job, settings: SkyMachine) -> dict[str, Any]:
    """The task of a run."""
    machine = settings.machine
    resources: dict[str, Any] = {
        "accelerators": f"{_ACCELERATORS[machine.chip]}:{machine.chips_per_host}",
        "use_spot": settings.spot,
        "disk_size": settings.disk_gb,
    }
    if settings.cloud:
        resources["cloud"] = settings.cloud
    run = [
        "set -eu",
        f'export XLA_FLAGS="{COLLECTIVES} ${{XLA_FLAGS:-}}"',
        f'export CONTRASTIVE_COORDINATOR="$(echo "$SKYPILOT_NODE_IPS" | head -n1):{_PORT}"',
        'export CONTRASTIVE_PROCESSES="$SKYPILOT_NUM_NODES"',
        'export CONTRASTIVE_PROCESS="$SKYPILOT_NODE_RANK"',
        f"exec .venv/bin/contrastive {shlex.join(job.arguments)}",
    ]
    setup = [
        "set -eu",
        "test -x .venv/bin/python || python3 -m venv .venv",
        ".venv/bin/python -m pip install --quiet -c constraints.txt -e '.[cuda,remote]'",
    ]
    return {
        "name": dns_name(job.name),
        "workdir": ".",
        "num_nodes": machine.shape[0],
        "resources": resources,
        "file_mounts": {
            settings.mount: {
                "source": settings.bucket,
                "mode": "MOUNT",
            }
        },
        "envs": {VARIABLE: job.record_text, COMMIT: job.record["git"]["commit"] or "unknown"},
        "setup": "\n".join(setup) + "\n",
        "run": "\n".join(run) + "\n",
    }


def task_file(job: Job, settings: SkyMachine) -> str:
    """The task as YAML."""
    return yaml.safe_dump(task(job, settings), sort_keys=False, width=math.inf)
