"""Processes on this machine: their places, what ends all of them, and real ones that train."""

import json
import os
import signal
import socket
import sys
import textwrap
import threading
import time

import pytest

from contrastive import cli
from contrastive.errors import ConfigError
from contrastive.launching.group import PORT, Member, run_group
from contrastive.launching.local import LocalMachine, check_port, find_gpus


def machine(**given):
    return LocalMachine(**{"processes": 2, "devices": 4, "platform": "cpu", **given})


def test_simulated_devices():
    environment = machine(xla_flags="--xla_x").environment(1)
    assert environment["CONTRASTIVE_COORDINATOR"] == f"localhost:{PORT}"
    assert environment["CONTRASTIVE_PROCESS"] == "1"
    assert environment["CONTRASTIVE_PROCESSES"] == "2"
    assert environment["XLA_FLAGS"] == "--xla_x --xla_force_host_platform_device_count=4"
    assert environment["JAX_PLATFORMS"] == "cpu"


def test_gpus_are_dealt_out_in_order():
    four = machine(platform="gpu", devices=2, gpus=("2", "3", "6", "7"))
    assert [four.environment(i)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["2,3", "6,7"]
    assert "XLA_FLAGS" not in four.environment(0)
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "2,3"}) == ("2", "3")
    assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()


def test_more_processes_than_devices_is_a_sentence():
    with pytest.raises(ConfigError, match="need 8 GPUs and this machine has 2; ask for fewer"):
        machine(platform="gpu", gpus=("0", "1"))
    with pytest.raises(ConfigError, match="at least 1"):
        machine(processes=0)


def test_a_port_in_use_is_a_sentence():
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port={port} cannot be used.*choose another"):
            check_port(port)
    check_port(None)


@pytest.fixture
def group(tmp_path):
    """Runs small programs as a group; returns status, sentences and what the first one printed."""

    def run(*programs, grace=0.5, **environment):
        members = [
            Member(
                [sys.executable, "-c", "import os, signal, sys, time\n" + textwrap.dedent(program)],
                {"AT": PORT, "INDEX": str(i), **environment},
                str(tmp_path / f"process-{i}.log"),
            )
            for i, program in enumerate(programs)
        ]
        said, shown = [], []
        status = run_group(members, say=said.append, show=shown.append, grace=grace)
        return status, said, "".join(shown)

    return run


def test_all_end_well_and_the_first_is_shown(group, tmp_path):
    program = "print('process', os.environ['INDEX'], 'at', os.environ['AT'])"
    status, said, shown = group(program, program)
    assert (status, said) == (0, [])
    port = shown.split()[-1]
    assert shown == f"process 0 at {port}\n"
    assert (tmp_path / "process-1.log").read_text() == f"process 1 at {port}\n"


def test_the_first_to_fail_is_named_and_the_others_are_ended(group, tmp_path):
    begin = time.monotonic()
    status, said, _ = group(
        "time.sleep(600)", "print('the disk is full', file=sys.stderr); sys.exit(2)"
    )
    assert status == 2
    assert time.monotonic() - begin < 60
    assert said[0].startswith("process 1 of 2 (pid ")
    assert "the first to fail, with status 2; the others are ended" in said[0]
    assert said[0].endswith(f"{tmp_path / 'process-1.log'}; it said last: the disk is full")
    assert said[1] == "process 0 did not end within 0.5 s and is killed."


def test_who_lost_another_is_not_the_first(group):
    wait = "time.sleep(1)"
    status, said, _ = group(
        f"{wait}; sys.exit(75)", f"{wait}; os.kill(os.getpid(), signal.SIGKILL)", grace=30.0
    )
    if "process 0" in said[0]:  # it was seen alone
        assert status == 75
    else:
        assert "process 1 of 2" in said[0]
        assert "with SIGKILL" in said[0]
        assert status == 128 + 9


def test_a_signal_reaches_all_and_none_is_killed(group, tmp_path):
    program = """
    def stop(number, _):
        print('checkpoint'); sys.stdout.flush(); time.sleep(1); sys.exit(143)
    signal.signal(signal.SIGTERM, stop)
    print('ready', flush=True)
    time.sleep(600)
    """

    def tell():
        logs = [tmp_path / f"process-{i}.log" for i in range(2)]
        _wait(lambda: all("ready" in log.read_text() for log in logs))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell).start()
    status, said, shown = group(program, program, grace=0.1)
    assert (status, said) == (143, [])
    assert shown == "ready\ncheckpoint\n"


