"""Counts read off compiled programs, against programs whose collectives are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from contrastive.objectives import LOSS_SCOPE
from contrastive.planning import hlo
from contrastive.planning.collectives import collectives, replica_groups
from contrastive.planning.operations import operations

AXES = {"data": 2, "fsdp": 4}


def compiled(function, spec, *shapes):
    """The program of a function of each device's part."""
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    args = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape in shapes
    ]
    return hlo.parse(jax.jit(mapped).lower(*args).compile().as_text())


def only(module):
    (row,) = collectives(module, AXES)
    return row


CUT = PartitionSpec(("data", "fsdp"))


def test_an_all_reduce_sends_twice_its_array():
    row = only(compiled(lambda x: x + lax.psum(x, "fsdp").sum(), CUT, (8 * 100, 7)))
    assert (row.kind, row.axes, row.group, row.count) == ("all-reduce", ("fsdp",), 4, 1)
    assert row.payload_bytes == 100 * 7 * 4
    assert row.sent_bytes == 2 * 100 * 7 * 4 * 3 / 4
    assert not row.loss


def test_a_loop_counts_as_often_as_it_goes_round():
    def ring(x):
        with jax.named_scope(LOSS_SCOPE):
            turn = [(i, (i + 1) % 2) for i in range(2)]
            return lax.fori_loop(0, 5, lambda _, y: lax.ppermute(jnp.sin(y), "data", turn), x)

    row = only(compiled(ring, CUT, (8 * 16, 3)))
    assert (row.kind, row.axes, row.count, row.loss) == ("collective-permute", ("data",), 5, True)
    assert row.sent_bytes == row.payload_bytes == 5 * 16 * 3 * 4


def test_gather_and_scatter_count_the_whole_array():
    def both(x):
        whole = lax.all_gather(x, "fsdp", tiled=True)
        return lax.psum_scatter(jnp.sin(whole), "fsdp", tiled=True)

    rows = {row.kind: row for row in collectives(compiled(both, CUT, (8 * 8, 5)), AXES)}
    gather = rows["all-gather"]
    assert gather.payload_bytes == 4 * 8 * 5 * 4
    assert gather.sent_bytes == gather.payload_bytes * 3 / 4
    if "reduce-scatter" in rows:  # the CPU compiler may write it as an all-reduce and a slice
        assert rows["reduce-scatter"].payload_bytes == gather.payload_bytes


@pytest.mark.parametrize(
    "text, groups",
    [
        ("replica_groups={{0,2},{1,3}}, x", [[0, 2], [1, 3]]),
        ("replica_groups=[2,2]<=[4], x", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0), x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['axis_0'=4] {'axis_0'}, x", [[0, 1, 2, 3]]),
        ("source_target_pairs={{0,1},{1,0},{2,2}}, x", [[0, 1], [1, 0]]),
        ("replica_groups={}, x", [[0, 1, 2, 3]]),
    ],
)
def test_every_notation_of_groups_is_read(text, groups):
    assert replica_groups(text, 4) == groups


