"""Experiments over several sittings, in the short form and the full one; what the command of all
of them does."""

import os
import signal
import subprocess
import sys
import time
import types

import pytest

from experiments import __main__ as command
from experiments.common import training
from experiments.common.outcome import Check, Outcome, Table, load
from experiments.common.runner import Context, run


@pytest.fixture
def demo(monkeypatch):
    """An experiment; the list of the scopes that it was run in, and what its next run does."""
    ran, then = [], []

    def experiment(context: Context) -> Outcome:
        ran.append(context.scope)
        time.sleep(0.2)
        if then:
            raise then.pop()
        check = Check("It holds.", "yes", "yes", True)
        table = Table("t", "A table.", ("a",), ((len(ran),),))
        return Outcome("log_b", "T", "Q?", "P", (table,), (), (check,))

    module = types.SimpleNamespace(run=experiment)
    monkeypatch.setitem(sys.modules, "experiments.log_b.experiment", module)
    return ran, then


def test_a_short_form_is_not_run_over_a_full_one(demo, tmp_path):
    ran, _ = demo
    assert run("log_b", tmp_path, "short").scope == "short"
    full = run("log_b", tmp_path, "full")
    assert full.scope == "full"
    assert run("log_b", tmp_path, "short") == full
    assert ran == ["short", "full"]


def test_the_minutes_are_those_of_all_sittings(demo, tmp_path):
    ran, then = demo
    then.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run("log_b", tmp_path, "full")
    assert load(tmp_path) is None
    assert run("log_b", tmp_path, "full").seconds >= 0.4
    assert len(ran) == 2


def test_trials_of_the_two_forms_lie_side_by_side(tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(training, "sweep", lambda spec, folder: folders.append(folder))
    monkeypatch.setattr(training, "Trials", lambda folder: folder)
    for scope in ("short", "full"):
        context = Context(tmp_path, scope)
        training.train(context, [f"a/sweep.py:emoji-{scope}", f"a/sweep.py:texts-{scope}"])
    assert len(set(folders)) == 4


def test_publishing_runs_nothing(demo, tmp_path, monkeypatch):
    run("log_b", tmp_path / "runs" / "log_b", "full")
    started = []
    monkeypatch.setattr(command, "wait_for", lambda words: started.append(words) or 0)
    words = ["experiments", f"--output={tmp_path / 'runs'}", f"--publish={tmp_path / 'docs'}"]
    monkeypatch.setattr(sys, "argv", words)
    assert command.main() == 0
    assert started == []
    summary = tmp_path / "docs" / "README.md"
    assert "| full | 1 of 1 |" in summary.read_text()
    earlier = "| [Another](triplet/README.md) | short | 2 of 3 |  | 0.4 | 2026-11-30 |\n"
    summary.write_text(summary.read_text() + earlier)
    assert command.main() == 0
    assert summary.read_text().count("| full | 1 of 1 |") == 1
    assert earlier in summary.read_text()  # of another sitting or machine
    monkeypatch.setattr(sys, "argv", [*words, "--short", "--only", "log_b"])
    assert command.main() == 0
    assert [one[-1] for one in started] == ["--short"]


def test_what_is_interrupted_comes_to_its_end_first(tmp_path):
    child = (
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n    time.sleep(1)\n    pathlib.Path(sys.argv[1], 'saved').touch()\n"
        "    sys.exit(1)\n"
        "signal.signal(signal.SIGINT, save)\n"
        "pathlib.Path(sys.argv[1], 'began').touch()\ntime.sleep(60)\n"
    )
    parent = (
        "import sys\nfrom experiments.__main__ import wait_for\n"
        f"wait_for([sys.executable, '-c', {child!r}, {str(tmp_path)!r}])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], process_group=0, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + 120
        while not (tmp_path / "began").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60)
    assert (tmp_path / "saved").exists()
