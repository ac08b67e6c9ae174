"""Kubernetes on Google Cloud: a JobSet for slices of TPUs or nodes of GPUs.

The manifest is a pure function of job and settings. The container is that of launch/Containerfile.
"""

import dataclasses
import math
import re
import shlex
from typing import Any

import yaml

from contrastive.errors import ConfigError
from contrastive.launching.job import Job
from contrastive.launching.record import VARIABLE
from contrastive.launching.tools import run_tool
from contrastive.launching.topology import Machine, parse_machine
from contrastive.training.supervisor import STOPPED, USER_ERROR
from contrastive.training.watchdog import HEARTBEAT

WORKERS = "workers"  # the name of the replicated job; a replica is a slice, or all nodes of GPUs
CONTAINER = "train"
_PORT = 8476
_SILENT = 300  # seconds without a sign of life after which Kubernetes ends a container


@dataclasses.dataclass(frozen=True, kw_only=True)
class GkeMachine:
    """What a JobSet asks for."""

    topology: str  # v5e:16x16, v5e:16x16*2 (two slices), h100:8x8 (nodes x GPUs)
    image: str  # of launch/Containerfile, in a registry that the cluster reads
    bucket: str  # Cloud Storage; --workdir lies in it, below mount
    mount: str = "/bucket"
    name: str | None = None  # of the JobSet; None: the recipe's name
    namespace: str = "default"
    queue: str | None = None  # of Kueue; None: the JobSet starts as soon as there is room
    priority: str | None = None  # of Kueue: a WorkloadPriorityClass
    service_account: str = "default"  # of Kubernetes, with access to the bucket
    restarts: int = 10  # after failures; preemption is not counted
    spot: bool = False
    grace_seconds: int = 120  # between SIGTERM and the end, to write a checkpoint

    def __post_init__(self) -> None:
        parse_machine(self.topology)
        if not self.mount.startswith("/"):
            raise ConfigError(f"--on.mount={self.mount} has to begin with /.")
        if self.restarts < 0:
            raise ConfigError(f"--on.restarts={self.restarts} cannot be negative.")

    @property
    def machine(self) -> Machine:
        return parse_machine(self.topology)


