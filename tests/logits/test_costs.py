"""Memory as the compiler reports it, operations as the jaxpr has them."""

import math
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from contrastive.logits import LogitPartition
from contrastive.losses import clip_loss, info_nce, nt_xent, sigmoid_loss

MIB = 2**20


def sigmoid(x, y, scale, **kwargs):
    return sigmoid_loss(x, y, scale, jnp.float32(-10), **kwargs)


LOSSES = {"clip": clip_loss, "sigmoid": sigmoid, "info_nce": info_nce, "nt_xent": nt_xent}


def shapes(mesh, batch, dim, dtype=jnp.float32):
    spec = PartitionSpec(mesh.axis_names) if mesh is not None else None
    sharding = NamedSharding(mesh, spec) if mesh is not None else None
    rows = jax.ShapeDtypeStruct((batch, dim), dtype, sharding=sharding)
    return rows, rows, jax.ShapeDtypeStruct((), jnp.float32)


def step(loss, partition, **kwargs):
    return jax.value_and_grad(
        lambda x, y, s: loss(x, y, s, partition=partition, **kwargs), (0, 1, 2)
    )


def compiled(loss, partition, batch, dim, dtype=jnp.float32):
    args = shapes(partition.mesh, batch, dim, dtype)
    return jax.jit(step(loss, partition)).lower(*args).compile()


def temp(*args):
    return compiled(*args).memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("mesh", ["8", "2x4"])
@pytest.mark.parametrize("name", LOSSES)
def test_ring_stays_within_the_formula(tools, name, mesh):
    batch, dim = 8192, 512
    partition = LogitPartition(tools.make_mesh(mesh), exchange="ring")
    rows = batch // 8 * (2 if name == "nt_xent" else 1)  # both views are rows
    used = temp(LOSSES[name], partition, batch, dim)
    assert used <= 6 * rows * dim * 4 + 4 * MIB


