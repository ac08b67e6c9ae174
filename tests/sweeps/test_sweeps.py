"""Sweeps of tiny runs, end to end: agents in processes of their own, failures, signals, memory."""

import collections
import io
import json
import os
import signal
import subprocess
import sys
import time

import jax
import pyarrow.parquet
import pytest
from rich.console import Console

from contrastive.cli import main
from contrastive.commands.sweep import run_trial, status
from contrastive.errors import UserError
from contrastive.sweeps import local, memory
from contrastive.sweeps.description import load_sweep
from contrastive.sweeps.folder import State, SweepFolder, begin, make_trials
from contrastive.sweeps.launchers import LAUNCHERS, LaunchSettings

RATES = "grid({'optimizer.learning_rate': (1e-3, 1e-4), 'batch_size': (8, 16)})"


@pytest.fixture
def planned(sweep_file, tmp_path):
    """Writes the folder of a sweep, in which nothing has run."""

    def plan(settings, **fields):
        description = load_sweep(str(sweep_file(settings, **fields)))
        folder = SweepFolder(tmp_path / "out")
        folder.plan(description, make_trials(description))
        return folder

    return plan


def one(folder, index):
    stream = io.StringIO()
    return run_trial(
        folder.path, index, devices=jax.devices()[:1], stream=stream
    ), stream.getvalue()


def steps(folder, name):
    lines = (folder.workdir(name) / "metrics.jsonl").read_text().splitlines()
    return [entry["step"] for entry in map(json.loads, lines) if "loss" in entry]


def agent(file, output, *options):
    command = [sys.executable, "-m", "contrastive.cli", "sweep", str(file), f"--output={output}"]
    environment = os.environ | {"XLA_FLAGS": ""}
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_one_trial_is_a_training_run_that_resumes_and_is_not_run_again(planned):
    folder = planned("({'seed': 3},)", metric="train/loss")
    (trial,) = folder.trials()
    assert folder.state(trial.name) == State()
    assert one(folder, 0)[0] == 0
    state = folder.state(trial.name)
    assert (state.status, state.attempts) == ("done", 1)
    assert state.seconds > 0
    assert state.peak_bytes > 1 << 26
    assert (folder.workdir(trial.name) / "evaluation.json").is_file()
    assert json.loads((folder.workdir(trial.name) / "config.json").read_text())["seed"] == 3
    before = (folder.workdir(trial.name) / "metrics.jsonl").read_bytes()
    found, said = one(folder, 0)
    assert found == 0
    assert "is done" in said
    assert folder.state(trial.name) == state
    assert (folder.workdir(trial.name) / "metrics.jsonl").read_bytes() == before


def test_a_trial_that_is_held_is_left_to_its_holder(planned):
    folder = planned("({},)")
    (trial,) = folder.trials()
    with folder.claimed(trial.name) as mine:
        assert mine
        folder.write_state(trial.name, begin(State()))
        assert folder.state(trial.name).status == "running"
        found, said = one(folder, 0)
        assert found == local.BUSY
        assert "another process" in said
    cut_off = folder.state(trial.name)
    assert (cut_off.status, cut_off.attempts) == ("waiting", 1)
    assert cut_off.reason.startswith("cut off on")


def test_a_failure_is_written_down_with_its_reason(planned):
    folder = planned("({'data.source': 'mistyped.csv'},)")
    (trial,) = folder.trials()
    with pytest.raises(UserError, match="There is no file"):
        one(folder, 0)
    state = folder.state(trial.name)
    assert (state.status, state.attempts, state.final) == ("failed", 1, True)
    assert "There is no file" in state.reason


@pytest.mark.slow
def test_the_table_names_the_best_by_metric_and_direction(planned, capsys):
    folder = planned("grid({'optimizer.learning_rate': (1e-2, 1e-9)})", metric="train/scale")
    for index in range(2):
        ended, said = one(folder, index)
        assert ended == 0, said
    scales = [
        json.loads((folder.workdir(trial.name) / "metrics.jsonl").read_text().splitlines()[-1])
        for trial in folder.trials()
    ]
    larger = max(range(2), key=lambda index: scales[index]["scale"])
    for direction, expected in (("max", larger), ("min", 1 - larger)):
        (file := folder.path / "sweep.json").write_text(
            json.dumps({**json.loads(file.read_text()), "direction": direction})
        )
        assert status(folder.path, console=Console()) == 0
        said = capsys.readouterr().out
        assert f"Best by train/scale ({direction}): trial {expected}, optimizer.learning" in said
        assert "2 done." in said
    table = pyarrow.parquet.read_table(folder.path / "results.parquet").to_pylist()
    assert [row["optimizer.learning_rate"] for row in table] == [1e-2, 1e-9]
    assert [row["train/scale"] for row in table] == [line["scale"] for line in scales]
    head = (folder.path / "results.md").read_text().splitlines()[2]
    assert head.startswith("| trial | optimizer.learning_rate | status |")
    assert (folder.path / "results.csv").read_text().startswith('"trial","name","status"')
    file.write_text(json.dumps({**json.loads(file.read_text()), "metric": "train/scal"}))
    with pytest.raises(UserError, match="'train/scal'; did you mean 'train/scale'"):
        status(folder.path)


