"""On a real SLURM of two nodes: a preempted run goes on exactly, and a sweep is an array.

make test-slurm
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from .cluster import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
ROOT = pathlib.Path(__file__).parents[2]
# Small enough for a few minutes, large enough to be caught in the middle.
EMOJI = (
    "--config=configs/emoji.py:clip", "--config.total_steps=60", "--config.batch_size=64",
    "--config.optimizer.warmup_steps=5", "--config.eval.every=0", "--config.eval.baselines=False",
    "--config.checkpoint.every=20", "--config.log.every=1", "--config.log.tensorboard=False",
)  # fmt: skip
TIMING = ("examples_per_second", "input_wait_share", "host_share")


def contrastive(environment, *arguments, status=0):
    """Runs the command as a person does; returns what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "contrastive.cli", *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait(condition, what, seconds=3600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.3)
    raise AssertionError(f"waited too long for {what}")


def lines(workdir):
    text = (workdir / "metrics.jsonl").read_text()
    entries = map(json.loads, text.splitlines())
    return [{k: v for k, v in entry.items() if k not in TIMING} for entry in entries]


def submit(environment, workdir, *train, machine="launch/slurm.py:cpu"):
    said = contrastive(
        environment, "launch", "slurm", f"--on={machine}", "--on.nodes=2", "--",
        "train", *train, f"--workdir={workdir}",
    )  # fmt: skip
    number = said.partition("job ")[2].partition(";")[0]
    return number, workdir / "logs" / f"slurm-{number}.log"


def gone(environment, number):
    return not ask(environment, "squeue", "-h", "-j", number, "-o", "%T", check=False).strip()


@pytest.fixture(scope="module")
def undisturbed(slurm, tmp_path_factory):
    """The same run in two processes of two devices, without SLURM."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    contrastive(
        slurm, "launch", "local", "--processes=2", "--devices=2", "--platform=cpu", "--",
        "train", *EMOJI, f"--workdir={workdir}",
    )  # fmt: skip
    return workdir


def test_E16_a_preempted_job_is_requeued_and_ends_as_if_nothing_had_happened(
    slurm, tmp_path, undisturbed
):
    workdir = tmp_path / "run"
    number, log = submit(slurm, workdir, *EMOJI)
    wait(lambda: len(lines(workdir)) > 5, "the first steps")
    more_urgent = ask(
        slurm, "sbatch", "--parsable", "--partition=high", "--nodes=2", "--ntasks-per-node=8",
        "--output=/dev/null", "--wrap=sleep 3",
    ).strip()  # fmt: skip
    wait(lambda: gone(slurm, more_urgent), "the job that preempts")
    wait(lambda: "start 1 | nodes" in log.read_text(), "the second start")
    wait(lambda: gone(slurm, number), "the end")
    said = log.read_text()
    assert "Stopped by SIGTERM after step" in said
    assert "start 0 | requeued" in said
    assert "Resuming" in said
    assert "start 1 | the run ended with status 0" in said
    stopped = int(said.partition("Stopped by SIGTERM after step ")[2].split()[0])
    assert 5 < stopped < 60
    assert f"at step {stopped}" in said
    ours, theirs = lines(workdir), lines(undisturbed)
    assert [line["step"] for line in ours] == list(range(1, 61))
    assert [line["loss"] for line in ours] == [line["loss"] for line in theirs]
    found, expected = (
        json.loads((folder / "evaluation.json").read_text()) for folder in (workdir, undisturbed)
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if not isinstance(value, str):
            np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    record = json.loads((workdir / "launch.json").read_text())
    assert record["launcher"] == "slurm"
    assert record["run"]["processes"] == 2
    reports = sorted((workdir / "launch" / "nodes" / f"{number}-1").iterdir())
    assert [file.stem for file in reports] == ["node1", "node2"]


def test_before_the_end_of_the_time_a_job_is_told_to_stop_and_requeued(slurm, tmp_path):
    workdir = tmp_path / "run"
    train = [*EMOJI, "--config.total_steps=4000", "--config.checkpoint.every=4000"]
    number, log = submit(slurm, workdir, *train)
    wait(lambda: len(lines(workdir)) > 5, "the first steps")
    # What SLURM sends that many seconds before the end: to the script, which tells the processes.
    ask(slurm, "scancel", "--batch", "--signal=USR1", number)
    wait(lambda: "start 1 | nodes" in log.read_text(), "the second start")
    wait(lambda: "Resuming" in log.read_text(), "the second start's first step")
    ask(slurm, "scancel", number)
    wait(lambda: gone(slurm, number), "the end")
    said = log.read_text()
    assert "told to stop: a checkpoint is written" in said
    assert "Stopped by SIGUSR1 after step" in said
    assert said.count("requeued") == 1  # who was cancelled does not come back


def test_a_job_whose_nodes_have_other_code_does_not_begin(slurm, tmp_path):
    workdir = tmp_path / "run"
    machine = tmp_path / "machine.py"
    record = workdir / "launch" / "record.json"
    line = f"""sed -i 's/"code": "/"code": "x/' {record}"""  # as if launched from other code
    machine.write_text(f"def get_machine():\n    return {{'nodes': 2, 'setup': ({line!r},)}}\n")
    number, log = submit(slurm, workdir, *EMOJI, machine=machine)
    wait(lambda: gone(slurm, number), "the end")
    assert "code of the package: node1 has" in log.read_text()
    assert "launched was x" in log.read_text()
    assert not (workdir / "metrics.jsonl").exists()


def test_a_sweep_of_six_trials_is_an_array(slurm, tmp_path, sweep_of_six):
    folder = tmp_path / "sweep"
    command = ("sweep", str(sweep_of_six), f"--output={folder}", "--launcher=slurm", "--parallel=2")
    assert "array" in contrastive(slurm, *command)
    assert "SLURM has trials" in contrastive(slurm, *command)  # nothing is submitted twice
    wait(lambda: not ask(slurm, "squeue", "-h").strip(), "the array")
    said = contrastive(slurm, "sweep", str(folder), "--status")
    assert "6 done" in said
    assert "6 trials, 6 done" in contrastive(slurm, *command)


@pytest.fixture
def sweep_of_six(tiny, tmp_path):
    tiny.total_steps, tiny.checkpoint.every = 4, 2
    recipe, file = tmp_path / "recipe.py", tmp_path / "six.py"
    recipe.write_text(
        "from ml_collections import ConfigDict\ndef get_config():\n"
        f"    return ConfigDict({tiny.to_dict()!r})\n"
    )
    file.write_text(
        "from contrastive.sweeps import *\ndef get_sweep():\n"
        f"    return Sweep(name='six', base={str(recipe)!r},\n"
        "                 settings=grid({'seed': tuple(range(6))}))\n"
    )
    return file


def test_an_unknown_partition_is_a_sentence(slurm, tmp_path):
    said = contrastive(
        slurm, "launch", "slurm", "--on.partition=nowhere", "--", "train", *EMOJI,
        f"--workdir={tmp_path / 'run'}", status=2,
    )  # fmt: skip
    assert "sinfo lists the partitions" in said
    assert os.path.exists(tmp_path / "run" / "launch" / "job.sbatch")
