"""Several processes on one machine: simulated CPU devices, or its GPUs."""

import dataclasses
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Literal

from contrastive.errors import ConfigError
from contrastive.launching.group import PORT, Member, write_group
from contrastive.launching.job import Job
from contrastive.launching.record import VARIABLE
from contrastive.training.supervisor import Supervisor

Platform = Literal["cpu", "gpu"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalMachine:
    """How this machine is dealt out.

    Attributes:
      processes: How many.
      devices: Of each process.
      platform: Simulated CPU devices, or GPUs.
      gpus: The GPUs that there are, as CUDA_VISIBLE_DEVICES names them.
      port: Where process 0 listens; None: one that is free.
      xla_flags: XLA_FLAGS as they are, which stay.
    """

    processes: int
    devices: int
    platform: Platform
    gpus: tuple[str, ...] = ()
    port: int | None = None
    xla_flags: str = ""

    def __post_init__(self) -> None:
        if self.processes < 1 or self.devices < 1:
            raise ConfigError(
                f"--processes={self.processes} --devices={self.devices}: both are at least 1."
            )
        wanted = self.processes * self.devices
        if self.platform == "gpu" and wanted > len(self.gpus):
            raise ConfigError(
                f"--processes={self.processes} --devices={self.devices} need {wanted} GPUs and "
                f"this machine has {len(self.gpus)}; ask for fewer, or simulate them with "
                "--platform=cpu."
            )
        if self.port is not None and not 0 < self.port < 65536:
            raise ConfigError(f"--port={self.port} has to lie between 1 and 65535.")

    def environment(self, index: int) -> dict[str, str]:
        """What process ``index`` finds in its environment."""
        port = PORT if self.port is None else str(self.port)
        place = {
            "CONTRASTIVE_COORDINATOR": f"localhost:{port}",
            "CONTRASTIVE_PROCESSES": str(self.processes),
            "CONTRASTIVE_PROCESS": str(index),
        }
        if self.platform == "cpu":
            flags = f"{self.xla_flags} --xla_force_host_platform_device_count={self.devices}"
            return {**place, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
        mine = self.gpus[index * self.devices : (index + 1) * self.devices]
        return {**place, "CUDA_VISIBLE_DEVICES": ",".join(mine)}


def find_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that this process may use: those that CUDA_VISIBLE_DEVICES names, else all that the
    driver lists."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name for name in visible.split(",") if name.strip())
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    done = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    return tuple(str(i) for i in range(len(lines))) if done.returncode == 0 else ()


def check_port(port: int | None) -> None:
    """Raises :class:`ConfigError` if somebody listens on the port already."""
    if port is None:
        return
    try:
        with socket.create_server(("localhost", port)):
            pass
    except OSError as error:
        raise ConfigError(
            f"--port={port} cannot be used on this machine ({error.strerror}); choose another, or "
            "leave it out to take one that is free."
        ) from error


def members(job: Job, machine: LocalMachine, folder: pathlib.Path) -> list[Member]:
    """The processes of the run; their logs go to ``folder``."""
    command = [sys.executable, "-m", "contrastive.cli", *job.arguments]
    return [
        Member(
            command=command,
            environment={**machine.environment(index), VARIABLE: job.record_text},
            log=str(folder / f"process-{index}.log"),
        )
        for index in range(machine.processes)
    ]


def describe(job: Job, machine: LocalMachine) -> str:
    """The commands, one a line, as a person would type them."""
    line = shlex.join(["contrastive", *job.arguments])
    return "\n".join(
        " ".join([*(f"{k}={shlex.quote(v)}" for k, v in machine.environment(i).items()), line])
        for i in range(machine.processes)
    )


def run_local(
    job: Job, machine: LocalMachine, *, restarts: int, wait: float, say: Callable[[str], None]
) -> int:
    """Runs the processes under the supervisor, which starts all of them again when one dies.

    Returns:
      The exit status of the first process that failed in the last attempt, or 0.
    """
    check_port(machine.port)
    logs, folder = job.workdir / "logs", job.workdir / "launch"
    for made in (logs, folder):
        made.mkdir(parents=True, exist_ok=True)
    write_group(folder / "group.json", members(job, machine, logs))
    say(f"{machine.processes} processes of {machine.devices} {machine.platform} device(s); {logs}")
    command = [sys.executable, "-m", "contrastive.launching.group", str(folder / "group.json")]
    return Supervisor(command, restarts, say=say, wait=wait).run()
