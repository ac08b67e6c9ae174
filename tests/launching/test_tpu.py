"""TPU VMs with a stand-in for gcloud that checks every argument."""

import json
import pathlib
import shlex
import subprocess
import sys

import pytest

from contrastive import cli
from contrastive.errors import ConfigError, UserError
from contrastive.launching.tpu import Runner, Tpu, TpuMachine, check_launch, describe_all

COMMIT = "c0ffee" * 6 + "c0ff"


def settings(topology="v5e:4x4", **given):
    needed = {"zone": "z", "repository": "https://host/it's.git", "bucket": "b"}
    return TpuMachine(**{"topology": topology, **needed, "poll_seconds": 1.0, **given})


@pytest.fixture
def cloud(tool, tmp_path, monkeypatch):
    """``cloud(**scenario)``: prepares the stand-in; ``cloud.calls()``: what it was asked."""
    stand_in = pathlib.Path(__file__).with_name("gcloud.py")
    tool("gcloud", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {stand_in} "$@"\n')
    monkeypatch.setenv("GCLOUD_STAND_IN", str(tmp_path))

    def prepare(**scenario):
        (tmp_path / "scenario.json").write_text(json.dumps(scenario))

    def calls():
        lines = (tmp_path / "calls.jsonl").read_text().splitlines()
        return [
            command.split()[-1] + (f" {_kind(options['command'])}" if "command" in options else "")
            for command, _, options in map(json.loads, lines)
        ]

    prepare.calls = calls  # pyright: ignore
    return prepare


def _kind(line):
    kinds = {"git clone": "set up", "setsid": "start", "echo status": "status", "tail": "log"}
    return next(kind for words, kind in kinds.items() if words in line)


@pytest.fixture
def go(make):
    """Runs a job to its end; returns status and sentences."""

    def run(**given):
        job, said = make("/mnt/bucket/run", launcher="tpu"), []
        runner = Runner(
            Tpu(settings(**given), job.name), job, COMMIT, say=said.append, sleep=lambda _: None
        )
        return runner.run(), said

    return run


def test_created_set_up_run_watched_and_deleted(cloud, go):
    cloud(states=[["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]], statuses=["running", 0])
    status, said = go()
    assert status == 0
    calls = [call for call in cloud.calls() if call != "ssh log"]
    assert calls == [
        "describe", "create", "describe", "describe", "describe", "ssh set up", "ssh start",
        "describe", "ssh status", "describe", "ssh status", "delete",
    ]  # fmt: skip
    assert said[-1] == "shapes-1 is deleted."


def test_asked_for_again_when_it_is_taken_away(cloud, go):
    cloud(states=[["ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDED"], ["ACTIVE"]], statuses=["running", 0])
    status, said = go(spot=True)
    assert status == 0
    calls = [call for call in cloud.calls() if call != "ssh log"]
    assert calls.count("create") == 2
    again = calls.index("create", calls.index("create") + 1)
    assert calls[again - 1] == "delete"
    assert calls[again + 1 :][:4] == ["describe", "ssh set up", "ssh start", "describe"]
    assert any("was taken away" in words for words in said)


def test_one_that_is_there_already_is_not_created_but_watched(cloud, go, tmp_path):
    cloud(states=[], statuses=[0])
    (tmp_path / "alive.json").write_text(json.dumps({"shapes-1": ["ACTIVE"]}))
    assert go(delete=False)[0] == 0
    assert "create" not in cloud.calls()
    assert "delete" not in cloud.calls()


def test_exit_statuses_decide(cloud, go):
    cloud(states=[["ACTIVE"]], statuses=[2])
    status, said = go()
    assert status == 2
    assert "the machines are kept to look at" in said[-1]
    assert "delete" not in cloud.calls()


def test_failures_are_counted_and_stops_are_not(cloud, go, tmp_path):
    cloud(states=[["ACTIVE"]], statuses=[75, 143, 143, 75, 75])
    status, _ = go(failures=2)
    assert status == 75
    assert cloud.calls().count("ssh start") == 5


@pytest.mark.parametrize("topology", ["v5e:16x16", "v5e:16x16*2", "v5p:4x4x8"])
@pytest.mark.parametrize(
    "given", [{}, {"spot": True}, {"reserved": True, "project": "p", "service_account": "s@p"}]
)
def test_every_command_is_one_that_gcloud_takes(cloud, make, topology, given):
    cloud(states=[["ACTIVE"]], statuses=[0])
    job = make("/mnt/bucket/run", launcher="tpu")
    for command in describe_all(Tpu(settings(topology, **given), job.name), job, COMMIT):
        subprocess.run(command, check=True, capture_output=True)
        line = next((c.partition("=")[2] for c in command if c.startswith("--command=")), "true")
        subprocess.run(["bash", "-n"], input=line, text=True, check=True)


def test_the_stand_in_refuses_what_gcloud_refuses(cloud, make):
    cloud(states=[["ACTIVE"]])
    create = Tpu(settings(), "x").create()
    for wrong in (["--spots"], ["--spot", "--reserved"], ["--node-count=2"], ["--spot=yes"]):
        assert subprocess.run([*create, *wrong], capture_output=True).returncode == 1
    assert subprocess.run(create[:-1], capture_output=True).returncode == 1


def test_the_line_that_starts_a_run_does_so_once(make, tmp_path):
    """In a real shell, with a command in place of the run."""
    home = tmp_path / "home"
    (home / "contrastive" / ".venv" / "bin").mkdir(parents=True)
    program = home / "contrastive" / ".venv" / "bin" / "contrastive"
    program.write_text('#!/bin/sh\necho "$@" >>~/seen; echo "$CONTRASTIVE_LAUNCH" >~/record; '
                       "sleep 2; exit 75\n")  # fmt: skip
    program.chmod(0o755)
    job = make("/mnt/bucket/run", launcher="tpu")
    tpu = Tpu(settings(), job.name)
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}

    def ssh(command):
        line = next(c.partition("=")[2] for c in command if c.startswith("--command="))
        done = subprocess.run(
            ["bash", "-c", line], cwd=home, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    ssh(tpu.start(job))
    assert ssh(["--command=sleep 0.5"]) == ""
    ssh(tpu.start(job))
    assert ssh(tpu.statuses()) == "status running"
    while (said := ssh(tpu.statuses())) == "status running":
        pass
    assert said == "status 75"
    (home / "run.status").unlink()  # as after a reboot: no run, and no word of it
    assert ssh(tpu.statuses()) == "status 75"
    given = (home / "seen").read_text().splitlines()
    assert given == ["train --config=recipe.py:it's --workdir=/mnt/bucket/run --coordinator=auto"]
    assert json.loads((home / "record").read_text()) == job.record


def test_a_quota_refusal_is_a_sentence(cloud, go):
    cloud(states=[], refuse="Quota limit 'TPUV5sLitepodPerProject' has been exceeded. Limit: 16")
    with pytest.raises(UserError, match=r"gcloud refused .*exceeded.*have it raised"):
        go()


def test_no_capacity_is_a_sentence(cloud, go):
    cloud(states=[], refuse="There is no more capacity in the zone z")
    with pytest.raises(UserError, match="there is no free capacity: try another zone"):
        go()


def test_code_that_the_workers_would_not_get_is_refused(make):
    job = make("/mnt/bucket/run", launcher="tpu")
    git = job.record["git"]
    git.update(commit=COMMIT, dirty=True, changed=["a.py"])
    with pytest.raises(UserError, match=r"differs from commit c0ffee.*a\.py.*commit and push"):
        check_launch(job, force=False)
    assert check_launch(job, force=True) == COMMIT
    git.update(commit=None)
    with pytest.raises(UserError, match="there is no commit here"):
        check_launch(job, force=True)


def test_wrong_settings_are_a_sentence():
    with pytest.raises(ConfigError, match="exclude each other"):
        settings(spot=True, reserved=True)
    with pytest.raises(ConfigError, match="has to be at least 0"):
        settings(poll_seconds=-1.0)
    with pytest.raises(ConfigError, match="has no TPUs"):
        settings("h100:8x8")


def run(*arguments):
    train = ("--", "train", "--config=configs/emoji.py:clip", "--workdir=/mnt/bucket/run")
    given = ("--on=launch/tpu.py:v5e-16", "--topology=none", "--on.zone=z", "--on.name=mine")
    return cli.main(["launch", "tpu", *given, *arguments, *train])


def test_a_dry_run_prints_every_command(capsys):
    assert run("--dry-run") == 0
    words = shlex.split(capsys.readouterr().out)
    assert words.count("gcloud") == 7
    assert "--accelerator-type=v5litepod-16" in words
    assert run("--dry-run", "--delete") == 0
    assert "queued-resources delete mine --zone=z --force --quiet" in capsys.readouterr().out


def test_a_workdir_that_hosts_do_not_share_is_a_sentence(capsys):
    assert run("--dry-run", "--on.mount=/elsewhere") == 2
    assert "/mnt/bucket/run is on a disk that no other host sees" in capsys.readouterr().err


def test_an_answer_that_is_not_known_is_a_sentence(tool, go):
    tool("gcloud", "#!/bin/sh\necho Hello\n")
    with pytest.raises(UserError, match="in a form that is not known"):
        go()


def test_a_missing_gcloud_is_a_sentence(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert run() == 2
    assert "the command gcloud is not on this machine: install" in capsys.readouterr().err
