"""The fault harness: each case is a real event in a real process, under the supervisor.

After each of them the run goes on from the last good step, and its metrics, example ids and final
evaluation equal those of the run that nothing happened to, to the last bit.
"""

import json
import os
import random
import re
import shutil
import signal
import time

import pytest

from .conftest import assert_unharmed, children, finish, next_child

# Every test starts several processes, one after another.
pytestmark = pytest.mark.timeout(3600)


@pytest.mark.slow
def test_kills_and_aborts_are_survived_under_the_supervisor(
    new_run, tiny_faulty, whole, once, tried
):
    tried("kill −9", "kill during a save", "abort")
    run = new_run(tiny_faulty)
    faults = [once("kill", 2), once("kill during save", 6), once("abort", 8)]
    said = run.train("--restarts=3", faults=faults)
    assert "the run was ended by SIGKILL after" in said
    assert "restart 3 of 3" in said
    assert_unharmed(run, whole)


@pytest.mark.slow
def test_a_nan_that_comes_once_is_survived(new_run, tiny_faulty, whole, once, tried):
    tried("NaN in a batch")
    run = new_run(tiny_faulty)
    said = run.train("--restarts=2", faults=[once("nan", 5)])
    assert "the loss is nan at step 5; checkpoint 3 is good" in said
    assert_unharmed(run, whole)


@pytest.mark.slow
def test_a_nan_that_stays_ends_the_run_for_good(new_run, tiny_faulty):
    run = new_run(tiny_faulty)
    always = [{"kind": "nan", "at": at} for at in (1, 2, 3, 4)]
    said = run.train("--restarts=9", faults=always, status=3)
    assert "not finite twice in a row" in said


@pytest.mark.slow
def test_termination_with_grace_and_during_a_save(
    new_run, tiny_faulty, whole, once, tried, tmp_path
):
    tried("SIGTERM", "SIGTERM during a save")
    run = new_run(tiny_faulty)
    status = 128 + signal.SIGTERM
    run.train("--restarts=2", faults=[once("terminate during save", 3)], status=status)
    sent = tmp_path / "sent"
    process = run.start("--restarts=2", faults=[{"kind": "wait", "at": 8, "for": str(sent)}])
    run.wait_for(lambda: run.lines()[-1]["step"] >= 6)
    process.send_signal(signal.SIGTERM)
    sent.touch()
    finish([process], [status], timeout=30)  # the grace of a preemption
    run.train()
    assert_unharmed(run, whole)


@pytest.mark.slow
def test_the_clock_jumps(new_run, tiny_faulty, whole, once, tried):
    tried("clock jump", times=2)
    run = new_run(tiny_faulty)
    jumps = [once("clock", 4, seconds=-86400), once("clock", 8, seconds=300)]
    run.train("--config.train.watchdog_seconds=250.0", faults=jumps)
    assert_unharmed(run, whole)


@pytest.mark.slow
def test_data_that_becomes_unreadable(new_run, tiny_faulty, shapes_csv, tmp_path, whole, tried):
    tried("unreadable data")
    folder = tmp_path / "data"
    shutil.copytree(shapes_csv.parent, folder)
    config = tiny_faulty.copy_and_resolve_references()
    config.data.source = str(folder / "pairs.csv")
    run = new_run(config)
    run.train("--config.stop_at=5")
    picture = folder / "red-circle-0.png"
    content = picture.read_bytes()
    picture.write_bytes(content[:50])
    said = run.train("--restarts=2", status=2)
    assert "data has changed since the checkpoint" in said
    picture.write_bytes(content)
    run.train()
    assert_unharmed(run, whole)


@pytest.mark.slow
def test_two_runs_in_one_workdir(new_run, tiny_faulty, whole, tried, tmp_path):
    tried("second run in a workdir")
    run = new_run(tiny_faulty)
    refused = tmp_path / "refused"
    first = run.start(faults=[{"kind": "wait", "at": 6, "for": str(refused)}])
    run.wait_for(lambda: len(run.lines()) >= 3)
    said = run.train(status=2)
    assert f"pid {first.pid}" in said
    refused.touch()
    finish([first], [0])
    assert_unharmed(run, whole)


@pytest.mark.slow
def test_a_hang_is_ended_by_the_watchdog_and_restarted(new_run, tiny_faulty, whole, once, tried):
    tried("hang")
    run = new_run(tiny_faulty)
    said = run.train(
        "--restarts=1", "--config.train.watchdog_seconds=20.0",
        faults=[once("sleep", 9, seconds=9000)],
    )  # fmt: skip
    assert re.search(r"nothing was finished for 20 s after step [678]\b", said)  # batch 9 hangs
    assert_unharmed(run, whole)


@pytest.mark.slow
def test_a_hang_before_the_first_step_is_ended_and_restarted(
    new_run, tiny_faulty, whole, once, tried
):
    tried("hang before the first step")
    run = new_run(tiny_faulty)
    said = run.train(
        "--restarts=1", "--config.train.patience_seconds=60.0",
        faults=[once("sleep", 1, seconds=9000)],
    )  # fmt: skip
    assert "before the first step while compiling and doing the first step (config" in said
    assert_unharmed(run, whole)


@pytest.mark.slow
def test_one_of_two_supervised_processes_dies(new_run, tiny_faulty, once, tried):
    tried("one of two processes")
    untouched, run = new_run(tiny_faulty), new_run(tiny_faulty)
    finish(untouched.start_several(2), [0, 0])
    options = ("--restarts=3", "--lost-after=5", "--start-timeout=600")
    finish(run.start_several(2, *options, faults=[once("kill", 8, process=1)]), [0, 0])
    assert_unharmed(run, untouched)


@pytest.mark.slow
def test_twenty_kills_at_random_moments(new_run, tiny_faulty, tried, tmp_path):
    """Some while a run starts, some between any two steps, during saves or not; each life gets
    some way, and the last steps wait until all kills are done."""
    tried("kill −9", times=20)
    config = tiny_faulty.copy_and_resolve_references()
    config.total_steps = 500
    config.checkpoint.every = 20
    untouched, run = new_run(config), new_run(config)
    untouched.train()
    done = tmp_path / "done"
    slowly = [
        {"kind": "wait", "at": 490, "for": str(done)},
        {"kind": "sleep", "at": "always", "seconds": 0.01},
    ]
    supervisor = run.start("--restarts=20", "--restart-wait=0", faults=slowly)
    rng, begin, start = random.Random(0), time.monotonic(), None
    for _ in range(20):
        child = next_child(supervisor)
        if start is not None and rng.random() < 0.25:  # while it imports, restores, compiles
            time.sleep(rng.uniform(0, start))
        else:
            before = _newest_step(run)
            run.wait_for(lambda b=before: _newest_step(run) != b)  # it has resumed
            start = start or time.monotonic() - begin
            goal = min(_newest_step(run) + rng.randint(0, 35), 480)
            run.wait_for(lambda g=goal: _newest_step(run) >= g)
            time.sleep(rng.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        run.wait_for(lambda c=child: c not in children(supervisor.pid))
    done.touch()
    (said,) = finish([supervisor], [0])
    assert said.count("the run was ended by SIGKILL") == 20
    assert_unharmed(run, untouched)


def _newest_step(run):
    """The step of the last whole line; 0 where there is none yet."""
    try:
        lines = (run.workdir / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((json.loads(line)["step"] for line in reversed(lines) if line.endswith("}")), 0)
