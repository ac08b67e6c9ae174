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


def rows_of(module):
    """Two slices of four devices, one along each place of ``data``."""
    return collectives(module, AXES, unit=4)


def only(module):
    (row,) = rows_of(module)
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

    rows = {row.kind: row for row in rows_of(compiled(both, CUT, (8 * 8, 5)))}
    gather = rows["all-gather"]
    assert gather.payload_bytes == 4 * 8 * 5 * 4
    assert gather.sent_bytes == gather.payload_bytes * 3 / 4
    if "reduce-scatter" in rows:  # the CPU compiler may write it as an all-reduce and a slice
        assert rows["reduce-scatter"].payload_bytes == gather.payload_bytes


WHOLE = 104 * 7 * 4  # bytes of what each device holds


@pytest.mark.parametrize(
    "function, sent, between",
    [
        (lambda x: lax.psum(x, "fsdp"), 2 * WHOLE * 3 / 4, 0),
        (lambda x: lax.psum(x, "data"), WHOLE, WHOLE),
        # three quarters twice inside; each device half of its quarter, twice, to the other slice
        (lambda x: lax.psum(x, ("data", "fsdp")), 2 * WHOLE * 7 / 8, 2 * WHOLE / 4 / 2),
        (lambda x: lax.all_gather(x, ("data", "fsdp")).sum(0), 7 * WHOLE, WHOLE),
        (lambda x: lax.ppermute(x, "fsdp", [(i, (i + 1) % 4) for i in range(4)]), WHOLE, 0),
        (lambda x: lax.ppermute(x, "data", [(0, 1), (1, 0)]), WHOLE, WHOLE),
        (
            lambda x: lax.all_to_all(x, ("data", "fsdp"), 0, 0, tiled=True),
            WHOLE * 7 / 8,
            WHOLE / 2,
        ),
    ],
    ids=["inside", "across", "both", "gather", "ring inside", "ring across", "all-to-all"],
)
def test_what_goes_between_slices_is_told_from_the_rest(function, sent, between):
    found = rows_of(compiled(lambda x: x + jnp.sin(function(x)), CUT, (8 * 104, 7)))
    assert sum(row.sent_bytes for row in found) == sent
    assert sum(row.between_bytes for row in found) == between


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
    row = only(module)
    assert (row.kind, row.axes, row.group, row.count) == ("reduce-scatter", ("fsdp",), 4, 12)
    assert row.payload_bytes == 12 * 64 * 8 * 2
    layer = 64 * 8 * 4
    fused = 2 * layer + 4  # read from the stack, written; the index
    converted = layer  # read; its result stays on the chip
    scattered = 16 * 8 * 2  # written
    assert hlo.memory_traffic(module) == 12 * (fused + converted + scattered)