def dns_name(text: str) -> str:
    """A name that Kubernetes takes: small letters, digits and dashes, at most 40."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "run"


def check_workdir(workdir: Any, settings: GkeMachine) -> None:
    """Raises :class:`ConfigError` unless the workdir lies in the bucket, which all hosts share."""
    if not f"{workdir}/".startswith(f"{settings.mount.rstrip('/')}/"):
        raise ConfigError(
            f"--workdir={workdir} is on a disk that no other host sees; give a folder below "
            f"--on.mount={settings.mount}, where the bucket {settings.bucket} is mounted."
        )


def jobset(job: Job, settings: GkeMachine) -> dict[str, Any]:
    """The manifest of a run.

    Exit statuses decide what follows: 2 (something to be put right by a person) fails the JobSet;
    a stop by a signal and a preempted host restart it without being counted; everything else
    restarts it, at most ``restarts`` times. It restarts as a whole: the processes meet again.
    """
    machine, name = settings.machine, dns_name(settings.name or job.name)
    metadata: dict[str, Any] = {"name": name, "namespace": settings.namespace}
    labels = {
        "kueue.x-k8s.io/queue-name": settings.queue,
        "kueue.x-k8s.io/priority-class": settings.priority,
    }
    metadata["labels"] = {key: value for key, value in labels.items() if value}
    if machine.tpu:  # each slice on a node pool of its own
        key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
        metadata["annotations"] = {key: "cloud.google.com/gke-nodepool"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": settings.restarts, "rules": _rules()},
            "replicatedJobs": [
                {
                    "name": WORKERS,
                    "replicas": machine.slices,
                    "template": {"spec": _job(job, settings, name)},
                }
            ],
        },
    }


def _rules() -> list[dict[str, Any]]:
    by_policy = "PodFailurePolicy"
    return [
        {
            "name": "forAPerson",
            "action": "FailJobSet",
            "onJobFailureReasons": [by_policy],
            "onJobFailureMessagePatterns": [f".*exit code {USER_ERROR} .*"],
        },
        {
            "name": "stoppedOrPreempted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": [by_policy],
        },
    ]


def _job(job: Job, settings: GkeMachine, name: str) -> dict[str, Any]:
    hosts = settings.machine.hosts
    exits = {"containerName": CONTAINER, "operator": "In"}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {**exits, "values": [USER_ERROR]}},
                {"action": "FailJob", "onExitCodes": {**exits, "values": sorted(STOPPED)}},
                {"action": "FailJob", "onPodConditions": disrupted},
            ]
        },
        "template": {
            "metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}},
            "spec": _pod(job, settings, name),
        },
    }


def _pod(job: Job, settings: GkeMachine, name: str) -> dict[str, Any]:
    machine = settings.machine
    if machine.tpu:
        selector = {
            "cloud.google.com/gke-tpu-accelerator": machine.kind.selector,
            "cloud.google.com/gke-tpu-topology": machine.sides,
        }
    else:
        selector = {"cloud.google.com/gke-accelerator": machine.kind.selector}
    if settings.spot:
        selector["cloud.google.com/gke-spot"] = "true"
    bucket = {
        "driver": "gcsfuse.csi.storage.gke.io",
        "volumeAttributes": {"bucketName": settings.bucket, "mountOptions": "implicit-dirs"},
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": settings.service_account,
        "terminationGracePeriodSeconds": settings.grace_seconds,
        "nodeSelector": selector,
        "containers": [_container(job, settings, name)],
        "volumes": [
            {"name": "bucket", "csi": bucket},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if not machine.tpu:
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return pod


def _container(job: Job, settings: GkeMachine, name: str) -> dict[str, Any]:
    machine = settings.machine
    arguments = list(job.arguments)
    environment: list[dict[str, Any]] = [
        {"name": VARIABLE, "value": job.record_text},
        {"name": HEARTBEAT, "value": "/tmp/heartbeat"},
    ]
    if machine.tpu:  # JAX knows the hosts of slices from what GKE writes into the environment
        arguments.append("--coordinator=auto")
    elif machine.hosts > 1:
        environment += [
            {"name": "CONTRASTIVE_COORDINATOR", "value": f"{name}-{WORKERS}-0-0.{name}:{_PORT}"},
            {"name": "CONTRASTIVE_PROCESSES", "value": str(machine.hosts)},
        ]
    resource = "google.com/tpu" if machine.tpu else "nvidia.com/gpu"
    command = f"exec contrastive {shlex.join(arguments)}"
    if not machine.tpu and machine.hosts > 1:
        command = f'export CONTRASTIVE_PROCESS="$JOB_COMPLETION_INDEX"; {command}'
    fresh = (
        f"test ! -e /tmp/heartbeat || "
        f"test $(($(date +%s) - $(stat -c %Y /tmp/heartbeat))) -lt {_SILENT}"
    )
    return {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["bash", "-c", command],
        "env": environment,
        "ports": [{"containerPort": _PORT}],
        "resources": {"limits": {resource: machine.chips_per_host}},
        "livenessProbe": {
            "exec": {"command": ["bash", "-c", fresh]},
            "periodSeconds": 60,
            "failureThreshold": 2,
        },
        "volumeMounts": [
            {"name": "bucket", "mountPath": settings.mount},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }


def manifest(resource: dict[str, Any]) -> str:
    """The resource as YAML."""
    return yaml.safe_dump(resource, sort_keys=False, width=math.inf)


def apply(text: str, namespace: str) -> str:
    """Hands a manifest to the cluster; returns what it says.

    Raises:
      UserError: There is no kubectl, or the cluster refuses.
    """
    return run_tool(["kubectl", "apply", f"--namespace={namespace}", "-f", "-"], text=text).strip()
