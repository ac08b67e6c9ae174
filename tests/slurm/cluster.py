"""A real SLURM on this machine: one controller, two node daemons, in a folder; no munge, no root's
configuration is touched. Packages: ``apt-get install --no-install-recommends slurm-wlm``.

    python tests/slurm/cluster.py FOLDER    # prints SLURM_CONF, stops at the end of its input
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_NODES = ("node1", "node2")
# The processes of a step meet at the first node, so its name has to resolve: the daemons and their
# jobs see another /etc/hosts than everybody else.
_IN_NAMESPACE = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')

_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=0,batch_sched_delay=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
PropagatePrioProcess=1
KillWait=30
SlurmdTimeout=30
ReturnToService=2
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=4000
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=4000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=600 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> list[str]:
    """The tools of SLURM that are not on this machine."""
    return [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]


@contextlib.contextmanager
def cluster(folder: pathlib.Path):
    """Starts the daemons; gives the environment for SLURM's commands; ends jobs and daemons.

    Args:
      folder: A new folder with a short name: sockets and spools lie in it.
    """
    for name in ("run", "log", "state", "spool"):
        (folder / name).mkdir(parents=True)
    conf = folder / "slurm.conf"
    conf.write_text(
        _CONF.format(
            host=socket.gethostname(),
            user=os.environ.get("USER", "root"),
            folder=folder,
            nodes=_NODES,
            ports=_free_ports(3),
        )
    )
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()} {' '.join(_NODES)}\n")
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": PATH}
    daemons = (["slurmctld"], *(["slurmd", "-N", name] for name in _NODES))
    try:
        for command in daemons:
            inside = [*_IN_NAMESPACE, str(hosts), *command]
            subprocess.run(inside, env=environment, check=True, timeout=60)
        _wait_until_idle(environment)
        yield environment
    finally:
        _stop(folder, environment)


def _wait_until_idle(environment: dict[str, str]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        said = ask(environment, "sinfo", "-h", "-N", "-o", "%T", "-p", "low", check=False)
        if said.split() == ["idle"] * len(_NODES):
            return
        time.sleep(0.2)
    raise AssertionError("the nodes of the cluster did not come up")


def ask(environment: dict[str, str], *command: str, check: bool = True) -> str:
    """What a command of SLURM prints; they hang without a controller, so each has its time."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
    return done.stdout


def _stop(folder: pathlib.Path, environment: dict[str, str]) -> None:
    with contextlib.suppress(Exception):
        ask(environment, "scancel", "--user", environment.get("USER", "root"), check=False)
        end = time.monotonic() + 60
        while time.monotonic() < end and ask(environment, "squeue", "-h", check=False).strip():
            time.sleep(0.5)
    daemons = []
    for file in (folder / "run").glob("*.pid"):
        with contextlib.suppress(OSError, ValueError):
            daemons.append(int(file.read_text()))
            os.kill(daemons[-1], signal.SIGTERM)
    end = time.monotonic() + 60  # they write into the folder to their end
    while time.monotonic() < end and any(map(_is_alive, daemons)):
        time.sleep(0.2)


def _is_alive(pid: int) -> bool:
    """Not gone, and not waiting for a parent to ask for its status."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


if __name__ == "__main__":
    with cluster(pathlib.Path(sys.argv[1]).absolute()) as found:
        print(f"export SLURM_CONF={found['SLURM_CONF']}", flush=True)
        sys.stdin.read()
