"""Kubernetes on Google Cloud: a JobSet for slices of TPUs or nodes of GPUs.

The manifest is a pure function of job and settings. The container is that of launch/Containerfile.
"""

import dataclasses
import math
import pathlib
import re
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from contrastive.errors import ConfigError
from contrastive.launching.job import Job
from contrastive.launching.record import VARIABLE
from contrastive.launching.settings import check_at_least
from contrastive.launching.tools import run_tool
from contrastive.launching.topology import COLLECTIVES, Machine, parse_machine
from contrastive.training.supervisor import STOPPED, USER_ERROR
from contrastive.training.watchdog import HEARTBEAT

WORKERS = "workers"  # the name of the replicated job; a replica is a slice, or all nodes of GPUs
CONTAINER = "train"
_PORT = 8476
_BEAT = "/tmp/heartbeat"
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
        check_at_least(self, restarts=0, grace_seconds=0)
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", self.bucket, re.IGNORECASE):
            raise ConfigError(f"--on.bucket={self.bucket!r} has to be a name, without gs://.")

    @property
    def machine(self) -> Machine:
        return parse_machine(self.topology)


def dns_name(text: str) -> str:
    """A name that clouds take: a small letter, then these, digits and dashes, at most 40."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"run-{plain}"
    return plain[:40].strip("-")


def jobset(job: Job, settings: GkeMachine) -> dict[str, Any]:
    """The manifest of a run.

    Exit statuses decide what follows: 2 (something to be put right by a person) fails the JobSet;
    a stop by a signal and a preempted host restart it without being counted; everything else
    restarts it, at most ``restarts`` times. It restarts as a whole: the processes meet again.
    """
    machine, name = settings.machine, dns_name(settings.name or job.name)
    metadata = _metadata(settings, name)
    if machine.tpu:  # each slice on a node pool of its own
        key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
        metadata["annotations"] = {key: "cloud.google.com/gke-nodepool"}
    policy = {"maxRestarts": settings.restarts, "rules": _rules()}
    return _set_of(metadata, policy, machine.slices, _job(job, settings, name))


def trials(
    folder: pathlib.Path,
    indices: Sequence[int],
    settings: GkeMachine,
    name: str,
    parallel: int,
    retries: int,
) -> dict[str, Any]:
    """The manifest of a sweep: one indexed job, a pod a trial, each started again by itself.

    Args:
      folder: The sweep's folder, in the bucket.
      indices: Of the trials.
      settings: Of one trial, which runs on one machine.
      name: Of the JobSet.
      parallel: Trials at a time.
      retries: How often a failed trial is started again.
    """
    listed = " ".join(map(str, indices))
    trial = '--trial="${indices[$JOB_COMPLETION_INDEX]}"'
    command = f"indices=({listed}); exec contrastive sweep {shlex.quote(str(folder))} {trial}"
    exits = {"containerName": CONTAINER, "operator": "In", "values": [USER_ERROR]}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    job = {
        "parallelism": min(parallel, len(indices)),
        "completions": len(indices),
        "completionMode": "Indexed",
        "backoffLimitPerIndex": retries,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailIndex", "onExitCodes": exits},
                {"action": "Ignore", "onPodConditions": disrupted},  # again, and not counted
            ]
        },
        "template": _pod_template(_container(command, [], settings), settings),
    }
    return _set_of(_metadata(settings, name), {"maxRestarts": 0}, 1, job)


def _metadata(settings: GkeMachine, name: str) -> dict[str, Any]:
    labels = {
        "kueue.x-k8s.io/queue-name": settings.queue,
        "kueue.x-k8s.io/priority-class": settings.priority,
    }
    kept = {key: value for key, value in labels.items() if value}
    return {"name": name, "namespace": settings.namespace, "labels": kept}


def _set_of(
    metadata: dict[str, Any], policy: dict[str, Any], replicas: int, job: dict[str, Any]
) -> dict[str, Any]:
    group = {"name": WORKERS, "replicas": replicas, "template": {"spec": job}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": policy,
            "replicatedJobs": [group],
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
        "template": _pod_template(_training(job, settings, name), settings),
    }


def _pod_template(container: dict[str, Any], settings: GkeMachine) -> dict[str, Any]:
    return {
        "metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}},
        "spec": _pod(container, settings),
    }


def _pod(container: dict[str, Any], settings: GkeMachine) -> dict[str, Any]:
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
        "containers": [container],
        "volumes": [
            {"name": "bucket", "csi": bucket},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if not machine.tpu:
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return pod


def _training(job: Job, settings: GkeMachine, name: str) -> dict[str, Any]:
    """The container of a run: how its processes find each other."""
    machine, arguments = settings.machine, list(job.arguments)
    environment = [{"name": VARIABLE, "value": job.record_text}]
    before = ""
    if machine.tpu:  # JAX knows the hosts of slices from what GKE writes into the environment
        arguments.append("--coordinator=auto")
    elif machine.hosts > 1:
        environment += [
            {"name": "CONTRASTIVE_COORDINATOR", "value": f"{name}-{WORKERS}-0-0.{name}:{_PORT}"},
            {"name": "CONTRASTIVE_PROCESSES", "value": str(machine.hosts)},
            {"name": "XLA_FLAGS", "value": COLLECTIVES},
        ]
        before = 'export CONTRASTIVE_PROCESS="$JOB_COMPLETION_INDEX"; '
    command = f"{before}exec contrastive {shlex.join(arguments)}"
    return _container(command, environment, settings)


def _container(
    command: str, environment: Sequence[dict[str, Any]], settings: GkeMachine
) -> dict[str, Any]:
    machine = settings.machine
    resource = "google.com/tpu" if machine.tpu else "nvidia.com/gpu"
    fresh = f"test ! -e {_BEAT} || test $(($(date +%s) - $(stat -c %Y {_BEAT}))) -lt {_SILENT}"
    return {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["bash", "-c", command],
        "env": [*environment, {"name": HEARTBEAT, "value": _BEAT}],
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
