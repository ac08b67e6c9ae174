"""SLURM: a batch script from settings, and its submission.

Plain sbatch, not a library around it: the script is what a person would write, can be read before
it is submitted and kept beside the run, and needs nothing on the cluster but SLURM's own commands.
"""

import dataclasses
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence

from contrastive.errors import ConfigError
from contrastive.launching.job import Job
from contrastive.launching.record import VARIABLE
from contrastive.launching.settings import check_at_least
from contrastive.launching.tools import run_tool
from contrastive.whole import whole_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmMachine:
    """What a job asks SLURM for."""

    nodes: int = 1
    gpus: int = 0  # of each node; 0: CPUs
    tasks: int = 1  # processes a node; the GPUs of a node are dealt out to them
    chip: str | None = None  # the GPU in the planner's words, such as h100; None: no plan
    time: str = "24:00:00"  # after which the job is requeued and goes on
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    cpus: int | None = None  # of each task
    memory: str | None = None  # of each node, such as 500G; "0": all
    requeue: bool = True  # after preemption, the end of the time, and failures
    failures: int = 3  # how often a job that failed by itself is requeued
    signal_seconds: int = 300  # so long before the end of the time the run writes its checkpoint
    setup: tuple[str, ...] = ()  # lines of bash before anything else: modules, variables
    options: tuple[str, ...] = ()  # further options of sbatch, such as --exclude=node7
    python: str = sys.executable  # on the nodes

    def __post_init__(self) -> None:
        check_at_least(self, nodes=1, tasks=1, gpus=0, cpus=1, failures=0, signal_seconds=0)
        if self.gpus and self.gpus % self.tasks:
            raise ConfigError(
                f"--on.tasks={self.tasks} processes a node cannot share --on.gpus={self.gpus} "
                f"evenly; --on.tasks=1 gives all to one."
            )
        if not re.fullmatch(r"(\d+-)?\d+(:\d\d){0,2}", self.time):
            raise ConfigError(f"--on.time={self.time} has to be MINUTES, HH:MM:SS or D-HH:MM:SS.")
        bad = [option for option in self.options if not option.startswith("--")]
        if bad:
            raise ConfigError(
                f"--on.options: {bad[0]!r} is not an option of sbatch (--NAME=VALUE)."
            )

    @property
    def topology(self) -> str | None:
        """In the planner's words."""
        return f"{self.chip}:{self.nodes}x{self.gpus}" if self.chip and self.gpus else None

    @property
    def devices(self) -> int | None:
        """Over all nodes; None: as many as JAX finds."""
        return self.nodes * self.gpus or None


def header(machine: SlurmMachine, name: str, log: str) -> list[str]:
    """The ``#SBATCH`` lines that every job has."""
    given = {
        "job-name": re.sub(r"[^\w.-]+", "_", name),
        "time": machine.time,
        "partition": machine.partition,
        "account": machine.account,
        "qos": machine.qos,
        "nodes": machine.nodes,
        "ntasks-per-node": machine.tasks,
        "cpus-per-task": machine.cpus,
        "gpus-per-node": machine.gpus or None,
        "mem": machine.memory,
        "output": log,
        "open-mode": "append",
    }
    lines = [f"#SBATCH --{k}={_quoted(str(v))}" for k, v in given.items() if v is not None]
    lines.append("#SBATCH --requeue" if machine.requeue else "#SBATCH --no-requeue")
    lines.append(f"#SBATCH --signal=B:USR1@{machine.signal_seconds}")
    lines += [f"#SBATCH {option}" for option in machine.options]
    if bad := next((line for line in lines if not line.isprintable()), None):
        raise ConfigError(f"{bad!r} has a line break, and sbatch takes one line; leave it out.")
    return lines


