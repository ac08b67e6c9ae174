"""Two real processes train one model: as one would, stop together, and end when one is lost."""

import errno
import os
import pathlib
import signal
import socket
import time

import numpy as np
import pytest

from contrastive.errors import ConfigError, StorageError, UserError, of_storage
from contrastive.processes import LOST, LostProcess, Processes
from contrastive.rendezvous import (
    Launch,
    find_launch,
    meet,
    slurm_devices,
    slurm_launch,
)

from .conftest import PATIENCE, finish, free_port

# Every test starts several processes, one after another.
pytestmark = pytest.mark.timeout(3600)


def losses(run):
    return [line["loss"] for line in run.lines()]


@pytest.mark.slow
def test_E16_a_signal_to_one_of_two_stops_both_at_a_step_and_one_goes_on_alone(
    new_run, tiny_faulty, whole, tried
):
    tried("SIGTERM to one of two processes")
    run = new_run(tiny_faulty)
    # While batch 7 is fetched, step 6 runs: the processes stop after step 8 at the latest.
    fault = {"kind": "terminate", "at": 7, "process": 1}
    status = 128 + signal.SIGTERM
    said = finish(run.start_several(2, faults=[fault]), [status, status])
    assert "in 2 processes" in said[0]
    assert "parameters" not in said[1]  # one of them speaks
    assert "Stopped by SIGTERM after step" in said[0]
    last = run.steps_saved()[-1]
    assert 6 <= last <= 8
    assert run.lines()[-1]["step"] == last
    assert {s: run.ids()[s] for s in range(1, last + 1)} == {
        s: whole.ids()[s] for s in range(1, last + 1)
    }
    assert f"at step {last}" in run.train()
    np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5)
    assert len(run.lines()) == tiny_faulty.total_steps


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_one_goes_on_as_several_which_evaluate_as_one_does(new_run, tiny_faulty, whole, count):
    run = new_run(tiny_faulty)
    run.train("--config.stop_at=5")
    (run.ids_folder / "0.jsonl").unlink()
    finish(run.start_several(count), [0] * count)
    np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5)
    after = range(6, tiny_faulty.total_steps + 1)
    assert {s: run.ids()[s] for s in after} == {s: whole.ids()[s] for s in after}
    assert run.evaluation().keys() == whole.evaluation().keys()
    for name, value in whole.evaluation().items():
        assert run.evaluation()[name] == (
            value if isinstance(value, str) else pytest.approx(value, abs=1e-4)
        )


MESHES = {  # of two processes with four devices each: what is cut between them
    "fsdp": {"fsdp": 8},
    "fsdp, tensor inside": {"fsdp": 4, "tensor": 2},
    "tensor": {"tensor": 8},
    "data, fsdp and tensor inside": {"fsdp": 2, "tensor": 2},
}


@pytest.fixture(scope="module")
def transformers(tiny_faulty):
    """Two transformers whose widths and heads divide over eight devices, for 20 steps."""
    config = tiny_faulty.copy_and_resolve_references()
    tower = {"width": 32, "heads": 8, "depth": 2, "dropout": 0.1}
    config.model.image = {"kind": "vit", "patch_size": 8, **tower}
    config.model.text = {"kind": "transformer", **tower}
    config.loss = {"name": "clip", "exchange": "ring"}
    config.total_steps, config.batch_size = 20, 16
    return config


@pytest.fixture(scope="module")
def on_one_device(new_run, transformers):
    run = new_run(transformers)
    run.train()
    return run


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_twenty_steps_of_two_processes_with_cut_parameters(
    new_run, transformers, on_one_device, mesh
):
    run = new_run(transformers)
    options = [f"--config.mesh.{axis}={size}" for axis, size in MESHES[mesh].items()]
    said = finish(run.start_several(2, *options, devices=4), [0, 0])
    assert "on 8 cpu device(s) in 2 processes, 4 in this one" in said[0]
    assert len(run.lines()) == 20
    assert abs(losses(run)[0] - losses(run)[-1]) > 0.01  # something is learned
    np.testing.assert_allclose(losses(run), losses(on_one_device), rtol=2e-5)
    if mesh != "tensor":  # there both hold, and deliver, all rows
        assert run.ids() == on_one_device.ids()


@pytest.mark.slow
def test_two_processes_pass_over_a_damaged_checkpoint_together(new_run, tiny_faulty, whole, tried):
    tried("truncated checkpoint, two processes")
    run = new_run(tiny_faulty)
    finish(run.start_several(2, "--config.stop_at=7"), [0, 0])
    for file in (run.workdir / "checkpoints" / "7").rglob("*"):
        if file.is_file() and file.stat().st_size > 1:
            os.truncate(file, file.stat().st_size // 2)
    said = finish(run.start_several(2), [0, 0])
    assert "Skipping checkpoint 7" in said[0]
    np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5)


