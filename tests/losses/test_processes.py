"""The losses in two real processes with two devices each."""

import os
import socket
import subprocess
import sys

PROGRAM = """
import sys
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
port, index = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
from contrastive import losses
from contrastive.logits import LogitPartition
assert jax.process_count() == 2 and jax.device_count() == 4
rng = np.random.default_rng(0)
x, y = rng.normal(size=(2, 16, 6)).astype(np.float32)
x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
ids = rng.integers(-1, 12, 16).astype(np.int32)
steps = {
    "clip": lambda a, b, i, p: losses.clip_loss(a, b, 15.0, ids=i, partition=p),
    "sigmoid": lambda a, b, i, p: losses.sigmoid_loss(a, b, 15.0, -5.0, ids=i, partition=p),
    "info_nce": lambda a, b, i, p: losses.info_nce(a, b, 15.0, key_ids=i, partition=p),
    "nt_xent": lambda a, b, i, p: losses.nt_xent(a, b, 15.0, ids=i, partition=p),
}
one = [jnp.asarray(v) for v in (x, y, ids)]
wanted = {
    name: jax.jit(jax.value_and_grad(lambda a, b, i: loss(a, b, i, None), (0, 1)))(*one)
    for name, loss in steps.items()
}
for shape, axes, exchanges in (
    ((4,), ("data",), ("ring",)),
    ((2, 2), ("slice", "data"), ("dense", "gather", "ring")),
):
    kinds = (AxisType.Explicit,) * len(axes)
    mesh = Mesh(np.array(jax.devices()).reshape(shape), axes, axis_types=kinds)
    sharding = NamedSharding(mesh, PartitionSpec(axes))
    put = lambda v: jax.make_array_from_callback(v.shape, sharding, lambda i: v[i])
    for exchange in exchanges:
        partition = LogitPartition(mesh, axes, exchange, 3, 2)
        for name, loss in steps.items():
            want, slopes = wanted[name]
            step = jax.jit(jax.value_and_grad(lambda a, b, i: loss(a, b, i, partition), (0, 1)))
            value, grads = step(put(x), put(y), put(ids))
            np.testing.assert_allclose(float(value), float(want), rtol=1e-5)
            for grad, full in zip(grads, slopes):
                for part in grad.addressable_shards:
                    np.testing.assert_allclose(part.data, full[part.index], rtol=1e-4, atol=1e-6)
            print("right", name, exchange, shape, flush=True)
"""


def test_every_exchange_in_two_processes(tmp_path):
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
                    [sys.executable, "-c", PROGRAM, str(port), str(index)],
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
        assert text.count("right") == 16
