"""The trials of a sweep as one indexed job of Kubernetes, one pod a trial."""

import pathlib
from collections.abc import Sequence

from contrastive.errors import ConfigError
from contrastive.launching.gke import GkeMachine, apply, dns_name, manifest, trials
from contrastive.launching.settings import check_workdir, machine_settings
from contrastive.sweeps.launchers import LaunchSettings


def submit(folder: pathlib.Path, indices: Sequence[int], settings: LaunchSettings) -> str:
    """Hands the trials to the cluster; returns where they are to be found.

    The sweep's folder lies in the bucket, which is mounted here under the name that it has in the
    pods: this command writes the trials' settings there, and the pods read them.

    Raises:
      ConfigError: The folder is not in the bucket, or a trial needs several machines.
      UserError: There is no kubectl, or the cluster refuses.
    """
    machine = machine_settings(GkeMachine, settings.on, settings.overrides)
    folder = folder.absolute()
    check_workdir(folder, mount=machine.mount, bucket=machine.bucket)
    if settings.processes != 1 or machine.machine.hosts * machine.machine.slices != 1:
        raise ConfigError(
            f"a trial on Kubernetes runs on one machine, and --on.topology={machine.topology} with "
            f"{settings.processes} process(es) a trial has several; choose one such as v5e:2x4."
        )
    name = dns_name(machine.name or f"sweep-{folder.name}")
    resource = trials(folder, indices, machine, name, settings.parallel, settings.retries)
    said = apply(manifest(resource), machine.namespace)
    return f"{said} (kubectl get jobset {name} --namespace={machine.namespace})"