def run(*arguments):
    return cli.main(["launch", "local", *arguments])


def test_what_stands_behind_the_dashes_is_checked_before_anything_starts(capsys, tmp_path):
    assert run("--processes=2") == 2
    assert "starts a training run, and nothing stands behind --" in capsys.readouterr().err
    assert run("--", "plan", "--config=x", "--topology=cpu:1") == 2
    assert "and plan stands behind --" in capsys.readouterr().err
    train = ("--", "train", "--config=configs/emoji.py:clip", f"--workdir={tmp_path / 'run'}")
    assert run(*train, "--workers=2") == 2
    assert "--workers=2 is not an option" in capsys.readouterr().err
    assert run(*train, "--process=1") == 2
    assert "--process comes from the launcher" in capsys.readouterr().err
    assert run(*train, "--restarts=1") == 2
    assert "before --" in capsys.readouterr().err
    assert run("--restarts=-1", *train) == 2
    assert "--restarts=-1 --restart-wait=1: neither can be negative" in capsys.readouterr().err
    assert run("--processes=3", "--platform=cpu", *train) == 2
    assert "cannot be cut evenly over 3 devices" in capsys.readouterr().err
    assert run("--topology=h99:8x8", *train) == 2
    assert "there is no chip 'h99'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_prints_the_commands_and_makes_nothing(capsys, tmp_path):
    train = ("--", "train", "--config=configs/emoji.py:clip", f"--workdir={tmp_path / 'run'}")
    assert run("--processes=2", "--devices=4", "--dry-run", "--platform=cpu", *train, "--new") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "CONTRASTIVE_PROCESS=1 " in lines[1]
    assert lines[1].endswith(f"--workdir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def write(config, folder, name="recipe.py"):
    (folder / name).write_text(
        "from ml_collections import ConfigDict\ndef get_config():\n"
        f"    return ConfigDict({config.to_dict()!r})\n"
    )
    return folder / name


@pytest.mark.slow
def test_two_processes_train_and_are_started_again_when_one_is_killed(tiny, tmp_path):
    """The supervisor starts both again; the run goes on from the checkpoint."""
    import subprocess

    workdir = tmp_path / "run"
    tiny.total_steps, tiny.checkpoint.every = 400, 2
    recipe = write(tiny, tmp_path)
    command = [sys.executable, "-m", "contrastive.cli", "launch", "local", "--processes=2",
               "--devices=2", "--platform=cpu", "--restarts=2", "--restart-wait=0.1", "--",
               "train", f"--config={recipe}", f"--workdir={workdir}"]  # fmt: skip
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        log = workdir / "logs" / "process-1.log"
        _wait(lambda: len((workdir / "metrics.jsonl").read_text().splitlines()) > 10)
        group = json.loads((workdir / "launch" / "group.json").read_text())
        victim = _process_with(group[1]["environment"]["CONTRASTIVE_PROCESS"], started.pid)
        os.kill(victim, signal.SIGKILL)
        _wait(lambda: "Resuming" in (workdir / "logs" / "process-0.log").read_text())
        started.send_signal(signal.SIGTERM)
        said = started.communicate(timeout=600)[0]
    finally:
        started.kill()
    assert started.returncode == 143, said
    assert "restart 1 of 2" in said
    assert "Stopped by SIGTERM" in said
    assert log.exists()
    record = json.loads((workdir / "launch.json").read_text())
    assert record["launcher"] == "local"
    assert record["run"]["processes"] == 2
    assert record["run"]["devices"] == record["devices"] == 4
    assert "1/2 | " in log.read_text() or not log.read_text()


def _wait(condition):
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("waited too long")


def _process_with(index, ancestor):
    """The process of the run with this number, by its environment."""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                values = file.read().split(b"\0")
        except OSError:
            continue
        ours = f"CONTRASTIVE_PROCESS={index}".encode() in values
        if ours and _descends(int(entry), ancestor):
            return int(entry)
    raise AssertionError("no such process")


def _descends(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return False