def test_ring_with_extra_columns_stays_within_the_formula(tools):
    mesh, batch, dim, k = tools.make_mesh("8"), 4096, 256, 3
    partition = LogitPartition(mesh, exchange="ring")
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    extra = jax.ShapeDtypeStruct((batch, k, dim), jnp.float32, sharding=sharding)
    loss = jax.value_and_grad(
        lambda q, p, s, n: info_nce(q, p, s, negatives=n, partition=partition), (0, 1, 2, 3)
    )
    used = jax.jit(loss).lower(*shapes(mesh, batch, dim), extra).compile()
    used = used.memory_analysis().temp_size_in_bytes
    assert used <= 6 * (batch // 8 * (1 + k)) * dim * 4 + 4 * MIB


@pytest.mark.parametrize("name", ["clip", "sigmoid"])
def test_ring_is_flat_in_the_number_of_devices(tools, name):
    """At 1024 rows a device; what grows with the batch would show."""
    used = [
        temp(LOSSES[name], LogitPartition(tools.make_mesh(str(n)), exchange="ring"), 1024 * n, 256)
        for n in (2, 4, 8)
    ]
    assert max(used) <= min(used) * 1.05 + 65536


def test_what_the_exchanges_hold(tools):
    """dense: the row slice of the logits; gather: all columns; ring: neither."""
    mesh, batch, dim = tools.make_mesh("8"), 8192, 128
    used = {
        exchange: temp(clip_loss, LogitPartition(mesh, exchange=exchange), batch, dim)
        for exchange in ("dense", "gather", "ring")
    }
    assert used["dense"] >= batch // 8 * batch * 4
    assert batch * dim * 4 <= used["gather"] < used["dense"] / 2
    assert used["ring"] < batch * dim * 4 * 1.2 < used["gather"]


def test_blocks_bound_the_tile(tools):
    """Smaller tiles take less memory, larger ones more."""
    used = [
        temp(clip_loss, LogitPartition(exchange="gather", block_rows=r, block_cols=c), 4096, 64)
        for r, c in ((64, 64), (512, 512), (4096, 512), (512, 4096))
    ]
    assert used[0] < used[1] < min(used[2:])
    assert used[1] - used[0] <= 4 * MIB
    assert min(used[2:]) >= 4096 * 512 * 4


def largest_array(executable) -> int:
    """Bytes of the largest float32 array in a compiled program."""
    found = re.findall(r"f32\[([0-9,]+)\]", executable.as_text())
    return max(4 * math.prod(int(n) for n in shape.split(",")) for shape in found)


@pytest.mark.parametrize(
    "name, exchange, blocks, limit",
    [
        ("clip", "dense", (None, None), 64 * MIB),
        ("sigmoid", "dense", (None, None), 64 * MIB),
        ("clip", "gather", (None, 512), 4 * MIB),
        ("clip", "ring", (2048, 512), 4 * MIB),
        ("sigmoid", "ring", (2048, 512), 4 * MIB),
    ],
)
def test_E15_memory_grows_with_the_local_batch_only(tools, name, exchange, blocks, limit):
    partition = LogitPartition(tools.make_mesh("4"), ("data",), exchange, *blocks)
    assert largest_array(compiled(LOSSES[name], partition, 8192, 64)) <= limit


# --- operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", ["1", "8", "2x4"])
@pytest.mark.parametrize(
    "name, exchange, products",
    [
        ("clip", "ring", 4),
        ("clip", "gather", 4),
        ("clip", "dense", 3),
        ("info_nce", "ring", 4),
        ("sigmoid", "ring", 3),
        ("sigmoid", "gather", 3),
        ("sigmoid", "dense", 3),
        ("nt_xent", "ring", 10),
        ("nt_xent", "gather", 10),
    ],
)
def test_matrix_products(tools, name, exchange, products, mesh):
    """In units of U = 2·b·B·d a device; blocks that don't divide cost next to nothing."""
    mesh = tools.make_mesh(mesh)
    batch, dim = 8 * 250, 16
    partition = LogitPartition(mesh, exchange=exchange, block_rows=60, block_cols=70)
    count = tools.product_flops(step(LOSSES[name], partition), *shapes(mesh, batch, dim))
    if exchange == "dense":
        count //= mesh.size  # global shapes
    unit = 2 * (batch // mesh.size) * batch * dim
    assert count == pytest.approx(products * unit, rel=0.1)


def test_the_value_alone_takes_one_product(tools):
    rows, _, scale = shapes(None, 512, 16)
    for name in ("clip", "sigmoid"):
        partition = LogitPartition(exchange="gather", block_rows=100)
        count = tools.product_flops(
            lambda x, y, s, loss=LOSSES[name], part=partition: loss(x, y, s, partition=part),
            rows,
            rows,
            scale,
        )
        assert count == pytest.approx(2 * 512 * 512 * 16, rel=0.1)


def test_one_way_losses_skip_the_column_half():
    """Exponentials of a tile: one forward and one backward for each direction."""

    def exponentials(loss):
        partition = LogitPartition(exchange="gather", block_rows=32, block_cols=64)
        text = str(jax.make_jaxpr(step(loss, partition))(*shapes(None, 256, 16)))
        return len(re.findall(r"f32\[32,64\] = exp", text))

    assert exponentials(info_nce) == 2
    assert exponentials(clip_loss) == 4


def test_sigmoid_takes_one_logarithm_for_64_entries():
    partition = LogitPartition(exchange="gather", block_rows=32, block_cols=128)
    text = str(jax.make_jaxpr(step(sigmoid, partition))(*shapes(None, 256, 16)))
    assert sorted(re.findall(r"f32\[([0-9,]+)\] = log1p", text)) == ["256", "32,2"]


# --- many chips -----------------------------------------------------------------------------------

_MILLION = """
import sys, jax, numpy as np, jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from contrastive.logits import LogitPartition
from contrastive.losses import clip_loss, sigmoid_loss
dim, batch = 128, 1048576
shape, axes = eval(sys.argv[1])
kinds = (AxisType.Explicit,) * len(axes)
mesh = Mesh(np.array(jax.devices()).reshape(shape), axes, axis_types=kinds)
sharding = NamedSharding(mesh, PartitionSpec(axes))
partition = LogitPartition(mesh, exchange="ring")
x = jax.ShapeDtypeStruct((batch, dim), jnp.float32, sharding=sharding)
s = jax.ShapeDtypeStruct((), jnp.float32)
for loss in (
    lambda a, b, s: clip_loss(a, b, s, partition=partition),
    lambda a, b, s: sigmoid_loss(a, b, s, jnp.float32(-10), partition=partition),
):
    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    used = step.lower(x, x, s).compile().memory_analysis().temp_size_in_bytes
    print("used", used)
    assert used <= 6 * (batch // 256) * dim * 4 + 4 * 2**20
"""


@pytest.mark.parametrize(
    "mesh",
    [
        ((256,), ("data",)),
        pytest.param(((8, 32), ("slice", "data")), marks=pytest.mark.slow),
        pytest.param(((4, 8, 8), ("slice", "data", "fsdp")), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_million_pairs_on_256_devices_compile_within_the_formula(mesh):
    flags = "--xla_force_host_platform_device_count=256"
    result = subprocess.run(
        [sys.executable, "-c", _MILLION, repr(mesh)],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.count("used") == 2


# --- choosing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh, batch, dim", [
    ("1", 1024, 512), ("1", 4096, 64), ("1", 8192, 512),
    ("2", 1024, 512), ("2", 4096, 64),
    ("8", 1024, 512), ("8", 4096, 64), ("8", 8192, 512),
])  # fmt: skip
def test_estimates_are_what_the_compiler_reports(tools, mesh, batch, dim):
    mesh = None if mesh == "1" else tools.make_mesh(mesh)
    limits = {"bytes_limit": 2**40, "dtype": jnp.float32}
    _, candidates = LogitPartition.choose(batch, dim, mesh=mesh, **limits)
    for row in candidates:
        for name in ("clip", "sigmoid"):
            used = temp(LOSSES[name], row.partition, batch, dim)
            assert row.bytes / 1.5 <= used <= 1.6 * row.bytes, (name, used / row.bytes, str(row))
        count = tools.product_flops(step(clip_loss, row.partition), *shapes(mesh, batch, dim))
        if row.partition.exchange == "dense" and mesh is not None:
            count //= mesh.size
        assert count == pytest.approx(row.flops, rel=0.05)


def test_choose_takes_the_fewest_operations_that_fit(tools):
    mesh = tools.make_mesh("8")

    def choose(mib):
        return LogitPartition.choose(8192, 512, mesh=mesh, bytes_limit=mib * MIB, dtype=jnp.float32)

    assert [choose(mib)[0].exchange for mib in (1000, 60, 20)] == ["dense", "gather", "ring"]
    partition, candidates = choose(20)
    assert partition.mesh is mesh
    assert partition.axes == ("data",)
    chosen = next(row for row in candidates if row.partition == partition)
    assert chosen.fits
    assert candidates[0].bytes > 20 * MIB
    table = str(candidates)
    assert len(table.splitlines()) == len(candidates) + 2
    assert next(line for line in table.splitlines() if line.startswith("→")).split()[1] == "ring"
    with pytest.raises(ValueError, match=r"no partition fits(.|\n)*ring"):
        choose(1)
    with pytest.raises(ValueError, match="batch = 9"):
        LogitPartition.choose(9, 4, mesh=mesh, bytes_limit=MIB, dtype=jnp.float32)


def test_chosen_partition_runs(tools):
    mesh = tools.make_mesh("2x4")
    partition, _ = LogitPartition.choose(64, 8, mesh=mesh, bytes_limit=2**30, dtype=jnp.float32)
    x = jax.random.normal(jax.random.key(0), (64, 8))
    assert jnp.isfinite(clip_loss(x, x, 1.0, partition=partition))
