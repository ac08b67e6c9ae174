"""Sweeps handed to SLURM and Kubernetes: what they are asked; with a real SLURM: tests/slurm."""

import json
import pathlib
import subprocess

import jsonschema
import pytest
import yaml

from contrastive import cli

SCHEMA = pathlib.Path(__file__).parents[1] / "launching" / "fixtures" / "jobset.json"
GRID = "grid({'seed': (0, 1, 2)})"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """``tool(name, script)``: a command of this name, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def write(name, script):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    return write


def sweep(file, folder, *arguments):
    return cli.main(["sweep", str(file), f"--output={folder}", *arguments])


def test_an_array_of_the_trials_that_slurm_does_not_have(sweep_file, tmp_path, tool, capsys):
    tool("squeue", f"#!/bin/sh\ncat {tmp_path}/queue 2>/dev/null || true\n")
    tool("sbatch", "#!/bin/sh\necho 7\n")
    file, folder = sweep_file(GRID, parallel=2, retries=4), tmp_path / "sweep"
    assert sweep(file, folder, "--launcher=slurm", "--on.partition=p") == 0
    assert "Handed over: array 7 of 3 trials" in capsys.readouterr().out
    text = (folder / "launch" / "array.sbatch").read_text()
    asked = [x.removeprefix("#SBATCH ") for x in text.splitlines() if x.startswith("#SBATCH")]
    assert "--array=0,1,2%2" in asked
    assert "--partition=p" in asked
    assert f'sweep {folder} --trial="$SLURM_ARRAY_TASK_ID"' in text
    assert "-gt 4 ]" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    (tmp_path / "queue").write_text("0\n2\n")
    assert sweep(file, folder, "--launcher=slurm") == 0
    said = capsys.readouterr().out
    assert "SLURM has trials 0, 2 already." in said
    assert "#SBATCH --array=1%2" in (folder / "launch" / "array.sbatch").read_text()
    (tmp_path / "queue").write_text("0\n1\n2\n")
    tool("sbatch", "#!/bin/sh\nexit 1\n")  # must not be called
    assert sweep(file, folder, "--launcher=slurm") == 0


def test_a_job_has_as_many_processes_as_a_trial(sweep_file, tmp_path, capsys):
    assert sweep(sweep_file(GRID), tmp_path / "s", "--launcher=slurm", "--on.nodes=2") == 2
    assert "a trial of this sweep has 1 process(es)" in capsys.readouterr().err


def test_one_indexed_job_of_kubernetes(sweep_file, tmp_path, tool, capsys):
    tool("kubectl", f"#!/bin/sh\ncat >{tmp_path}/text; echo created\n")
    file = sweep_file(GRID, parallel=2, retries=4)
    on = ("--on.topology=v5e:2x4", "--on.image=i", "--on.bucket=b", f"--on.mount={tmp_path}")
    assert sweep(file, tmp_path / "My sweep", "--launcher=gke", *on) == 0
    assert "kubectl get jobset sweep-my-sweep" in capsys.readouterr().out
    resource = yaml.safe_load((tmp_path / "text").read_text())
    jsonschema.validate(resource, json.loads(SCHEMA.read_text()))
    job = resource["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["completions"], job["parallelism"], job["backoffLimitPerIndex"]) == (3, 2, 4)
    (container,) = job["template"]["spec"]["containers"]
    line = container["command"][-1].replace("exec contrastive", "echo")
    done = subprocess.run(
        ["bash", "-c", line], env={"JOB_COMPLETION_INDEX": "2"}, capture_output=True, text=True
    )
    assert done.stdout == f"sweep {tmp_path / 'My sweep'} --trial=2\n"
    assert sweep(file, tmp_path / "s", "--launcher=gke", *on, "--on.topology=v5e:4x4") == 2
    assert "runs on one machine" in capsys.readouterr().err
    assert sweep(file, tmp_path / "s", "--launcher=gke", *on[:3]) == 2
    assert "no other host sees" in capsys.readouterr().err


def test_what_to_ask_for_goes_with_a_scheduler(sweep_file, tmp_path, capsys):
    assert sweep(sweep_file(GRID), tmp_path / "s", "--on.nodes=2") == 2
    assert "it goes with --launcher=slurm or gke" in capsys.readouterr().err
