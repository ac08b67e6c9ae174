"""The batch script on a real SLURM, with a small program in place of the run: what it does about
signals, preemption, cancelling and failures, in seconds."""

import pathlib
import time

import pytest

from contrastive.launching.job import Job
from contrastive.launching.slurm import SlurmMachine, array_script, submit, submit_script

from .cluster import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
# Stands where Python stands: `launch check` is fine, a run goes on until a file is there.
PROGRAM = """#!/bin/bash
[ "$3" = launch ] && exit 0
cd {folder}
echo "begin $SLURM_PROCID ${{SLURM_RESTART_COUNT:-0}} ${{SLURM_ARRAY_TASK_ID:-}}" >>begun
trap 'exit 143' TERM
trap 'exit 138' USR1
until [ -e finish ]; do sleep 0.2; done
exit $(cat finish)
"""


class Submitted:
    """A job, or an array, of the program."""

    def __init__(self, slurm, folder, monkeypatch, **settings):
        self.slurm, self.folder = slurm, folder
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, slurm[name])
        program = folder / "python"
        program.write_text(PROGRAM.format(folder=folder))
        program.chmod(0o755)
        self.machine = SlurmMachine(**{"nodes": 2, "python": str(program), **settings})

    def submit(self):
        record = {"configuration": "k", "code": "c"}
        job = Job(name="a", arguments=("train",), workdir=self.folder / "run", record=record)
        self.number = submit(job, self.machine, self.folder)
        self.log = self.folder / "run" / "logs" / f"slurm-{self.number}.log"

    def begun(self):
        file = self.folder / "begun"
        return sorted(file.read_text().splitlines()) if file.exists() else []

    def starts(self, count):
        return len({line.split()[2] for line in self.begun()}) == count

    def gone(self):
        return not ask(self.slurm, "squeue", "-h", "-j", self.number, check=False).strip()

    def finish(self, status):
        (self.folder / "finish").write_text(f"{status}\n")


@pytest.fixture
def submitted(slurm, tmp_path, monkeypatch):
    return lambda **settings: Submitted(slurm, tmp_path, monkeypatch, **settings)


def wait(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.2)


def test_a_run_that_ends_well_ends_the_job(submitted):
    job = submitted(tasks=2)
    job.submit()
    wait(lambda: len(job.begun()) == 4)
    assert job.begun() == [f"begin {i} 0 " for i in range(4)]
    job.finish(0)
    wait(job.gone)
    assert "the run ended with status 0" in job.log.read_text()


def test_preempted_it_is_requeued(submitted, slurm):
    job = submitted()
    job.submit()
    wait(lambda: len(job.begun()) == 2)
    ask(slurm, "sbatch", "--partition=high", "--nodes=2", "--ntasks-per-node=8",
        "--output=/dev/null", "--wrap=sleep 1")  # fmt: skip
    wait(lambda: job.starts(2))
    job.finish(0)
    wait(job.gone)
    said = job.log.read_text()
    assert "start 0 | the run ended with status 143" in said
    assert "start 1 | the run ended with status 0" in said
    assert not (job.folder / "run" / "launch" / "failures-0").exists()


def test_before_the_end_of_the_time_it_is_requeued(submitted, slurm):
    job = submitted()
    job.submit()
    wait(lambda: len(job.begun()) == 2)
    ask(slurm, "scancel", "--batch", "--signal=USR1", job.number)
    wait(lambda: job.starts(2))
    job.finish(0)
    wait(job.gone)
    assert "start 0 | the run ended with status 138" in job.log.read_text()


def test_cancelled_it_does_not_come_back(submitted, slurm):
    job = submitted()
    job.submit()
    wait(lambda: len(job.begun()) == 2)
    ask(slurm, "scancel", job.number)
    wait(job.gone)
    assert "requeued" not in job.log.read_text()
    assert job.starts(1)


@pytest.mark.parametrize("status, starts", [(2, 1), (75, 2)])
def test_failures_are_counted_and_what_a_person_has_to_put_right_is_not_tried_again(
    submitted, status, starts
):
    job = submitted(failures=1)
    job.finish(status)
    job.submit()
    wait(job.gone)
    assert job.starts(starts)
    said = job.log.read_text()
    assert said.count(f"the run ended with status {status}") == starts
    assert ("failed 2 times, not started again" in said) == (status == 75)


def test_a_task_of_an_array_is_requeued_alone(submitted, slurm):
    job = submitted(nodes=1)
    sweep: pathlib.Path = job.folder / "50% of 'a sweep'"
    for made in ("logs", "launch"):
        (sweep / made).mkdir(parents=True)
    text = array_script(sweep, [0, 1], 2, job.machine, "sweep-y")
    job.number = submit_script(text, sweep / "launch" / "array.sbatch")
    wait(lambda: len(job.begun()) == 2)
    # Its job id is that of the whole array.
    ask(slurm, "scancel", "--batch", "--signal=USR1", f"{job.number}_1")
    wait(lambda: "begin 0 1 1" in job.begun())
    job.finish(0)
    wait(job.gone)
    assert job.begun() == ["begin 0 0 0", "begin 0 0 1", "begin 0 1 1"]
    assert "status 138" in (sweep / "logs" / "trial-1.log").read_text()


def test_an_array_has_a_task_for_each_trial(submitted, slurm):
    job = submitted(nodes=1)
    sweep: pathlib.Path = job.folder / "sweep"
    (sweep / "logs").mkdir(parents=True)
    (sweep / "launch").mkdir()
    text = array_script(sweep, [0, 2, 5], 2, job.machine, "sweep-x")
    job.number = submit_script(text, sweep / "launch" / "array.sbatch")
    wait(lambda: len(job.begun()) == 2)  # two at a time
    job.finish(0)
    wait(job.gone)
    assert [line.split()[-1] for line in job.begun()] == ["0", "2", "5"]
    assert (sweep / "logs" / "trial-5.log").exists()