@pytest.mark.slow
def test_E17_two_agents_share_a_sweep_and_a_killed_run_goes_on(sweep_file, tmp_path):
    file = sweep_file(f"{RATES} + {RATES}", metric="train/loss", fixed={"total_steps": 40})
    folder = SweepFolder(tmp_path / "out")
    agents = [agent(file, folder.path) for _ in range(2)]
    killed = None

    def kill_one():
        nonlocal killed
        if not (folder.path / "sweep.json").exists():
            return False
        for trial in folder.trials():
            metrics = folder.workdir(trial.name) / "metrics.jsonl"
            saved = folder.workdir(trial.name) / "checkpoints"
            if folder.state(trial.name).status == "running" and metrics.exists():
                done = [p for p in saved.glob("*") if p.name.isdecimal()]
                if len(done) > 1:
                    pid = int(folder.state(trial.name).host.rpartition(" ")[2])
                    os.kill(pid, signal.SIGKILL)
                    killed = trial.name
                    return True
        return False

    wait_until(kill_one)
    said = [process.communicate(timeout=300)[0] for process in agents]
    assert [process.returncode for process in agents] == [0, 0], said
    trials = folder.trials()
    assert len(list((folder.path / "trials").iterdir())) == len(trials) == 4
    states = {trial.name: folder.state(trial.name) for trial in trials}
    assert {state.status for state in states.values()} == {"done"}
    attempts = collections.Counter(state.attempts for state in states.values())
    assert attempts == {1: 3, 2: 1}
    assert states[killed].attempts == 2
    for trial in trials:  # every step once, though one was cut off
        assert steps(folder, trial.name) == list(range(1, 41))
        config = json.loads((folder.workdir(trial.name) / "config.json").read_text())
        assert config["batch_size"] == trial.settings["batch_size"]
    log = (folder.workdir(killed) / "log.txt").read_text()
    assert "Resumed" in log or "at step" in log


@pytest.mark.slow
def test_E17_all_processes_of_a_trial_train_the_same_settings(sweep_file, tmp_path):
    file = sweep_file(RATES, processes=2, metric="train/loss")
    folder = SweepFolder(tmp_path / "out")
    agents = [agent(file, folder.path) for _ in range(2)]
    said = [process.communicate(timeout=500)[0] for process in agents]
    assert [process.returncode for process in agents] == [0, 0], said
    seen = set()
    for trial in folder.trials():
        assert folder.state(trial.name).attempts == 1
        log = (folder.workdir(trial.name) / "log.txt").read_text()
        assert "in 2 processes" in log
        seen.add((trial.recipe.batch_size, trial.recipe.optimizer.learning_rate))
    assert len(seen) == 4


@pytest.mark.slow
def test_a_signal_stops_the_trials_after_a_checkpoint_and_the_command_goes_on(sweep_file, tmp_path):
    file = sweep_file("({},)", fixed={"total_steps": 2000, "checkpoint.every": 0})
    folder = SweepFolder(tmp_path / "out")
    process = agent(file, folder.path)

    def trains():
        found = list((folder.path / "trials").glob("*/metrics.jsonl"))
        return found and found[0].read_text().count("\n") > 2

    wait_until(trains)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130, said
    (trial,) = folder.trials()
    state = folder.state(trial.name)
    assert (state.status, state.attempts, state.reason) == ("waiting", 0, "told to stop")
    (saved,) = (folder.workdir(trial.name) / "checkpoints").iterdir()
    assert int(saved.name) == steps(folder, trial.name)[-1]


# What agents decide, on trials whose process is a short script.

PROGRAM = """
import fcntl, json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
name = json.loads((folder / "sweep.json").read_text())["trials"][int(sys.argv[2].split("=")[1])]
workdir = folder / "trials" / name
file = workdir / "state.json"
attempts = json.loads(file.read_text())["attempts"] if file.exists() else 0
lock = os.open(workdir / ".claim", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(75)
def write(status, **more):
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps({"status": status, "attempts": attempts + 1, **more}))
    whole.replace(file)
"""


@pytest.fixture
def scripted(monkeypatch):
    """Trials run this Python text in the place of training: it knows ``workdir``, ``attempts`` and
    ``write(status)``, and holds the claim."""

    def use(text):
        class Scripted(subprocess.Popen):
            def __init__(self, command, **options):
                super().__init__([sys.executable, "-c", PROGRAM + text, *command[4:]], **options)

        monkeypatch.setattr(local.subprocess, "Popen", Scripted)

    return use


def submitted(folder, **settings):
    said = []
    indices = [trial.index for trial in folder.trials()]
    local.submit(folder.path, indices, LaunchSettings(say=said.append, **settings))
    return said, [folder.state(trial.name) for trial in folder.trials()]


