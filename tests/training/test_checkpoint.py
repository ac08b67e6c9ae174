"""Checkpoints: damaged ones are named and passed over, others restore anywhere."""

import gc
import os
import pathlib
import resource
import shutil
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive.errors import CheckpointError, ConfigError
from contrastive.training.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    abstract,
    list_steps,
    read_parameters,
)


def sharded(devices, value=None):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Explicit,))
    value = np.arange(8, dtype=np.float32) if value is None else value
    return {
        "parameters": {
            "weights": jax.device_put(value, NamedSharding(mesh, PartitionSpec("data"))),
            "log_scale": jax.device_put(np.float32(4.7), NamedSharding(mesh, PartitionSpec())),
        }
    }


# Orbax abandons its read coroutines when a file is damaged; Python says so when they are collected.
abandons_reads = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def said():
    return []


@pytest.fixture
def open_checkpointer(tmp_path, said):
    opened = []

    def open_one(**config):
        checkpointer = Checkpointer(tmp_path, CheckpointConfig(**config), said.append)
        opened.append(checkpointer)
        return checkpointer

    yield open_one
    for checkpointer in opened:
        checkpointer.close()
    gc.collect()


def save(checkpointer, step, state):
    checkpointer.save(step, state, {"data": {"batches": step}, "metrics": 7 * step})
    checkpointer.wait()


