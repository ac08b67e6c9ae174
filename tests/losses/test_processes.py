"""The losses in two real processes with two devices each."""

import os
import pathlib
import socket
import subprocess
import sys

PROGRAM = """
import importlib.util, sys
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
port, index, tools = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
from contrastive.logits import LogitPartition
spec = importlib.util.spec_from_file_location("tools", tools)
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)
assert jax.process_count() == 2 and jax.device_count() == 4

def close(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want) + 1e-7, (got, want)

few = ("clip", "sigmoid", "info_nce", "nt_xent")
for shape, axes, exchange, names in (
    ((2, 2), ("slice", "data"), "ring", bench.LOSSES),
    ((2, 2), ("slice", "data"), "gather", few),
    ((2, 2), ("slice", "data"), "dense", few),
    ((4,), ("data",), "ring", few),
):
    kinds = (AxisType.Explicit,) * len(axes)
    mesh = Mesh(np.array(jax.devices()).reshape(shape), axes, axis_types=kinds)
    sharding = NamedSharding(mesh, PartitionSpec(axes))

    def put(v):
        v = np.asarray(v)
        return jax.make_array_from_callback(v.shape, sharding, lambda i: v[i]) if v.ndim else v

    partition = LogitPartition(mesh, axes, exchange, 3, 2)
    for name in names:
        batch = bench.Batch(name)
        (value, grads), (want, slopes) = batch.got(partition, put), batch.expected()
        close(value.addressable_data(0), want)
        for grad, full in zip(grads, slopes, strict=True):
            for part in grad.addressable_shards:
                close(part.data, np.asarray(full)[part.index])
        print("right", name, exchange, shape, flush=True)
"""
TOOLS = pathlib.Path(__file__).parent / "conftest.py"


def test_every_loss_and_exchange_in_two_processes(tmp_path):
    """Value and every gradient equal the float64 reference."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    processes = []
    for index in range(2):
        with (tmp_path / f"{index}.log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, str(port), str(index), str(TOOLS)],
                    env=env, stdout=log, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for index in range(2):
        text = (tmp_path / f"{index}.log").read_text()
        assert codes[index] == 0, text[-3000:]
        assert text.count("right") == 13 + 3 * 4