BESIDE = """HloModule jit_step, is_scheduled=true

%start (p: bf16[16,8]) -> (bf16[16,8], bf16[64,8], u32[]) {
  %p = bf16[16,8]{1,0:T(8,128)(2,1)} parameter(0)
  %ag.1 = bf16[64,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=78, replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %started = (bf16[16,8]{1,0}, bf16[64,8]{1,0}, u32[]{:S(2)}) custom-call(%ag.1), custom_call_target="AsyncCollectiveStart"
}

%middle (a: bf16[16,8], b: bf16[64,8], c: u32[], x: f32[32,8]) -> (f32[32,8], bf16[16,8], bf16[64,8], u32[]) {
  %a = bf16[16,8]{1,0} parameter(0)
  %b = bf16[64,8]{1,0} parameter(1)
  %c = u32[]{:S(2)} parameter(2)
  %x = f32[32,8]{1,0} parameter(3)
  %y = f32[32,8]{1,0} negate(%x)
  %ag.2 = bf16[64,8]{1,0} all-gather(%a), channel_id=78, replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %all = (f32[32,8]{1,0}, bf16[16,8]{1,0}, bf16[64,8]{1,0}, u32[]{:S(2)}) tuple(%y, %a, %ag.2, %c)
}

%done (d: bf16[16,8], e: bf16[64,8], f: u32[]) -> bf16[64,8] {
  %d = bf16[16,8]{1,0} parameter(0)
  %e = bf16[64,8]{1,0} parameter(1)
  %f = u32[]{:S(2)} parameter(2)
  %ag.3 = bf16[64,8]{1,0} all-gather(%d), channel_id=78, replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %whole = bf16[64,8]{1,0} custom-call(%d, %e, %ag.3, %f), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (s: bf16[16,8], t: f32[32,8]) -> bf16[64,8] {
  %s = bf16[16,8]{1,0} parameter(0)
  %t = f32[32,8]{1,0} parameter(1)
  %async-collective-start.1 = (bf16[16,8]{1,0}, bf16[64,8]{1,0}, u32[]{:S(2)}) fusion(%s), kind=kCustom, output_to_operand_aliasing={{0}: (0, {})}, calls=%start
  %g0 = bf16[16,8]{1,0} get-tuple-element(%async-collective-start.1), index=0
  %g1 = bf16[64,8]{1,0} get-tuple-element(%async-collective-start.1), index=1
  %g2 = u32[]{:S(2)} get-tuple-element(%async-collective-start.1), index=2
  %carried = (f32[32,8]{1,0}, bf16[16,8]{1,0}, bf16[64,8]{1,0}, u32[]{:S(2)}) fusion(%g0, %g1, %g2, %t), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {}), {3}: (2, {})}, calls=%middle
  %h0 = bf16[16,8]{1,0} get-tuple-element(%carried), index=1
  %h1 = bf16[64,8]{1,0} get-tuple-element(%carried), index=2
  %h2 = u32[]{:S(2)} get-tuple-element(%carried), index=3
  ROOT %async-collective-done.1 = bf16[64,8]{1,0} fusion(%h0, %h1, %h2), kind=kCustom, output_to_operand_aliasing={{}: (1, {})}, calls=%done
}
"""  # noqa: E501


def test_a_collective_that_runs_beside_other_work_counts_once():
    """On TPU it stands in every fusion that it runs beside, and its arrays pass through them."""
    module = hlo.parse(BESIDE)
    row = only(module)
    assert (row.kind, row.axes, row.count) == ("all-gather", ("fsdp",), 1)
    assert row.payload_bytes == 64 * 8 * 2
    shard, whole, beside = 16 * 8 * 2, 64 * 8 * 2, 32 * 8 * 4
    counter = 4
    assert hlo.memory_traffic(module) == (whole + counter) + 2 * beside + (shard + counter)


def test_what_is_on_its_way_while_products_run_is_told_from_what_is_waited_for():
    assert only(hlo.parse(BESIDE)).beside_bytes == 0  # a sign is changed meanwhile, that is all
    product = BESIDE.replace("f32[32,8]{1,0} negate(%x)", "f32[32,8]{1,0} dot(%x, %x)")
    row = only(hlo.parse(product))
    assert row.beside_bytes == row.sent_bytes == 64 * 8 * 2 * 3 / 4
    named = product.replace("async-collective", "other")  # nothing says that it goes on meanwhile
    assert only(hlo.parse(named)).beside_bytes == 0


@pytest.mark.parametrize("order, hidden", [("cp mm done", True), ("mm cp done", False)])
def test_on_a_gpu_what_stands_between_start_and_done_counts(order, hidden):
    lines = {
        "cp": "%cp = (f32[8,32]{1,0}, f32[8,32]{1,0}) collective-permute-start(%a), "
        "source_target_pairs={{0,1},{1,0}}",
        "mm": "%mm = (f32[8,8]{1,0}, s8[4]{0}) custom-call(%a, %a), "
        'custom_call_target="__cublas$lt$matmul"',
        "done": "ROOT %done = f32[8,32]{1,0} collective-permute-done(%cp)",
    }
    head = "ENTRY %main (a: f32[8,32]) -> f32[8,32] {\n  %a = f32[8,32]{1,0} parameter(0)\n"
    body = "".join(f"  {lines[word]}\n" for word in order.split())
    row = only(hlo.parse(f"HloModule m, is_scheduled=true\n\n{head}{body}}}\n"))
    assert row.beside_bytes == (8 * 32 * 4 if hidden else 0)