@pytest.mark.slow
def test_one_of_two_killed_ends_the_other_and_says_which(new_run, tiny_faulty, whole, tried):
    tried("one of two processes")
    run = new_run(tiny_faulty)
    fault = {"kind": "kill", "at": 8, "process": 1}
    processes = run.start_several(2, "--lost-after=20", faults=[fault])
    processes[1].wait(PATIENCE)
    said = finish(processes, [LOST, -signal.SIGKILL], timeout=100)
    assert "process 1" in said[0].splitlines()[-1]
    finish(run.start_several(2), [0, 0])
    np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5)


@pytest.mark.slow
def test_E03_a_stuck_process_ends_both_with_the_last_steps(new_run, tiny_faulty, whole, tried):
    tried("hang of one of two processes")
    run = new_run(tiny_faulty)
    fault = {"kind": "sleep", "at": 7, "process": 1, "seconds": 9000}
    said = finish(
        run.start_several(2, "--config.train.watchdog_seconds=20.0", faults=[fault]), [LOST, LOST]
    )
    assert "nothing was finished for 20 s" in "".join(said)
    assert "Last finished step: process 0 on" in "".join(said)
    assert run.steps_saved()[-1] == 3
    finish(run.start_several(2), [0, 0])
    np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind, words", [("rows", "example [3]"), ("length", "text [4, 7]")])
def test_E14_another_batch_shape_is_an_error_everywhere(new_run, tiny_faulty, kind, words):
    run = new_run(tiny_faulty)
    fault = {"kind": kind, "at": 1, "process": 1}
    said = finish(run.start_several(2, faults=[fault]), [2, 2])
    for text in said:
        assert "process 1: " in text  # both compare, and both say it
        assert words in text
    assert not run.lines()


@pytest.mark.slow
def test_hosts_with_another_configuration_are_named(new_run, tiny_faulty):
    run = new_run(tiny_faulty)
    port = free_port()
    place = {"CONTRASTIVE_COORDINATOR": f"localhost:{port}", "CONTRASTIVE_PROCESSES": "2"}
    processes = [
        run.start(*more, environment=(place | {"CONTRASTIVE_PROCESS": str(i)}).items())
        for i, more in enumerate([(), ("--config.seed=1",)])
    ]
    for text in finish(processes, [2, 2]):
        assert "do not agree on the configuration: process 1 on" in text


def start_in(run, folders, *options):
    """Two processes of a run, in different folders, as on hosts that see different things."""
    place = {"CONTRASTIVE_COORDINATOR": f"localhost:{free_port()}", "CONTRASTIVE_PROCESSES": "2"}
    return [
        run.start(
            *options,
            folder=folder,
            environment=(place | {"CONTRASTIVE_PROCESS": str(i)}).items(),
        )
        for i, folder in enumerate(folders)
    ]


@pytest.mark.slow
def test_a_host_that_cannot_read_its_data_ends_all_with_its_name(new_run, tiny_faulty, tmp_path):
    data = pathlib.Path(tiny_faulty.data.source)
    tiny_faulty = tiny_faulty.copy_and_resolve_references()
    tiny_faulty.data.source = data.name
    run = new_run(tiny_faulty)
    said = finish(start_in(run, [data.parent, tmp_path]), [2, 2])
    host = socket.gethostname()
    assert f" 0/2 | contrastive train: process 1 on {host}: " in said[0]
    assert data.name in said[0].splitlines()[-1]
    assert " 1/2 | contrastive train: " in said[1]
    assert not run.lines()


@pytest.mark.slow
def test_a_workdir_that_one_host_does_not_share_is_named(new_run, tiny_faulty, tmp_path):
    run = new_run(tiny_faulty)
    here, elsewhere = tmp_path / "a", tmp_path / "b"
    here.mkdir()
    elsewhere.mkdir()
    run.workdir = pathlib.Path("run")  # relative: each sees another one
    said = finish(start_in(run, [here, elsewhere]), [2, 2])
    assert f"process 1 on {socket.gethostname()}: the folder run here is not the one" in said[0]
    assert "has to be on a file system that all hosts share" in said[1]
    metrics = here / "run" / "metrics.jsonl"
    assert not metrics.exists() or not metrics.read_text()


def test_E01_a_missing_process_is_named_within_the_limit():
    port = free_port()
    launch = Launch(coordinator=f"localhost:{port}", count=2, index=0)
    begin = time.monotonic()
    with pytest.raises(LostProcess, match=rf"1 of 2 .* localhost:{port} within 1 s.*process 1\."):
        meet(launch, 1.0)
    with pytest.raises(LostProcess, match=r"process 0 not seen"):
        meet(Launch(coordinator=f"localhost:{port}", count=2, index=1), 1.0)
    assert time.monotonic() - begin < 5


