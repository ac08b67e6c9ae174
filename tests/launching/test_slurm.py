"""Batch scripts and the comparison of nodes; with a real SLURM: tests/slurm."""

import os
import subprocess

import pytest

from contrastive import cli
from contrastive.errors import ConfigError, UserError
from contrastive.launching.check import check_nodes, node_report, read_reports, write_report
from contrastive.launching.slurm import SlurmMachine, array_script, script
from contrastive.recipe import load_recipe


def test_a_script_asks_for_what_was_given(make, tmp_path):
    machine = SlurmMachine(
        nodes=8, gpus=8, tasks=2, time="1-00:00:00", partition="p", account="a", memory="0",
        options=("--exclusive",), setup=("module load cuda",), signal_seconds=90, python="/py",
    )  # fmt: skip
    text = script(make("/shared/a run"), machine, tmp_path)
    asked = [x.removeprefix("#SBATCH ") for x in text.splitlines() if x.startswith("#SBATCH")]
    assert asked == [
        "--job-name=Shapes_1", "--time=1-00:00:00", "--partition=p", "--account=a", "--nodes=8",
        "--ntasks-per-node=2", "--gpus-per-node=8", "--mem=0",
        '--output="/shared/a run/logs/slurm-%j.log"', "--open-mode=append", "--requeue",
        "--signal=B:USR1@90", "--exclusive",
    ]  # fmt: skip
    assert "\nmodule load cuda\n" in text
    assert "@" not in text.replace("USR1@90", "").replace('"$@"', "")
    assert "--config=recipe.py:it'\"'\"'s" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "[ yes = yes ]" in text
    assert "[ no = yes ]" in script(make("/r"), SlurmMachine(requeue=False), tmp_path)


def test_the_planner_is_asked_about_the_whole_machine():
    assert SlurmMachine(nodes=8, gpus=8, chip="h100").topology == "h100:8x8"
    assert SlurmMachine(nodes=8, gpus=8).devices == 64
    assert SlurmMachine(nodes=2).topology is None


@pytest.mark.parametrize(
    "given, words",
    [
        ({"gpus": 8, "tasks": 3}, "--on.tasks=3 processes a node cannot share --on.gpus=8"),
        ({"gpus": 2, "tasks": 4}, "cannot share"),
        ({"nodes": 0}, "--on.nodes=0 has to be at least 1"),
        ({"gpus": -8}, "--on.gpus=-8 has to be at least 0"),
        ({"cpus": 0}, "--on.cpus=0 has to be at least 1"),
        ({"failures": -1}, "--on.failures=-1 has to be at least 0"),
        ({"time": "a day"}, "has to be MINUTES, HH:MM:SS or D-HH:MM:SS"),
        ({"options": ("exclusive",)}, "'exclusive' is not an option of sbatch"),
    ],
)
def test_wrong_settings_are_a_sentence(given, words):
    with pytest.raises(ConfigError, match=words):
        SlurmMachine(**given)


def test_what_a_person_names_cannot_add_to_the_script(make, tmp_path):
    machine = SlurmMachine(partition='a"b $(touch x) #c\\', setup=("unset -f nothing",))
    lines = script(make("/r/50% $(x)"), machine, tmp_path).splitlines()
    assert r'#SBATCH --partition="a\"b $(touch x) #c\\"' in lines
    assert '#SBATCH --output="/r/50%% $(x)/logs/slurm-%j.log"' in lines
    assert lines.index("unset -f nothing") < lines.index("set -u")  # modules are not written for it
    for workdir, given in {
        "/r\ntouch x": {}, "/r": {"partition": "p\ntouch x"}, "/s": {"options": ("--x\ntouch x",)}
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match="has a line break"):
            script(make(workdir), SlurmMachine(**given), tmp_path)


@pytest.mark.parametrize("told", ["", "kill -USR1 $PPID; sleep 0.2; "])
def test_a_task_of_an_array_speaks_of_itself_alone(tmp_path, tool, told):
    """The job id of an array's last task is that of the array."""
    tool("srun", f"#!/bin/bash\n{told}exit 138\n")
    for name in ("squeue", "scontrol", "scancel"):
        end = "echo RUNNING" if name == "squeue" else "exit 1"
        tool(name, f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/asked\n{end}\n')
    text = array_script(tmp_path, [3], 1, SlurmMachine(), "s")
    given = {"JOB_ID": "7", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "3", "NNODES": "1"}
    environment = {f"SLURM_{key}": value for key, value in given.items()}
    done = subprocess.run(
        ["bash"], input=text, text=True, capture_output=True,
        env={**os.environ, **environment, "SLURM_JOB_NODELIST": "n1"},
    )  # fmt: skip
    assert done.returncode == 138, done.stderr
    asked = (tmp_path / "asked").read_text().splitlines()
    first = ["scancel --signal=USR1 7_3"] if told else []
    assert asked == [*first, "squeue --noheader --job=7_3 --format=%T", "scontrol requeue 7_3"]


def report(node, **changed):
    return {
        "node": node, "host": node, "code": "c", "configuration": "k", "versions": {"jax": "1"},
        "gpus": 8, "driver": "580", "network": {"NCCL_IB_HCA": "mlx5"}, **changed,
    }  # fmt: skip


RECORD = {"code": "c", "configuration": "k"}


def test_nodes_that_are_alike_and_as_launched_pass():
    check_nodes(RECORD, [report("a"), report("b")], ["a", "b"], gpus=8)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"gpus": 7}, "c has 7 GPUs of 8 .driver: 580."),
        ({"driver": "570"}, "NVIDIA driver: c has 570, the others have 580"),
        ({"versions": {"jax": "2"}}, "version of jax: c has 2, the others have 1"),
        ({"versions": {}}, "version of jax: c has none, the others have 1"),
        ({"network": {}}, "variable NCCL_IB_HCA: c has none, the others have mlx5"),
        ({"code": "x"}, "code of the package: c has x, launched was c"),
        ({"configuration": "x"}, "configuration: c has x, launched was k"),
    ],
)
def test_the_node_that_differs_is_named(changed, words):
    reports = [report("a"), report("b"), report("c", **changed)]
    with pytest.raises(UserError, match=f"not fit for the job: {words}. Put these right"):
        check_nodes(RECORD, reports, ["a", "b", "c"], gpus=8)