def damage(folder: pathlib.Path):
    """Cuts every data file of a step in half."""
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > 1:
            with open(file, "r+b") as handle:
                handle.truncate(file.stat().st_size // 2)


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_E07_restores_on_another_number_of_devices(open_checkpointer, devices):
    save(open_checkpointer(), 5, sharded(4))
    target = abstract(sharded(devices, np.zeros(8, np.float32)))
    restored = open_checkpointer().restore(target)
    assert restored.step == 5
    assert restored.position == {"data": {"batches": 5}, "metrics": 35}
    weights = restored.state["parameters"]["weights"]
    assert len(weights.sharding.device_set) == devices
    np.testing.assert_array_equal(weights, np.arange(8))
    assert float(restored.state["parameters"]["log_scale"]) == np.float32(4.7)


def test_E07_only_the_parameters_on_one_device(open_checkpointer, tmp_path):
    state = sharded(4) | {"optimizer": {"moments": jnp.ones(3)}}
    save(open_checkpointer(), 5, state)
    target = abstract(sharded(1, np.zeros(8, np.float32))["parameters"])
    parameters = read_parameters(tmp_path, target)
    np.testing.assert_array_equal(parameters["weights"], np.arange(8))


@abandons_reads
def test_E07_a_target_of_another_shape_is_an_error_that_names_it(open_checkpointer, tmp_path):
    save(open_checkpointer(), 5, sharded(4))
    target = abstract(sharded(1, np.zeros(9, np.float32)))
    with pytest.raises(CheckpointError):
        open_checkpointer().restore(target)
    assert list_steps(tmp_path / "checkpoints") == [5]


@abandons_reads
def test_E05_damaged_newer_steps_are_named_and_passed_over(open_checkpointer, said, tmp_path):
    checkpointer = open_checkpointer(keep=5)
    for step in (10, 20):
        save(checkpointer, step, sharded(2, np.full(8, step, np.float32)))
    checkpointer.close()
    folder = tmp_path / "checkpoints"
    damage(folder / "20")
    shutil.copytree(folder / "10", folder / "30.orbax-checkpoint-tmp")
    (folder / "40").mkdir()
    checkpointer = open_checkpointer(keep=5)
    restored = checkpointer.restore(abstract(sharded(2)))
    assert restored.step == 10
    np.testing.assert_array_equal(restored.state["parameters"]["weights"], np.full(8, 10))
    assert [word in " ".join(said) for word in ("checkpoint 40", "checkpoint 20")] == [True, True]
    save(checkpointer, 20, sharded(2, np.full(8, 21, np.float32)))
    assert list_steps(folder) == [10, 20]
    assert open_checkpointer().restore(abstract(sharded(2))).step == 20


@abandons_reads
def test_E05_no_readable_checkpoint_is_an_error_never_a_start_from_zero(
    open_checkpointer, tmp_path
):
    save(open_checkpointer(), 10, sharded(2))
    damage(tmp_path / "checkpoints" / "10")
    with pytest.raises(CheckpointError, match=r"none of the checkpoints \[10\]"):
        open_checkpointer().restore(abstract(sharded(2)))
    assert list_steps(tmp_path / "checkpoints") == [10]


def test_E05_a_failed_background_write_ends_the_run(open_checkpointer, tmp_path):
    checkpointer = open_checkpointer()
    save(checkpointer, 10, sharded(2))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        big = {"parameters": {"weights": np.random.default_rng(0).random((400, 400))}}
        with pytest.raises(CheckpointError, match="writing"):
            save(checkpointer, 20, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert open_checkpointer().restore(abstract(sharded(2))).step == 10


def test_only_the_newest_are_kept(open_checkpointer, tmp_path):
    checkpointer = open_checkpointer(keep=2)
    for step in (1, 2, 3):
        save(checkpointer, step, sharded(1))
    assert list_steps(tmp_path / "checkpoints") == [2, 3]


def test_those_of_every_so_many_steps_and_the_best_are_kept(open_checkpointer, tmp_path):
    checkpointer = open_checkpointer(
        every=1, keep=1, keep_every=3, best="loss", best_mode="min", keep_best=2
    )
    for step, loss in enumerate((1.0, 0.2, 0.5, 0.1, 0.3, 0.4, 0.6, 0.7), start=1):
        checkpointer.save(step, sharded(1), {"data": {}, "metrics": 0}, {"loss": loss, "x": 1.0})
        checkpointer.wait()
    assert list_steps(tmp_path / "checkpoints") == [2, 3, 4, 6, 8]
    checkpointer.save(9, sharded(1), {"data": {}, "metrics": 0}, {"evaluation/x": 1.0})
    checkpointer.wait()
    assert list_steps(tmp_path / "checkpoints") == [2, 3, 4, 6, 9]  # the newest, none of the best


@pytest.mark.parametrize(
    "wrong", [{"keep_every": 3}, {"best_mode": "min"}, {"keep": 0}, {"every": 0, "keep_every": 5}]
)
def test_retention_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"config.checkpoint"):
        CheckpointConfig(**wrong)


def test_nothing_saved_restores_nothing(open_checkpointer):
    assert open_checkpointer().restore(abstract(sharded(1))) is None


@pytest.fixture
def gate(monkeypatch):
    """Finished checkpoints get their names when the gate is opened, at the latest after 20 s."""
    opened, rename = threading.Event(), os.rename

    def late(source, target, **options):
        if pathlib.Path(target).name.isdecimal():
            opened.wait(20)
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", late)
    yield opened
    opened.set()


def test_a_save_goes_on_while_the_next_steps_run_and_holds_what_was_given(
    open_checkpointer, tmp_path, gate
):
    """The steps are given the arrays that are being saved, and write over them."""
    checkpointer, folder = open_checkpointer(keep=3), tmp_path / "checkpoints"
    double = jax.jit(lambda state: jax.tree.map(lambda x: 2 * x, state), donate_argnums=0)
    state = jax.block_until_ready(double(sharded(2, np.arange(1 << 22, dtype=np.float32))))
    expected = jax.tree.map(lambda x: np.array(x, copy=True), state)
    target = abstract(state)
    checkpointer.save(5, state, {"data": {}, "metrics": 0})
    for _ in range(3):
        state = jax.block_until_ready(double(state))
    assert not gate.is_set()
    assert list_steps(folder) == []  # three steps are done, and the save is not
    gate.set()
    checkpointer.wait()
    assert list_steps(folder) == [5]
    restored = open_checkpointer().restore(target).state
    jax.tree.map(np.testing.assert_array_equal, restored, expected)
    np.testing.assert_array_equal(
        state["parameters"]["weights"], 8 * expected["parameters"]["weights"]
    )


def test_a_save_waits_for_the_one_before(open_checkpointer, tmp_path, gate):
    """Two are never written at a time: the later one could be believed before the earlier one."""
    checkpointer = open_checkpointer(keep=3)
    checkpointer.save(5, sharded(2), {"data": {}, "metrics": 0})
    opener = threading.Timer(0.5, gate.set)
    opener.start()
    checkpointer.save(6, sharded(2), {"data": {}, "metrics": 0})
    assert gate.is_set()
    assert 5 in list_steps(tmp_path / "checkpoints")
    checkpointer.wait()
    assert list_steps(tmp_path / "checkpoints") == [5, 6]
