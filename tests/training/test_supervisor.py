"""The supervisor with small programs as children: when it starts them again, and when not."""

import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from contrastive.training.supervisor import Supervisor, without_option


@pytest.fixture
def supervise(tmp_path):
    """Runs a program whose n-th life begins with ``life = n``; returns status, lives, sentences."""

    def run(program, restarts=3):
        count, said = tmp_path / "count", []
        count.write_text("")
        start = f"import os, signal, sys, time; file = {str(count)!r}\n"
        start += "open(file, 'a').write('x'); life = os.path.getsize(file)\n"
        command = [sys.executable, "-c", start + textwrap.dedent(program)]
        status = Supervisor(command, restarts, say=said.append, wait=0.01).run()
        return status, len(count.read_text()), said

    return run


def test_what_ends_well_or_by_a_user_error_is_not_started_again(supervise):
    assert supervise("sys.exit(0)") == (0, 1, [])
    assert supervise("sys.exit(2)") == (2, 1, [])


def test_what_is_killed_or_aborts_is_started_again(supervise):
    status, lives, said = supervise(
        """
        if life == 1: os.kill(os.getpid(), signal.SIGKILL)
        if life == 2: os.abort()
        if life == 3: sys.exit(75)
        if life == 4: sys.exit(74)
        """,
        restarts=4,
    )
    assert (status, lives) == (0, 5)
    assert re.search(r"ended by SIGKILL after \d+ s; restart 1 of 4", said[0])
    assert "ended by SIGABRT" in said[1]
    assert "ended with status 75" in said[2]
    assert "ended with status 74" in said[3]


def test_a_child_that_stopped_in_order_is_not_started_again(supervise):
    assert supervise("sys.exit(143)")[:2] == (143, 1)
    assert supervise("os.kill(os.getpid(), signal.SIGTERM) if life == 1 else 0")[:2] == (0, 2)


def test_a_new_run_is_started_only_once(tmp_path):
    seen = tmp_path / "seen"
    program = f"import sys; print(sys.argv[1], file=open({str(seen)!r}, 'a')); sys.exit(75)"
    first, again = ([sys.executable, "-c", program, name] for name in ("new", "on"))
    Supervisor(first, 2, say=lambda text: None, wait=0.01, again=again).run()
    assert seen.read_text().split() == ["new", "on", "on"]


def test_restarts_are_used_up(supervise):
    status, lives, said = supervise("os.kill(os.getpid(), signal.SIGKILL)", restarts=2)
    assert (status, lives) == (128 + signal.SIGKILL, 3)
    assert said[-1] == "the run was ended by SIGKILL; all 2 restarts are used up."


def test_a_loss_that_is_not_finite_is_tried_once_more(supervise):
    assert supervise("sys.exit(3 if life == 1 else 0)")[:2] == (0, 2)
    status, lives, said = supervise("sys.exit(3)", restarts=9)
    assert (status, lives) == (3, 2)
    assert "twice in a row" in said[-1]


def test_workers_that_outlive_the_child_are_killed(supervise, tmp_path):
    worker = tmp_path / "worker"
    supervise(
        f"""
        if life == 1:
            pid = os.fork()
            if pid == 0: time.sleep(600)
            open({str(worker)!r}, "w").write(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    end = time.monotonic() + 5
    while time.monotonic() < end and _alive(int(worker.read_text())):
        time.sleep(0.02)
    assert not _alive(int(worker.read_text()))


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


PARENT = """
import sys
from contrastive.training.supervisor import Supervisor
child = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143));"
child += "print('ready', flush=True); time.sleep(60)"
sys.exit(Supervisor([sys.executable, "-c", child], 5, say=print).run())
"""


def test_a_signal_is_passed_on_and_ends_it():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(signal.SIGTERM)
        assert parent.communicate(timeout=30)[0] == ""
    assert parent.returncode == 143


def test_the_option_is_left_out_of_the_childs_command():
    arguments = ["-m", "contrastive.cli", "train", "--restarts=3", "--new", "--restarts", "4", "-x"]
    assert without_option(arguments, "--restarts") == [
        "-m", "contrastive.cli", "train", "--new", "-x",
    ]  # fmt: skip
