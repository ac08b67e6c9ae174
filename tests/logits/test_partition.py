"""Partitions: what they refuse, what they read from the inputs, what they move."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from contrastive.logits import LogitPartition, logsumexp
from contrastive.logits.masks import Labels
from contrastive.logits.partition import resolve
from contrastive.logits.tiles import Blocks, Side, tile_shape, walk_tiles
from contrastive.losses import clip_loss

KINDS = [AxisType.Explicit, AxisType.Auto]


def rows(size=16, dim=4, seed=0):
    x = np.random.default_rng(seed).normal(size=(size, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"exchange": "all_to_all"}, "'all_to_all'; choose one of dense, gather, ring"),
        ({"block_rows": 0}, "block_rows = 0"),
        ({"block_cols": -1}, "block_cols = -1"),
        ({"axes": ("data",)}, "give the mesh too"),
        ({"precision": "sloppy"}, "sloppy"),
    ],
)
def test_nonsense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        LogitPartition(**wrong)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [{"block_rows": 2.5}, {"block_cols": "8"}, {"precision": 3}])
def test_what_is_no_number_or_name_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(TypeError, match=name):
        LogitPartition(**wrong)


def test_axes_have_to_be_distinct_axes_of_the_mesh(tools):
    mesh = tools.make_mesh("2x4")
    for axes in (("model",), ("data", "data")):
        with pytest.raises(ValueError, match="distinct axes of"):
            LogitPartition(mesh, axes)


def test_mixed_kinds_of_axes_are_named():
    kinds = (AxisType.Explicit, AxisType.Auto)
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=kinds)
    x = jnp.asarray(rows())
    with pytest.raises(ValueError, match="make all its axes Explicit, or all Auto"):
        clip_loss(x, x, 1.0, partition=LogitPartition(mesh, "b"))


def test_a_batch_that_does_not_divide_names_the_sizes(tools):
    x = jnp.asarray(rows(12))
    partition = LogitPartition(tools.make_mesh("8"), exchange="ring")
    with pytest.raises(ValueError, match=r"batch = 12 rows .* 8 devices .* 8 or 16 can"):
        clip_loss(x, x, 1.0, partition=partition)
    with pytest.raises(ValueError, match=r"batch = 3 rows .* 8 can"):
        clip_loss(x[:3], x[:3], 1.0, partition=partition)
    with pytest.raises(ValueError, match="no rows"):
        clip_loss(x[:0], x[:0], 1.0)


def test_losses_are_called_outside_shard_map(tools):
    mesh = tools.make_mesh("2")
    x = tools.cut(mesh)(rows())
    inside = jax.shard_map(
        lambda x: clip_loss(x, x, 1.0),
        mesh=mesh,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
    )
    with pytest.raises(ValueError, match="outside shard_map"):
        inside(x)


# --- what is read from the inputs -----------------------------------------------------------------


def test_partitions_are_frozen_and_hashable(tools):
    mesh = tools.make_mesh("2")
    one, same = (LogitPartition(mesh, "data", "ring", precision="high") for _ in range(2))
    assert hash(one) == hash(same)
    assert one == same
    assert one.axes == ("data",)
    with pytest.raises(AttributeError):
        one.exchange = "dense"


def test_mesh_and_axes_are_read_from_explicit_types(tools):
    mesh = tools.make_mesh("2x4")
    seen = []

    def look(x):
        seen.append(resolve(None, x))
        return x

    for axes in (("data", "fsdp"), ("fsdp",), None):
        x = rows()
        x = (
            tools.cut(mesh, axes)(x)
            if axes
            else jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
        )
        jax.jit(look)(x)
    both, one, none = seen
    assert (both.axes, both.devices, both.exchange) == (("data", "fsdp"), 8, "gather")
    assert (one.axes, one.devices, one.exchange) == (("fsdp",), 4, "gather")
    assert (none.mesh, none.devices, none.exchange) == (None, 1, "dense")


def test_mesh_is_read_from_placed_arrays_with_auto_axes(tools):
    mesh = tools.make_mesh("2x4", AxisType.Auto)
    layout = resolve(None, tools.cut(mesh, ("fsdp",))(rows()))
    assert (layout.axes, layout.devices) == (("fsdp",), 4)


def test_a_partition_without_mesh_reads_it_too(tools):
    x = tools.cut(tools.make_mesh("4"))(rows())
    layout = resolve(LogitPartition(exchange="ring", block_rows=3), x)
    assert (layout.devices, layout.exchange, layout.block_rows) == (4, "ring", 3)
    assert resolve(LogitPartition(exchange="ring"), jnp.asarray(rows())).devices == 1


def test_axes_default_to_those_of_the_inputs_then_to_all(tools):
    mesh = tools.make_mesh("2x4")
    partition = LogitPartition(mesh)
    assert resolve(partition, tools.cut(mesh, ("fsdp",))(rows())).axes == ("fsdp",)
    assert resolve(partition, jnp.asarray(rows())).axes == ("data", "fsdp")


# --- what is moved --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "placed, jit",
    [("nowhere", False), *((p, True) for p in ("nowhere", "whole", "other axes", "right"))],
)
@pytest.mark.parametrize("kind", KINDS, ids=["explicit", "auto"])
@pytest.mark.parametrize("exchange", ["dense", "gather", "ring"])
def test_inputs_are_placed_as_the_partition_says(tools, placed, exchange, kind, jit):
    mesh = tools.make_mesh("2x4", kind)
    x, y = rows(), rows(seed=1)
    expected = jax.value_and_grad(clip_loss, (0, 1, 2))(
        jnp.asarray(x), jnp.asarray(y), jnp.float32(9)
    )
    put = {
        "nowhere": jnp.asarray,
        "whole": lambda v: jax.device_put(v, NamedSharding(mesh, PartitionSpec())),
        "other axes": tools.cut(mesh, ("data",)),
        "right": tools.cut(mesh),
    }[placed]
    partition = LogitPartition(mesh, exchange=exchange)
    ids = put(np.arange(16, dtype=np.int32))
    step = jax.value_and_grad(
        lambda x, y, s: clip_loss(x, y, s, ids=ids, partition=partition), (0, 1, 2)
    )
    # JAX differentiates sums over explicitly sharded arrays under jit or set_mesh only.
    with jax.set_mesh(mesh) if kind == AxisType.Explicit and not jit else contextlib.nullcontext():
        value, grads = (jax.jit(step) if jit else step)(put(x), put(y), jnp.float32(9))
    assert tools.relative(value, expected[0]) < 1e-6
    for got, want in zip(grads, expected[1], strict=True):
        assert tools.relative(got, want) < 2e-6


def test_gradients_are_cut_like_the_rows(tools):
    for kind in KINDS:
        mesh = tools.make_mesh("2x4", kind)
        x = tools.cut(mesh)(rows())
        partition = LogitPartition(mesh)
        grad = jax.jit(jax.grad(lambda x, p=partition: clip_loss(x, x, 9.0, partition=p)))(x)
        assert grad.sharding.is_equivalent_to(x.sharding, 2)


def test_under_set_mesh(tools):
    mesh = tools.make_mesh("2x4")
    x, y = tools.cut(mesh)(rows()), tools.cut(mesh)(rows(seed=1))
    outside = jax.jit(clip_loss)(x, y, 9.0)
    with jax.set_mesh(mesh):
        for partition in (
            None,
            LogitPartition(mesh, exchange="ring"),
            LogitPartition(exchange="ring"),
        ):
            inside = jax.jit(lambda x, y, p=partition: clip_loss(x, y, 9.0, partition=p))(x, y)
            np.testing.assert_allclose(inside, outside, rtol=1e-6)


def test_every_device_sends_half_of_its_columns_each_way(tools):
    """On four devices the two halves travel in opposite directions; on two there is one."""

    def routes(name):
        mesh = tools.make_mesh(name)
        x = tools.cut(mesh)(rows(16))
        text = str(
            jax.make_jaxpr(
                lambda x: (
                    logsumexp(
                        x, x, jnp.float32(1), partition=LogitPartition(mesh, exchange="ring")
                    ).logsumexp
                )
            )(x)
        )
        return set(re.findall(r"perm=(\(\(.*?\)\))", text))

    assert len(routes("2")) == 1
    assert len(routes("4")) == 2


# --- tiles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, block", [(1, 1), (7, 3), (8, 4), (9, 8), (5, 100), (10, 1)])
def test_blocks_cover_every_row_once(size, block):
    blocks = Blocks.cut(size, block)
    assert blocks.block <= block
    seen = np.zeros(size, int)
    for i in range(blocks.count):
        side = Side(jnp.arange(size, dtype=jnp.float32)[:, None], Labels())
        part = blocks.take(side, i)
        assert part.x.shape == (blocks.block, 1)
        kept = np.ones(blocks.block, bool) if part.labels.exists is None else part.labels.exists
        np.add.at(seen, np.asarray(part.x[:, 0], int)[np.asarray(kept)], 1)
    assert (seen == 1).all()


def test_default_tiles_are_small_beside_the_embeddings():
    """1 MiB, or up to 4 MiB where that is at most a quarter of the rows of one side."""
    for size, columns, dim in (
        (8192, 8192, 512), (8192, 8192, 64), (1024, 512, 512), (100, 10**6, 512), (10**6, 3, 8),
        (1, 10**6, 512), (700, 900, 32),
    ):  # fmt: skip
        r, c = tile_shape(size, columns, dim, None, None)
        assert r <= size
        assert c <= columns
        assert r * c * 4 <= max(2**20, min(2**22, size * dim))
        assert r * c * 4 >= min(2**19, size * columns * 4)
    assert tile_shape(8192, 8192, 512, None, None) == (1024, 1024)
    assert tile_shape(8192, 8192, 64, None, None) == (512, 512)


def test_a_tile_given_on_one_side_is_long_on_the_other():
    assert tile_shape(8192, 8192, 512, 512, None) == (512, 8192)
    assert tile_shape(8192, 10**6, 512, 512, None) == (512, 8192)  # 16 MiB
    assert tile_shape(8192, 8192, 512, None, 128) == (8192, 128)
    assert tile_shape(10**6, 8192, 64, None, 128) == (32768, 128)
    assert tile_shape(8192, 8192, 512, 10**6, 10**6) == (8192, 8192)
    assert tile_shape(8192, 8192, 512, 1, 1) == (1, 1)


def test_walking_visits_every_tile():
    visits = []

    def tile(r, c, row_state, column_state):
        visits.append((r.x.shape, c.x.shape))
        return row_state + 1, column_state + r.x.sum()

    side = Side(jnp.ones((6, 2)), Labels())
    down, across = walk_tiles(tile, side, side, jnp.zeros(6), jnp.zeros(6), 3, 2)
    np.testing.assert_array_equal(down, 3)  # three blocks of columns
    np.testing.assert_array_equal(across, 12)  # the sum of all rows
    assert set(visits) == {((3, 2), (2, 2))}