def _quoted(text: str) -> str:
    """A value as sbatch reads it: its quotes are like those of a shell, but nothing is expanded."""
    if re.fullmatch(r"[\w./:,+@%-]*", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _log(folder: pathlib.Path, name: str) -> str:
    """A log file whose name has SLURM's replacements, in a folder that has none."""
    return str(folder / "logs").replace("%", "%%") + f"/{name}"


# In the script, @NAME@ is replaced. Notes for who changes it:
# - srun ends its step with SIGKILL when it is itself told to end, so signals go through scancel.
# - A preempted job's processes get SIGTERM from SLURM, and the script does not; they write a
#   checkpoint and end with 143. Who was cancelled must not come back: its state is no longer
#   RUNNING then (COMPLETING), while a preempted job is running until its grace time is over.
# - After "scontrol requeue" SLURM ends the script; it waits for that.
# - The job id of one task of an array is that of the array: commands given it reach every task.
# - Lines of a person (modules, conda) are not written for "set -u".
_START = r"""
cd @FOLDER@ || exit 2
python=@PYTHON@
run=@RUN@
@SETUP@
set -u
[ -n "${SLURM_CPUS_PER_TASK:-}" ] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
start="${SLURM_RESTART_COUNT:-0}"
job=$SLURM_JOB_ID
[ -n "${SLURM_ARRAY_TASK_ID:-}" ] && job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
say() { echo "$(date -u +%FT%TZ) $(hostname) job $job start $start | $*"; }
say "nodes: $SLURM_JOB_NODELIST"
"""
_CHECK = r"""
# Every node reports what it is, one compares; a job that cannot run does not begin.
export @VARIABLE@="$(cat "$run/launch/record.json")"
reports="$run/launch/nodes/$SLURM_JOB_ID-$start"
rm -rf "$reports"
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --kill-on-bad-exit=0 \
    "$python" -m contrastive.cli launch check --report --folder="$reports" -- @COMMAND@
"$python" -m contrastive.cli launch check --folder="$reports" --gpus=@GPUS@ \
    --nodes="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)" -- @COMMAND@ || exit $?
"""
_RUN = r"""
# Before the end of the time: the processes write a checkpoint after the same step, and end.
trap 'say "told to stop: a checkpoint is written"; scancel --signal=USR1 "$job"' USR1
trap : TERM
srun --ntasks="$((SLURM_NNODES * @TASKS@))" --ntasks-per-node=@TASKS@ --kill-on-bad-exit=0 \
    --wait=0 "$python" -m contrastive.cli @COMMAND@ &
step=$!
wait $step; status=$?
while kill -0 $step 2>/dev/null; do wait $step; status=$?; done
wait $step 2>/dev/null; last=$?
[ $last -ne 127 ] && status=$last
say "the run ended with status $status"

requeue() {
    [ @REQUEUE@ = yes ] || exit $status
    state=$(squeue --noheader --job="$job" --format=%T)
    if [ "$state" != RUNNING ]; then say "the job is ${state:-gone}"; exit $status; fi
    say "requeued"
    scontrol requeue "$job" || exit $status
    while :; do sleep 5; done
}
case $status in
    0|2) exit $status;;
    130|138|143) requeue;;
esac
counter="$run/launch/failures-${SLURM_ARRAY_TASK_ID:-0}"
failures=$(($(cat "$counter" 2>/dev/null || echo 0) + 1))
echo $failures >"$counter"
if [ $failures -gt @FAILURES@ ]; then
    say "failed $failures times, not started again"
    exit $status
fi
requeue
"""


def _filled(text: str, machine: SlurmMachine, folder: pathlib.Path, run: str, command: str) -> str:
    values = {
        "FOLDER": shlex.quote(str(folder)),
        "SETUP": "\n".join(machine.setup),
        "PYTHON": shlex.quote(machine.python),
        "RUN": shlex.quote(run),
        "VARIABLE": VARIABLE,
        "COMMAND": command,
        "GPUS": str(machine.gpus),
        "TASKS": str(machine.tasks),
        "REQUEUE": "yes" if machine.requeue else "no",
        "FAILURES": str(machine.failures),
    }
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def script(job: Job, machine: SlurmMachine, folder: pathlib.Path) -> str:
    """The batch script of a run.

    Args:
      job: What to run; its workdir has to be on a file system that all nodes share.
      machine: What to ask SLURM for.
      folder: Where the command is to run: recipe files are named relative to it.
    """
    lines = header(machine, job.name, _log(job.workdir, "slurm-%j.log"))
    body = _START + _CHECK + _RUN
    command = shlex.join(job.arguments)
    text = _filled(body, machine, folder, str(job.workdir), command)
    return "\n".join(["#!/bin/bash", *lines]) + "\n" + text


def array_script(
    sweep: pathlib.Path, indices: Sequence[int], parallel: int, machine: SlurmMachine, name: str
) -> str:
    """The batch script of a sweep: an array with a task for each trial.

    Args:
      sweep: The sweep's folder, which all nodes share.
      indices: Of the trials.
      parallel: How many run at a time.
      machine: What to ask SLURM for, for each trial.
      name: Of the job.
    """
    lines = header(machine, name, _log(sweep, "trial-%a.log"))
    lines.append(f"#SBATCH --array={','.join(map(str, indices))}%{parallel}")
    command = f'sweep {shlex.quote(str(sweep))} --trial="$SLURM_ARRAY_TASK_ID"'
    text = _filled(_START + _RUN, machine, pathlib.Path.cwd(), str(sweep), command)
    return "\n".join(["#!/bin/bash", *lines]) + "\n" + text


def submit(job: Job, machine: SlurmMachine, folder: pathlib.Path) -> str:
    """Writes script and record into the workdir, submits, and returns the job's id."""
    place = job.workdir / "launch"
    for made in (place, job.workdir / "logs"):
        made.mkdir(parents=True, exist_ok=True)
    with whole_file(place / "record.json") as path:
        path.write_text(job.record_text + "\n")
    (place / "failures-0").unlink(missing_ok=True)
    return submit_script(script(job, machine, folder), place / "job.sbatch")


def submit_script(text: str, file: pathlib.Path, options: Sequence[str] = ()) -> str:
    """Writes a script and hands it to sbatch; returns the job's id.

    Raises:
      UserError: There is no sbatch, or it refuses.
    """
    with whole_file(file) as path:
        path.write_text(text)
    said = run_tool(["sbatch", "--parsable", *options, str(file)], seconds=120.0)
    return said.strip().partition(";")[0]