def test_a_process_that_dies_without_a_word_is_retried_and_reported(planned, scripted):
    scripted("os.abort()")
    folder = planned("({},)")
    said, (state,) = submitted(folder, retries=2)
    assert (state.status, state.attempts) == ("failed", 3)
    assert "ended with signal 6; see" in state.reason
    assert sum(" starts." in text for text in said) == 3
    said, (state,) = submitted(folder, retries=0)  # the command again tries again
    assert state.attempts == 4


def test_what_would_fail_again_is_not_retried(planned, scripted):
    scripted("write('failed', reason='wrong', final=True); sys.exit(2)")
    folder = planned("({},)")
    _, (state,) = submitted(folder, retries=5)
    assert (state.attempts, state.reason) == (1, "wrong")
    _, (state,) = submitted(folder, retries=5)
    assert state.attempts == 2


def test_a_trial_that_is_told_to_stop_before_it_begins_waits(planned, scripted):
    scripted("import time; time.sleep(600)")
    folder, said = planned("({},)"), []
    agent = local._Agent(folder, [0], LaunchSettings(say=said.append))
    assert agent._round()
    agent._pass_on(signal.SIGINT, None)
    wait_until(lambda: not agent._round())
    assert said[-1].endswith("): waiting.")
    assert folder.state(folder.trial(0).name).attempts == 0


def test_E17_two_agents_run_no_trial_twice(planned, scripted):
    scripted(
        "write('running')\n"
        "(workdir / 'ran').write_text((workdir / 'ran').read_text() + 'x' if attempts else 'x')\n"
        "time.sleep(.2)\n"
        "if 'learning_rate=0.001,batch_size=16' in name and not attempts: os.kill(os.getpid(), 9)\n"
        "write('done')"
    )
    folder = planned(RATES)
    indices = range(4)
    said = [], []
    agents = [
        local._Agent(folder, indices, LaunchSettings(say=text.append, parallel=2)) for text in said
    ]
    more = [True, True]
    while any(more):
        more = [agent._round() for agent in agents]
        time.sleep(0.02)
    ran = {
        trial.name: (folder.workdir(trial.name) / "ran").read_text() for trial in folder.trials()
    }
    assert sorted(ran.values()) == ["x", "x", "x", "xx"]
    states = [folder.state(name) for name in ran]
    assert {state.status for state in states} == {"done"}
    assert sorted(state.attempts for state in states) == [1, 1, 1, 2]
    assert all(any("starts" in text for text in texts) for texts in said)


def test_trials_run_side_by_side_where_memory_allows(planned, monkeypatch):
    class Trial:
        def __init__(self, held, largest):
            self.held, self.largest, self.trial = held, largest, folder.trial(0)

        def measure(self):
            return self.held

    folder = planned("grid({'batch_size': (8, 16)})")
    agent = local._Agent(folder, [0, 1], LaunchSettings(parallel=2))
    free = 0
    monkeypatch.setattr(local, "available", lambda: free)
    assert agent._there_is_room()  # alone, always
    agent.running = [Trial(50, 100)]
    free = 10_000
    assert not agent._there_is_room()  # it is not under way: nothing is known yet
    (folder.workdir(folder.trial(0).name) / "metrics.jsonl").write_text("{}")
    assert agent._there_is_room()
    free = 171  # 50 that the first will take again, and 1.2 × 100
    assert agent._there_is_room()
    free = 169
    assert not agent._there_is_room()
    agent.largest = 200  # of a trial that has ended
    free = 389
    assert not agent._there_is_room()


def test_memory_of_processes_and_of_a_container(tmp_path):
    assert memory.resident(os.getpid()) > 1 << 26
    assert memory.resident(2**22 + 1) == 0
    free = memory.available(tmp_path)
    assert free > 0
    for name, text in (("max", "1000"), ("current", "900"), ("stat", "inactive_file 300\nanon 5")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory.available(tmp_path) == 400


def test_a_launcher_gets_the_trials_that_are_left(sweep_file, tmp_path, monkeypatch, capsys):
    got = []

    def submit(folder, indices, settings):
        got.append((folder, list(indices), settings.parallel, settings.retries))
        return "job 17"

    monkeypatch.setitem(LAUNCHERS, "test", "contrastive.sweeps.local:submit")
    monkeypatch.setattr(local, "submit", submit)
    file, output = sweep_file(RATES, retries=4), tmp_path / "out"
    command = ["sweep", str(file), f"--output={output}", "--launcher=test", "--parallel=3"]
    assert main(command) == 0
    assert got == [(output, [0, 1, 2, 3], 3, 4)]
    assert "Handed over: job 17." in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, message",
    [
        (["x.py"], "say where the sweep lives"),
        (["d", "--status", "--trial=0"], "choose one of --status and --trial"),
        (["d", "--status", "--parallel=2"], "--parallel goes with FILE.py"),
        (["x.py", "--output=o", "--processes=2"], "go with --trial"),
        (["x.py", "--output=o"], "there is no file 'x.py'"),
        (["d", "--trial=0"], "d is not the folder of a sweep"),
    ],
)
def test_options_that_do_not_go_together(options, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *options]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