GPU = """HloModule jit_step, is_scheduled=true

ENTRY %main (a: f32[8,32], b: s32[8], c: f32[100]) -> f32[8,32] {
  %a = f32[8,32]{1,0} parameter(0)
  %b = s32[8]{0} parameter(1)
  %c = f32[100]{0} parameter(2)
  %cp = ((f32[8,32]{1,0}, s32[8]{0}), (f32[8,32]{1,0}, s32[8]{0})) collective-permute-start(%a, %b), channel_id=1, source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}
  %ar = ((f32[100]{0}), f32[100]{0}) all-reduce-start(%c), channel_id=1, replica_groups=mesh['data'=2,'fsdp'=4] {'data'}, to_apply=%add
  %mm = (bf16[16,16]{1,0}, s8[4194304]{0}) custom-call(%a, %a), custom_call_target="__cublas$lt$matmul"
  ROOT %out = f32[8,32]{1,0} copy(%a)
}
"""  # noqa: E501


def test_a_gpu_program_is_read():
    """Several arrays move at once, results stand beside operands; workspaces are not traffic."""
    module = hlo.parse(GPU)
    rows = {row.kind: row for row in rows_of(module)}
    assert rows["collective-permute"].payload_bytes == 8 * 32 * 4 + 8 * 4
    assert rows["all-reduce"].payload_bytes == rows["all-reduce"].between_bytes == 100 * 4
    panel, exchanged = 8 * 32 * 4, 2 * (8 * 32 * 4 + 8 * 4 + 100 * 4)
    assert hlo.memory_traffic(module) == exchanged + (2 * panel + 16 * 16 * 2) + 2 * panel


SLICES = """HloModule jit_step, is_scheduled=true, num_partitions=4

%body (t: (s32[], f32[4,32])) -> (s32[], f32[4,32]) {
  %t = (s32[]{:T(128)}, f32[4,32]{1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %panel = f32[4,32]{1,0} get-tuple-element(%t), index=1
  %after = token[] after-all()
  %to = (f32[4,32]{1,0}, u32[]{:S(2)}, token[]) send(%panel, %after), channel_id=26, is_host_transfer=true, frontend_attributes={_xla_megascale_target={{100000->200000},{200000->100000}},_xla_megascale_transfer_type="ONE_TO_ONE"}
  ROOT %next = (s32[]{:T(128)}, f32[4,32]{1,0}) tuple(%i, %panel)
}

ENTRY %main (x: (s32[], f32[4,32]), g: f32[3,8]) -> (s32[], f32[4,32]) {
  %x = (s32[]{:T(128)}, f32[4,32]{1,0}) parameter(0)
  %g = f32[3,8]{1,0} parameter(1)
  %after.1 = token[] after-all()
  %sum = (f32[3,8]{1,0}, u32[]{:S(2)}, token[]) send(%g, %after.1), channel_id=54, is_host_transfer=true, frontend_attributes={_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %inside = f32[3,8]{1,0} all-reduce(%g), channel_id=3, replica_groups=[1,4]<=[4], to_apply=%add
  ROOT %loop = (s32[]{:T(128)}, f32[4,32]{1,0}) while(%x), condition=%c, body=%body, metadata={op_name="jit(step)/contrastive_loss/while"}, backend_config={"known_trip_count":{"n":"5"}}
}
"""  # noqa: E501


def test_what_a_tpu_sends_to_other_slices_is_read():
    """It goes through the hosts; of its origin only the loop around it tells."""
    mesh = {"slice": 2, "data": 1, "fsdp": 4}
    rows = {(row.kind, row.axes): row for row in collectives(hlo.parse(SLICES), mesh, unit=4)}
    ring = rows["collective-permute", ("slice",)]
    assert (ring.count, ring.loss, ring.group) == (5, True, 2)
    assert ring.between_bytes == ring.sent_bytes == 5 * 4 * 32 * 4
    total = rows["all-reduce", ("slice",)]
    assert not total.loss
    assert total.between_bytes == total.payload_bytes == 3 * 8 * 4
    assert rows["all-reduce", ("fsdp",)].between_bytes == 0


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


def test_a_sum_of_bfloat16_to_float32_counts_as_float32():
    text = """HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: bf16[64,8], y: f32[8]) -> (f32[64,8], f32[8]) {
  %x = bf16[64,8]{1,0} parameter(0)
  %y = f32[8]{0} parameter(1)
  ROOT %ar = (f32[64,8]{1,0}, f32[8]{0}) all-reduce(%x, %y), replica_groups=[1,4]<=[4], to_apply=%add
}
"""  # noqa: E501
    (row,) = collectives(hlo.parse(text), {"data": 4}, 4)
    assert row.payload_bytes == 4 * (64 * 8 + 8)
