"""The losses compiled ahead of time for TPU pods: what each chip holds, read from the compiler."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive.logits import LogitPartition
from contrastive.losses import clip_loss, sigmoid_loss
from contrastive.planning import hlo
from contrastive.planning.collectives import collectives

MIB = 2**20
TOPOLOGIES = {8: "v5e:2x4", 64: "v5e:8x8", 256: "v5e:16x16"}
LOSSES = {
    "clip": clip_loss,
    "sigmoid": lambda x, y, s, partition: sigmoid_loss(x, y, s, -10.0, partition=partition),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def libtpu(monkeypatch):
    pytest.importorskip("libtpu", reason="no TPU compiler: make env-plan")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")


@functools.cache
def program(name, chips, rows, dim, dtype):
    """Value and gradients of a loss, with so many rows on each chip."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chips])
    mesh = Mesh(np.array(topology.devices).reshape(-1), ("data",), axis_types=(AxisType.Explicit,))
    partition = LogitPartition(mesh, exchange="ring")
    cut, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    x = jax.ShapeDtypeStruct((rows * chips, dim), dtype, sharding=cut)
    scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    step = jax.value_and_grad(functools.partial(LOSSES[name], partition=partition), (0, 1, 2))
    return jax.jit(step).lower(x, x, scale).compile()


def held(name, chips, rows, dim, dtype):
    """Bytes on each chip at the peak, beside embeddings and their gradients."""
    memory = program(name, chips, rows, dim, dtype).memory_analysis()
    embeddings = 2 * rows * dim * jnp.dtype(dtype).itemsize
    assert memory.argument_size_in_bytes >= embeddings
    # On TPU the peak counts arguments and results too; temp_size does not count all of the rest.
    used = memory.peak_memory_in_bytes - 2 * embeddings
    print(
        f"{name} {chips} chips, {rows} x {dim} {jnp.dtype(dtype).name} a chip: "
        f"{used / MIB:.2f} MiB (code {memory.generated_code_size_in_bytes / MIB:.2f}, "
        f"temporary {memory.temp_size_in_bytes / MIB:.2f})"
    )
    return used


def formula(rows, dim):
    return 6 * rows * dim * 4 + 4 * MIB


@pytest.mark.parametrize("rows, dim", [(1024, 512), (4096, 128)])
@pytest.mark.parametrize("name", LOSSES)
def test_memory_of_a_chip_is_flat_in_the_number_of_chips(name, rows, dim):
    used = [held(name, chips, rows, dim, jnp.float32) for chips in TOPOLOGIES]
    assert max(used) <= formula(rows, dim)
    assert max(used) <= 1.1 * min(used)


@pytest.mark.parametrize("name, per_entry", [("clip", 12), ("sigmoid", 8)])
def test_bytes_of_all_chips_grow_with_the_square_of_their_number(name, per_entry):
    """The formula of docs/scaling.md, at the programs whose memory is flat."""
    rows, dim, total = 1024, 512, {}
    for chips in TOPOLOGIES:
        module = hlo.parse(program(name, chips, rows, dim, jnp.float32).as_text())
        found = collectives(module, {"data": chips}, unit=chips)
        sent = sum(row.sent_bytes for row in found)
        batch = rows * chips
        # statistics, and half an account home
        assert 0 < sent - per_entry * batch * dim < 128 * batch + 2 * rows * dim
        assert {row.kind for row in found if row.sent_bytes > 1024} == {"collective-permute"}
        total[chips] = chips * sent
    # Of 8 chips the half account is 2.6 % of what the sigmoid loss sends.
    np.testing.assert_allclose(total[64] / total[8], 64, rtol=0.03)
    np.testing.assert_allclose(total[256] / total[64], 16, rtol=0.02)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [128, 512])
@pytest.mark.parametrize("name", LOSSES)
def test_a_million_pairs_on_256_chips_stay_within_the_formula(name, dim, dtype):
    rows = 1048576 // 256
    assert held(name, 256, rows, dim, dtype) <= formula(rows, dim)