TPU = """HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}

%reduce_scatter.1 (p: bf16[64,8]) -> bf16[16,8] {
  %p = bf16[64,8]{1,0:T(8,128)(2,1)} parameter(0)
  %ar = bf16[64,8]{1,0:T(8,128)(2,1)} all-reduce(%p), replica_groups=mesh['data'=2,'fsdp'=4] {'fsdp'}, to_apply=%add
  ROOT %ds = bf16[16,8]{1,0:T(8,128)(2,1)} dynamic-slice(%ar), dynamic_slice_sizes={16,8}
}

%slices (q: f32[12,64,8], r: s32[]) -> f32[1,64,8] {
  %q = f32[12,64,8]{2,1,0:T(8,128)} parameter(0)
  %r = s32[] parameter(1)
  ROOT %one = f32[1,64,8]{2,1,0:T(8,128)} dynamic-slice(%q, %r, %r, %r), dynamic_slice_sizes={1,64,8}
}

%body (t: (s32[], f32[12,64,8])) -> (s32[], f32[12,64,8]) {
  %t = (s32[]{:T(128)}, /*index=1*/f32[12,64,8]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %stack = f32[12,64,8]{2,1,0:T(8,128)} get-tuple-element(%t), index=1
  %slice = f32[1,64,8]{2,1,0:T(8,128)} fusion(%stack, %i), kind=kLoop, calls=%slices
  %kept = bf16[64,8]{1,0:T(8,128)(2,1)S(1)} convert(%slice)
  %scattered = bf16[16,8]{1,0:T(8,128)(2,1)} fusion(%kept), kind=kCustom, calls=%reduce_scatter.1
  ROOT %next = (s32[]{:T(128)}, f32[12,64,8]{2,1,0:T(8,128)}) tuple(%i, %stack)
}

%condition (t: (s32[], f32[12,64,8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(12)
  %t = (s32[]{:T(128)}, f32[12,64,8]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

ENTRY %main (x: (s32[], f32[12,64,8])) -> (s32[], f32[12,64,8]) {
  %x = (s32[]{:T(128)}, f32[12,64,8]{2,1,0:T(8,128)}) parameter(0)
  ROOT %loop = (s32[]{:T(128)}, f32[12,64,8]{2,1,0:T(8,128)}) while(%x), condition=%condition, body=%body
}
"""  # noqa: E501


def test_a_tpu_program_is_read():
    """Twelve rounds; the fused all-reduce and slice is a reduce-scatter; a slice counts as a
    slice; what stays in the chip's memory counts nothing."""
    module = hlo.parse(TPU)
    (row,) = collectives(module, AXES)
    assert (row.kind, row.axes, row.group, row.count) == ("reduce-scatter", ("fsdp",), 4, 12)
    assert row.payload_bytes == 12 * 64 * 8 * 2
    layer = 64 * 8 * 4
    fused = 2 * layer + 4  # read from the stack, written; the index
    converted = layer  # read; its result stays on the chip
    scattered = 16 * 8 * 2  # written
    assert hlo.memory_traffic(module) == 12 * (fused + converted + scattered)


def test_operations_of_products_loops_and_gradients():
    a, b = jax.ShapeDtypeStruct((3, 5), jnp.float32), jax.ShapeDtypeStruct((5, 7), jnp.float32)
    product = 2 * 3 * 5 * 7
    assert operations(jnp.matmul, a, b).total == product
    exact = operations(lambda x, y: jnp.matmul(x, y, precision="highest"), a, b)
    assert exact.exact == exact.total == product
    square = jax.ShapeDtypeStruct((4, 4), jnp.float32)

    def power(x):
        return lax.scan(lambda y, _: (y @ x, None), x, None, length=6)[0].sum()

    assert operations(power, square).total == 6 * 2 * 64
    assert operations(jax.grad(power), square).total == 3 * 6 * 2 * 64
    remat = jax.checkpoint(lambda x: jnp.sin(x @ x) @ x)
    again = operations(jax.grad(lambda x: remat(x).sum()), square).total
    assert again == operations(jax.grad(lambda x: (jnp.sin(x @ x) @ x).sum()), square).total + 128


def test_operations_inside_a_scope_include_its_gradient():
    def loss(x):
        with jax.named_scope(LOSS_SCOPE):
            return jnp.sum(jnp.square(x @ x.T))

    def step(x):
        return loss(x @ x)

    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    found = operations(jax.value_and_grad(step), x, scope=LOSS_SCOPE)
    assert found.inside == operations(jax.value_and_grad(loss), x).total
    assert found.total > found.inside


def test_operations_under_shard_map_are_those_of_all_devices():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("data")
    mapped = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=spec, out_specs=spec)
    x = jax.ShapeDtypeStruct((16, 3), jnp.float32)
    assert operations(mapped, x).total == 8 * 2 * 2 * 2 * 3
    assert np.prod(list(mesh.shape.values())) == 8
