"""How the processes of a run find each other: flags, environment variables, SLURM, or JAX."""

import contextlib
import dataclasses
import os
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

import jax

from contrastive.errors import ConfigError
from contrastive.processes import LostProcess, Processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """Where this process stands among those that were started together."""

    coordinator: str  # host:port of process 0
    count: int
    index: int
    devices: tuple[int, ...] | None = None  # local devices of this process; None: all

    def __post_init__(self) -> None:
        if not re.fullmatch(r".+:\d+", self.coordinator):
            raise ConfigError(f"--coordinator={self.coordinator} has to be HOST:PORT.")
        if self.count < 1 or not 0 <= self.index < self.count:
            raise ConfigError(
                f"--process={self.index} of --processes={self.count}: processes are numbered from "
                "0 to their number - 1."
            )


def find_launch(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    environment: Mapping[str, str] = os.environ,
) -> Launch | None:
    """What the flags say, else ``CONTRASTIVE_COORDINATOR``, ``_PROCESSES`` and ``_PROCESS``, else
    what SLURM says of a step with several tasks; None: one process, which needs no coordinator.

    Raises:
      ConfigError: Some of the three are given and others are missing.
    """
    coordinator = coordinator or environment.get("CONTRASTIVE_COORDINATOR")
    processes = _number(processes, "PROCESSES", environment)
    process = _number(process, "PROCESS", environment)
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if not missing:
        assert coordinator is not None
        assert processes is not None
        assert process is not None
        return Launch(coordinator=coordinator, count=processes, index=process)
    if len(missing) < 3:
        raise ConfigError(
            f"{' and '.join(missing)} missing: several processes need --coordinator=HOST:PORT, "
            "--processes=N and --process=I."
        )
    return slurm_launch(environment)