def test_all_nodes_with_other_code_than_launched_are_named():
    with pytest.raises(UserError, match="a has x, b has x, launched was c"):
        check_nodes(RECORD, [report("a", code="x"), report("b", code="x")], ["a", "b"], gpus=0)


def test_a_node_that_does_not_share_the_folder_is_named():
    with pytest.raises(UserError, match="b, c left no report in the workdir, which all nodes"):
        check_nodes(RECORD, [report("a")], ["a", "b", "c"], gpus=0)


def test_a_node_says_what_it_is(tmp_path):
    recipe = load_recipe("configs/emoji.py:clip")
    given = node_report(recipe, {"SLURMD_NODENAME": "n7", "NCCL_DEBUG": "WARN", "HOME": "/"})
    assert (given["node"], given["network"]) == ("n7", {"NCCL_DEBUG": "WARN"})
    assert {"jax", "flax", "python"} <= given["versions"].keys()
    write_report(tmp_path / "nodes", given)
    assert read_reports(tmp_path / "nodes") == [given]


def run(*arguments, workdir):
    train = ("--", "train", "--config=configs/emoji.py:clip", f"--workdir={workdir}")
    return cli.main(["launch", "slurm", "--on=launch/slurm.py:cpu", *arguments, *train])


@pytest.mark.parametrize(
    "given, words",
    [
        (["--on.nodes"], "--on.nodes has no value; write --on.nodes=VALUE"),
        (
            ["--on=launch/slurm.py:h999"],
            "of launch/slurm.py fails (ValueError: launch/slurm.py:h999 ",
        ),
        (
            ["--on=launch/gke.py:v9"],
            "of launch/gke.py fails (KeyError: 'v9'); see what get_machine",
        ),
        (["--on.nodes=3", "--on.gpus=1"], "batch_size = 256 cannot be cut evenly over 3 devices"),
    ],
)
def test_wrong_options_are_a_sentence(capsys, tmp_path, given, words):
    assert run("--dry-run", *given, workdir=tmp_path / "run") == 2
    assert words in capsys.readouterr().err


def test_a_dry_run_prints_the_script_and_makes_nothing(capsys, tmp_path):
    assert run("--dry-run", "--on.nodes=2", workdir=tmp_path / "run") == 0
    assert "#SBATCH --nodes=2\n" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_what_is_missing_or_refused_is_a_sentence(capsys, tmp_path, tool, monkeypatch):
    workdir = tmp_path / "run"
    sbatch = "#!/bin/sh\necho 'sbatch: error: {}' >&2; exit 1\n"
    for said, words in {
        "Munge encode failed: Failed to access": "start it (systemctl start munge)",
        "Unable to contact slurm controller (connect failure)": "the server does not answer",
        "Batch job submission failed: Job violates accounting/QOS policy": "is used up",
        "resolve_ctls_from_dns_srv: res_nsearch error": "knows no SLURM cluster",
        "Batch job submission failed: Invalid job array specification": "MaxArraySize",
        "invalid partition specified: x": "sinfo lists the partitions",
    }.items():
        tool("sbatch", sbatch.format(said))
        assert run(workdir=workdir) == 2
        captured = capsys.readouterr().err.splitlines()[-1]
        assert words in captured
        assert said in captured
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(workdir=workdir) == 2
    assert (
        "the command sbatch is not on this machine: run this on a login" in capsys.readouterr().err
    )


def test_a_job_is_submitted_with_its_record_beside_the_run(capsys, tmp_path, tool):
    tool("sbatch", "#!/bin/sh\necho '17;cluster'\n")
    workdir = tmp_path / "run"
    assert run(workdir=workdir) == 0
    assert f"job 17; its log: {workdir / 'logs' / 'slurm-17.log'}" in capsys.readouterr().err
    assert (workdir / "launch" / "job.sbatch").read_text().startswith("#!/bin/bash")
    assert '"launcher": "slurm"' in (workdir / "launch" / "record.json").read_text()
