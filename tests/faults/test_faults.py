"""The fault harness: each case is a real event in a real process, under the supervisor.

After each of them the run goes on from the last good step, and its metrics, example ids and final
evaluation equal those of the run that nothing happened to, to the last bit.
"""

import os
import random
import re
import shutil
import signal
import time

import pytest

from .conftest import finish, survived


def assert_unharmed(run, whole, kind, count=1):
    assert run.lines() == whole.lines()  # no gap, no double line, every number
    assert run.ids() == whole.ids()  # no sample lost or repeated
    assert run.evaluation() == whole.evaluation()
    survived[kind] += count


@pytest.fixture
def once(tmp_path):
    def fault(kind, at, **more):
        return {"kind": kind, "at": at, "once": str(tmp_path / f"{kind}-{at}"), **more}

    return fault


def test_kills_and_aborts_are_survived_under_the_supervisor(new_run, tiny_faulty, whole, once):
    run = new_run(tiny_faulty)
    faults = [once("kill", 2), once("kill during save", 6), once("abort", 8)]
    said = run.train("--restarts=3", faults=faults)
    assert "the run was ended by SIGKILL after" in said
    assert "restart 3 of 3" in said
    assert_unharmed(run, whole, "kill −9")
    survived.update({"kill during a save": 1, "abort": 1})


@pytest.mark.slow
def test_a_nan_that_comes_once_is_survived(new_run, tiny_faulty, whole, once):
    run = new_run(tiny_faulty)
    said = run.train("--restarts=2", faults=[once("nan", 5)])
    assert "the loss is nan at step 5; checkpoint 3 is good" in said
    assert_unharmed(run, whole, "NaN in a batch")


@pytest.mark.slow
def test_a_nan_that_stays_ends_the_run_for_good(new_run, tiny_faulty):
    run = new_run(tiny_faulty)
    always = [{"kind": "nan", "at": at} for at in (1, 2, 3, 4)]
    said = run.train("--restarts=9", faults=always, status=3)
    assert "not finite twice in a row" in said


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_the_reason_and_space_lets_it_go_on(
    new_run, tiny_faulty, whole
):
    run = new_run(tiny_faulty)
    full = {"kind": "disk", "at": 5, "bytes": 600}
    said = run.train("--restarts=2", faults=[full], status=2)
    assert "cannot write" in said or "writing checkpoint" in said
    assert "File too large" in said
    assert "restart" not in said  # nobody but a person can make space
    run.train()
    assert_unharmed(run, whole, "full disk")


@pytest.mark.slow
def test_termination_with_grace_and_during_a_save(new_run, tiny_faulty, whole, once):
    run = new_run(tiny_faulty)
    status = 128 + signal.SIGTERM
    begin = time.monotonic()
    process = run.start("--restarts=2", faults=[once("terminate during save", 3)])
    finish([process], 120, [status])
    process = run.start("--restarts=2", faults=[once("sleep", 8, seconds=2)])
    run.wait_for(lambda: run.lines()[-1]["step"] >= 6)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    finish([process], 30, [status])
    assert time.monotonic() - begin < 30
    run.train()
    assert_unharmed(run, whole, "SIGTERM", 2)


@pytest.mark.slow
def test_damaged_checkpoints(new_run, tiny_faulty, whole):
    run = new_run(tiny_faulty)
    run.train("--config.stop_at=9")
    folder = run.workdir / "checkpoints"
    for file in (folder / "9").rglob("*"):
        if file.is_file() and file.stat().st_size > 1:
            os.truncate(file, file.stat().st_size // 2)
    said = run.train("--config.stop_at=10")
    assert "Skipping checkpoint 9" in said
    assert "at step 6" in said
    shutil.rmtree(folder / "10")
    (folder / "10").mkdir()
    run.train()
    assert_unharmed(run, whole, "truncated checkpoint")
    survived["empty step folder"] += 1


@pytest.mark.slow
def test_the_clock_jumps(new_run, tiny_faulty, whole, once):
    run = new_run(tiny_faulty)
    jumps = [once("clock", 4, seconds=-86400), once("clock", 8, seconds=300)]
    run.train("--config.train.watchdog_seconds=60.0", faults=jumps)
    assert_unharmed(run, whole, "clock jump", 2)


@pytest.mark.slow
def test_data_that_becomes_unreadable(new_run, tiny_faulty, shapes_csv, tmp_path, whole):
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
    assert_unharmed(run, whole, "unreadable data")


@pytest.mark.slow
def test_two_runs_in_one_workdir(new_run, tiny_faulty, whole, once):
    run = new_run(tiny_faulty)
    first = run.start(faults=[once("sleep", 6, seconds=20)])
    run.wait_for(lambda: len(run.lines()) >= 3)
    said = run.train(status=2)
    assert f"pid {first.pid}" in said
    finish([first], 120, [0])
    assert_unharmed(run, whole, "second run in a workdir")


@pytest.mark.slow
def test_a_hang_is_ended_by_the_watchdog_and_restarted(new_run, tiny_faulty, whole, once):
    run = new_run(tiny_faulty)
    said = run.train(
        "--restarts=1", "--config.train.watchdog_seconds=5.0",
        faults=[once("sleep", 9, seconds=900)],
    )  # fmt: skip
    assert re.search(r"nothing was finished for 5 s after step [678]\b", said)  # batch 9 hangs
    assert_unharmed(run, whole, "hang")


@pytest.mark.slow
def test_one_of_two_supervised_processes_dies(new_run, tiny_faulty, once):
    untouched, run = new_run(tiny_faulty), new_run(tiny_faulty)
    finish(untouched.start_several(2), 300, [0, 0])
    options = ("--restarts=3", "--lost-after=5", "--start-timeout=60")
    finish(run.start_several(2, *options, faults=[once("kill", 8, process=1)]), 300, [0, 0])
    assert_unharmed(run, untouched, "one of two processes")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_twenty_kills_at_random_moments(new_run, tiny_faulty):
    config = tiny_faulty.copy_and_resolve_references()
    config.total_steps = 400
    config.checkpoint.every = 20
    untouched, run = new_run(config), new_run(config)
    begin = time.monotonic()
    untouched.train()
    length = time.monotonic() - begin
    rng, kills = random.Random(0), 0
    supervisor = run.start(
        "--restarts=60", "--restart-wait=0", faults=[{"kind": "sleep", "at": 390, "seconds": 5}]
    )
    while kills < 20 and supervisor.poll() is None:
        children = list(_children(supervisor.pid))
        if not children:
            time.sleep(0.02)
            continue
        time.sleep(rng.uniform(0.1, 1.0) * length)
        if supervisor.poll() is None and children[0] in _children(supervisor.pid):
            os.kill(children[0], signal.SIGKILL)
            kills += 1
        while supervisor.poll() is None and children[0] in _children(supervisor.pid):
            time.sleep(0.02)
    finish([supervisor], 300, [0])
    assert kills == 20
    assert_unharmed(run, untouched, "kill −9", kills)


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
