"""What the ring of logits sends, counted in compiled programs, against docs/scaling.md."""

import functools
import itertools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive.logits import LogitPartition
from contrastive.losses import clip_loss, sigmoid_loss
from contrastive.planning import hlo
from contrastive.planning.collectives import collectives

AXES = ("slice", "data", "fsdp")
LOSSES = {
    "clip": (clip_loss, 12),
    "sigmoid": (functools.partial(sigmoid_loss, bias=-10.0), 8),
}


def ring_bytes(per_entry, batch, dim, shape):
    """``per_entry · B · d`` along the last axis, and along each other one that divided by the
    devices on the axes after it: ``{axis: bytes}``."""
    after = itertools.accumulate(reversed(shape), operator.mul, initial=1)
    found = zip(reversed(AXES[-len(shape) :]), reversed(shape), after, strict=False)
    return {axis: per_entry * batch * dim // inner for axis, size, inner in found if size > 1}


@pytest.mark.parametrize(
    "shape, batch, dim",
    [((8,), 512, 256), ((2, 4), 2048, 64), ((4, 2), 512, 256), ((2, 2, 2), 512, 256)],
    ids=str,
)
@pytest.mark.parametrize("name", LOSSES)
def test_the_ring_sends_what_the_formula_says_along_each_axis(name, shape, batch, dim):
    loss, per_entry = LOSSES[name]
    devices = np.array(jax.devices()).reshape(shape)
    mesh = Mesh(devices, AXES[-len(shape) :], axis_types=(AxisType.Explicit,) * len(shape))
    partition = LogitPartition(mesh, exchange="ring")
    cut, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((mesh.axis_names,), ()))
    x = jax.ShapeDtypeStruct((batch, dim), jnp.float32, sharding=cut)
    ids = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=cut)
    scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)

    def step(x, y, scale, ids):
        return loss(x, y, scale, ids=ids, partition=partition)

    program = jax.jit(jax.value_and_grad(step, (0, 1, 2))).lower(x, x, scale, ids).compile()
    rows = collectives(hlo.parse(program.as_text()), dict(mesh.shape), unit=8)
    sent = {row.axes: row.sent_bytes for row in rows if row.kind == "collective-permute"}
    expected = ring_bytes(per_entry, batch, dim, shape)
    assert set(sent) == {(axis,) for axis in expected}
    for axis, embeddings in expected.items():
        beside = sent[(axis,)] - embeddings
        # ids and statistics, 128 bytes a pair where embeddings are 4·d; and half an account, home
        assert 0 < beside < embeddings * 128 / per_entry / dim + 2 * batch / math.prod(shape) * dim
