"""Faults of what a run reads and writes, each under the supervisor: checkpoints that are damaged
while the run is down, a disk that is full for a while, shards that cannot be read."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from contrastive.data.convert import convert
from contrastive.data.sources import open_source

from .conftest import assert_unharmed, finish, next_child

# Every test starts several processes, one after another.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@contextlib.contextmanager
def down(supervisor):
    """The attempt is killed, and the supervisor does not see it before the block ends."""
    child = next_child(supervisor)
    supervisor.send_signal(signal.SIGSTOP)
    os.kill(child, signal.SIGKILL)
    while pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    yield
    supervisor.send_signal(signal.SIGCONT)


def truncate(folder):
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > 1:
            os.truncate(file, file.stat().st_size // 2)


def hear(process, words):
    """What a process says until these words are in it."""
    said = b""
    while part := os.read(process.stdout.fileno(), 4096):
        said += part
        if words.encode() in said:
            return said.decode()
    raise AssertionError(said.decode())


def test_checkpoints_that_are_damaged_while_the_run_is_down(
    new_run, tiny_faulty, whole, tried, tmp_path
):
    tried("truncated checkpoint", "empty step folder")
    run = new_run(tiny_faulty)
    gates = {8: tmp_path / "8", 11: tmp_path / "11"}
    waits = [{"kind": "wait", "at": at, "for": str(gate)} for at, gate in gates.items()]
    supervisor = run.start("--restarts=2", "--restart-wait=0", faults=waits)
    folder = run.workdir / "checkpoints"
    run.wait_for(lambda: run.steps_saved()[-1:] == [6])
    with down(supervisor):
        truncate(folder / "6")
        gates[8].touch()
    run.wait_for(lambda: run.steps_saved()[-1:] == [9])
    with down(supervisor):
        shutil.rmtree(folder / "9")
        (folder / "9").mkdir()
        gates[11].touch()
    (said,) = finish([supervisor], [0])
    assert said.count("the run was ended by SIGKILL") == 2
    for damaged, good in ((6, 3), (9, 6)):
        assert f"Skipping checkpoint {damaged}: it is damaged" in said
        assert f"at step {good}." in said
    assert_unharmed(run, whole)


def test_no_good_checkpoint_is_left_to_a_person(new_run, tiny_faulty, tmp_path):
    """Never from step 0 in silence, and not tried again: no restart would change it."""
    run = new_run(tiny_faulty)
    gate = {"kind": "wait", "at": 5, "for": str(tmp_path / "never")}
    supervisor = run.start("--restarts=9", "--restart-wait=0", faults=[gate])
    run.wait_for(lambda: run.steps_saved() == [3])
    with down(supervisor):
        truncate(run.workdir / "checkpoints" / "3")
    (said,) = finish([supervisor], [2])
    assert "none of the checkpoints [3]" in said
    assert "restart 2" not in said
    assert run.steps_saved() == [3]


def test_a_disk_that_is_full_for_two_attempts(new_run, tiny_faulty, whole, tried, tmp_path):
    """No file may grow: what a disk does that is full, or a quota that is used up."""
    tried("full disk", times=2)
    run, room = new_run(tiny_faulty), tmp_path / "room"
    full = {"kind": "disk", "at": 5, "bytes": 600, "until": str(room)}
    supervisor = run.start("--restarts=9", "--restart-wait=0", faults=[full])
    said = hear(supervisor, "restart 2 of 9")
    room.touch()
    said += finish([supervisor], [0])[0]
    assert "cannot write" in said or "writing checkpoint" in said
    assert "File too large" in said
    assert "the run ended with status 74" in said
    assert_unharmed(run, whole)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_others_fill_up_and_clear(
    new_run, tiny_faulty, whole, tried, tmp_path, small_disk
):
    tried("full disk", times=2)
    run, gate = new_run(tiny_faulty), tmp_path / "gate"
    run.workdir, ballast = small_disk / "run", small_disk / "ballast"
    wait = {"kind": "wait", "at": 8, "for": str(gate)}
    supervisor = run.start("--restarts=99", "--restart-wait=0", faults=[wait])
    run.wait_for(lambda: run.steps_saved()[-1:] == [6] and run.lines()[-1]["step"] == 6)
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    gate.touch()
    said = hear(supervisor, "restart 2 of 99")
    ballast.unlink()
    said += finish([supervisor], [0])[0]
    assert "No space left on device" in said
    assert "the run ended with status 74" in said
    assert_unharmed(run, whole)


@pytest.fixture(params=["webdataset", "array_record"])
def shards(request, tiny_faulty, tmp_path):
    """The pictures in six shards, and the recipe that reads them as they are wanted."""
    source, folder = open_source_of(tiny_faulty), tmp_path / "shards"
    convert(source, request.param, folder, split="train", shard_size=8)
    config = tiny_faulty.copy_and_resolve_references()
    config.data.source = str(folder / "train-*.tar" if request.param == "webdataset" else folder)
    config.data.cache = str(tmp_path / "cache")
    config.data.check = "during"
    config.data.prefetch = 1
    config.data.max_bad_share = 0.5
    return config, sorted(folder.iterdir())


def open_source_of(config):
    from contrastive import config as config_lib
    from contrastive.recipe import Recipe

    return open_source(config_lib.resolve(Recipe, config, []).data, "train")


def test_shards_that_cannot_be_read_for_a_while(new_run, shards, tried, tmp_path):
    """They are gone while the run trains, still gone when it is started again, and come back."""
    tried("unreadable shard", times=2)
    config, files = shards
    untouched, run, gate = new_run(config), new_run(config), tmp_path / "gate"
    untouched.train()
    away = tmp_path / "away"
    wait = {"kind": "wait", "at": 5, "for": str(gate)}
    supervisor = run.start("--restarts=99", "--restart-wait=0", faults=[wait])
    run.wait_for(lambda: run.steps_saved() == [3])
    files[0].parent.rename(away)
    if not config.data.source.endswith(".tar"):  # ArrayRecord keeps its files open
        with down(supervisor):
            gate.touch()
        said = hear(supervisor, "restart 3 of 99")
    else:
        gate.touch()
        said = hear(supervisor, "restart 2 of 99")
        assert "cannot be read any more" in said
    away.rename(files[0].parent)
    said += finish([supervisor], [0])[0]
    assert "The run was trained on this data before." in said
    assert "Traceback" not in said
    assert_unharmed(run, untouched)
    assert not (run.workdir / "data_errors.jsonl").exists()


@pytest.mark.parametrize("shards", ["webdataset"], indirect=True)
def test_a_shard_that_is_cut_short(new_run, shards, tried, tmp_path):
    """While the run trains, its samples are passed over, counted, and the batches go on; a run that
    is started again would have other batches, so it waits for a person to put the shard back."""
    tried("damaged shard")
    config, files = shards
    untouched, run, gate = new_run(config), new_run(config), tmp_path / "gate"
    untouched.train()
    stop = {"kind": "wait", "at": 9, "for": str(tmp_path / "stop")}
    faults = [{"kind": "wait", "at": 5, "for": str(gate)}, stop]
    supervisor = run.start("--restarts=9", "--restart-wait=0", faults=faults)
    run.wait_for(lambda: run.steps_saved() == [3])
    content, times = files[0].read_bytes(), os.stat(files[0])
    os.truncate(files[0], len(content) // 2)  # the first sample is whole
    gate.touch()
    run.wait_for(lambda: run.steps_saved()[-1:] == [6])
    errors = (run.workdir / "data_errors.jsonl").read_text().splitlines()
    assert {json.loads(line)["reason"] for line in errors} == {"archive changed"}
    with down(supervisor):
        pass
    (said,) = finish([supervisor], [2])
    assert "The data has changed since the checkpoint was written" in said
    assert "restart 2" not in said
    files[0].write_bytes(content)
    os.utime(files[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "stop").touch()
    run.train()
    assert run.ids() == untouched.ids()
    assert [line["step"] for line in run.lines()] == [line["step"] for line in untouched.lines()]