def _number(value: int | None, name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(f"CONTRASTIVE_{name}")
    if value is not None or text is None:
        return value
    if not text.isdecimal():
        raise ConfigError(f"CONTRASTIVE_{name} = {text!r} has to be a number.")
    return int(text)


def slurm_launch(environment: Mapping[str, str]) -> Launch | None:
    """The place of a task in its SLURM step; None outside a step, or where it is the only task.

    The coordinator runs on the step's first node, on a port that depends on the job.
    """
    needed = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID")
    if not all(name in environment for name in needed) or environment["SLURM_NTASKS"] == "1":
        return None
    port = 61440 + int(environment["SLURM_JOB_ID"]) % 4096
    first = re.sub(r"\[(\d+).*", r"\1", environment["SLURM_STEP_NODELIST"]).partition(",")[0]
    return Launch(
        coordinator=f"{first}:{port}",
        count=int(environment["SLURM_NTASKS"]),
        index=int(environment["SLURM_PROCID"]),
        devices=slurm_devices(environment),
    )


def slurm_devices(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """Which of the GPUs that a task sees are its own; None where it sees none listed.

    The GPUs of a node are dealt out evenly to the node's tasks, unless SLURM has bound each task
    to its own already: then a task sees fewer than the node has, and takes all.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES") or environment.get("SLURM_STEP_GPUS")
    on_node = environment.get("SLURM_GPUS_ON_NODE")
    if not visible and not on_node:
        return None
    seen = len(visible.split(",")) if visible else int(on_node or 0)
    tasks = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    count = int(tasks[0]) if tasks else _tasks_per_node(environment)
    if seen < count or (on_node and seen < int(on_node)):
        return tuple(range(seen))
    share, local = seen // count, int(environment.get("SLURM_LOCALID", "0"))
    return tuple(range(local * share, (local + 1) * share))


def _tasks_per_node(environment: Mapping[str, str]) -> int:
    nodes = int(environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_NNODES", "1")))
    return max(int(environment["SLURM_NTASKS"]) // nodes, 1)


def start(launch: Launch, *, limit: float, lost_after: float) -> Processes:
    """Waits for all processes, then connects them.

    Args:
      launch: This process's place.
      limit: Seconds to wait for the others.
      lost_after: Seconds of silence after which a process counts as lost.

    Raises:
      LostProcess: Not all came within ``limit``: says which.
    """
    meet(launch, limit)
    return _connect(
        limit,
        lost_after,
        coordinator_address=launch.coordinator,
        num_processes=launch.count,
        process_id=launch.index,
        local_device_ids=launch.devices,
    )


def start_detected(*, limit: float, lost_after: float) -> Processes:
    """Lets JAX find out who takes part, as it can on Cloud TPU, SLURM and Open MPI; arguments as of
    :func:`start`. A process that does not come is then reported by JAX, by ending this one.

    Raises:
      LostProcess: JAX finds nothing.
    """
    return _connect(limit, lost_after)


def _connect(limit: float, lost_after: float, **place: Any) -> Processes:
    with contextlib.suppress(AttributeError):  # JAX would take SIGTERM, which the loop handles
        jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **place,
            initialization_timeout=max(int(limit), 60),
            heartbeat_timeout_seconds=int(lost_after) + 30,  # after our own message
            shutdown_timeout_seconds=30,
        )
    except (RuntimeError, ValueError) as error:
        where = f" at {place['coordinator_address']}" if place else ""
        reason = str(error).splitlines()[0]
        raise LostProcess(f"cannot join the other processes{where} ({reason}).") from error
    return Processes(jax.process_index(), jax.process_count(), lost_after=lost_after)


def meet(launch: Launch, limit: float) -> None:
    """Returns in every process once all are there.

    Before JAX takes the address: its own wait ends in an abort, without saying who is missing.

    Raises:
      LostProcess: Not all came within ``limit`` seconds.
    """
    deadline = time.monotonic() + limit
    if launch.index == 0:
        missing = _welcome(launch, deadline)
        if missing:
            raise LostProcess(_incomplete(launch, missing, limit))
        return
    host, _, port = launch.coordinator.rpartition(":")
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as link:
                link.settimeout(limit + 10)
                link.sendall(f"contrastive {launch.index}\n".encode())
                answer = link.makefile().readline().strip()
        except OSError:
            time.sleep(0.2)
            continue
        if answer == "go":
            return
        if answer:
            missing = [int(word) for word in answer.split()]
            raise LostProcess(_incomplete(launch, missing, limit))
        time.sleep(0.2)
    raise LostProcess(_incomplete(launch, [0], limit))


def _welcome(launch: Launch, deadline: float) -> list[int]:
    """Process 0's side of :func:`meet`: who is missing at the deadline."""
    links: dict[int, socket.socket] = {}
    with _listen(launch, deadline) as server:
        while len(links) < launch.count - 1 and time.monotonic() < deadline:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                link, _ = server.accept()
                link.settimeout(2)
                word, _, number = link.makefile().readline().strip().partition(" ")
            except OSError:
                continue
            if word == "contrastive" and number.isdecimal() and 0 < int(number) < launch.count:
                links[int(number)] = link
        missing = [i for i in range(1, launch.count) if i not in links]
        answer = " ".join(map(str, missing)) or "go"
        for link in links.values():
            with contextlib.suppress(OSError), link:
                link.sendall(f"{answer}\n".encode())
                link.recv(1)  # the other side closes first: the port is free again at once
    return missing


def _listen(launch: Launch, deadline: float) -> socket.socket:
    port = int(launch.coordinator.rpartition(":")[2])
    six = socket.has_dualstack_ipv6()
    while True:
        try:
            if six:
                return socket.create_server(
                    ("::", port), family=socket.AF_INET6, dualstack_ipv6=True
                )
            return socket.create_server(("", port))
        except OSError as error:
            if time.monotonic() > deadline:
                raise LostProcess(
                    f"cannot listen at {launch.coordinator} ({error.strerror}); choose another "
                    "port."
                ) from error
            time.sleep(0.2)


def _incomplete(launch: Launch, missing: list[int], limit: float) -> str:
    there = launch.count - len(missing)
    names = ", ".join(map(str, missing))
    joined = f"{there} of {launch.count} processes" if 0 not in missing else "process 0 not seen:"
    rest = "joined" if 0 not in missing else "nobody answers"
    return (
        f"{joined} {rest} at {launch.coordinator} within {limit:g} s; missing: process {names}. "
        "Start it, or allow more time with --start-timeout."
    )