@pytest.mark.slow
def test_E01_a_late_process_is_waited_for(new_run, tiny_faulty):
    run = new_run(tiny_faulty)
    port = free_port()
    place = {"CONTRASTIVE_COORDINATOR": f"localhost:{port}", "CONTRASTIVE_PROCESSES": "2"}

    def start(index):
        return run.start(
            "--config.stop_at=1", environment=(place | {"CONTRASTIVE_PROCESS": index}).items()
        )

    first = start("0")
    time.sleep(5)
    finish([first, start("1")], [0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--coordinator=auto",)])
def test_the_tasks_of_a_slurm_step_find_each_other(new_run, tiny_faulty, options):
    run = new_run(tiny_faulty)
    step = {
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
    }
    processes = [
        run.start(
            "--config.stop_at=1",
            *options,
            environment=(step | {"SLURM_PROCID": i, "SLURM_LOCALID": i}).items(),
        )
        for i in ("0", "1")
    ]
    said = finish(processes, [0, 0])
    assert "in 2 processes" in said[0]


def test_where_a_process_stands():
    assert find_launch(None, None, None, {}) is None
    assert find_launch("a:1", 2, 1, {}) == Launch(coordinator="a:1", count=2, index=1)
    place = {"COORDINATOR": "b:2", "PROCESSES": "3", "PROCESS": "2"}
    environment = {f"CONTRASTIVE_{name}": value for name, value in place.items()}
    assert find_launch(None, None, None, environment) == Launch(coordinator="b:2", count=3, index=2)
    with pytest.raises(ConfigError, match="--process missing"):
        find_launch("a:1", 2, None, {})
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Launch(coordinator="a", count=2, index=0)
    with pytest.raises(ConfigError, match="--process=2 of --processes=2"):
        Launch(coordinator="a:1", count=2, index=2)


EIGHT = "0,1,2,3,4,5,6,7"
SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_NODELIST": "node[07-08,12]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "2",
}


def test_E02_the_place_in_a_slurm_step():
    launch = slurm_launch(SLURM | {"CUDA_VISIBLE_DEVICES": EIGHT})
    assert launch == Launch(coordinator="node07:61457", count=2, index=1, devices=tuple(range(8)))
    assert slurm_launch({}) is None
    assert slurm_launch(SLURM | {"SLURM_NTASKS": "1"}) is None
    single = slurm_launch(SLURM | {"SLURM_STEP_NODELIST": "gpu-3,gpu-9"})
    assert single is not None
    assert single.coordinator == "gpu-3:61457"
    assert single.devices is None


@pytest.mark.parametrize(
    "more, devices",
    [
        ({"SLURM_NTASKS": "16", "SLURM_LOCALID": "5", "CUDA_VISIBLE_DEVICES": EIGHT}, (5,)),
        ({"SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "CUDA_VISIBLE_DEVICES": "2,3"}, (0,)),
        ({"SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "2,3"}, (1,)),
        # Bound to its own by SLURM: each task sees fewer than the node has, and takes them all.
        ({"SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7",
          "SLURM_GPUS_ON_NODE": "8"}, (0, 1, 2, 3)),
        ({"SLURM_NTASKS": "16", "SLURM_LOCALID": "5", "CUDA_VISIBLE_DEVICES": "5"}, (0,)),
    ],
)  # fmt: skip
def test_E02_the_devices_of_a_slurm_task(more, devices):
    assert slurm_devices(SLURM | more) == devices


def test_alone_nothing_waits():
    alone = Processes()
    assert alone.gather("x", "y") == ["x"]
    assert alone.first_then_others(lambda: 3, "z") == 3
    alone.compare({"code": "1"})
    with pytest.raises(UserError, match="mine"):
        alone.together(_fail, "w")


def _fail():
    raise UserError("mine")


def test_what_fails_in_one_process_ends_all_with_its_own_status(monkeypatch):
    """So that the supervisor of each does the same: a full disk is tried again, a typo is not."""
    several = Processes(0, 2)
    monkeypatch.setattr(several, "gather", lambda text, what: ["", text])
    for kind, status in ((StorageError, 74), (ConfigError, 2)):
        with pytest.raises(UserError, match=r"process 1 on .*: full") as caught:
            several.together(lambda kind=kind: _raise(kind("full")), "writing")
        assert caught.value.status == status


def _raise(error):
    raise error


@pytest.mark.parametrize(
    "number, status",
    [("ENOSPC", 74), ("EDQUOT", 74), ("EIO", 74), ("EACCES", 2), ("EROFS", 2), ("ENOENT", None)],
)
def test_which_errors_of_the_file_system_may_pass(number, status):
    known = of_storage(OSError(getattr(errno, number), "no", "a.txt"))
    assert status == (None if known is None else known.status)
    assert known is None or str(known) == "no: a.txt."
