"""Small models of each kind of pairs, batches for them, and one step on any mesh."""

import functools

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from contrastive import mesh as mesh_lib
from contrastive.mesh import MeshConfig
from contrastive.objectives import LossConfig, Momentum, make_objective
from contrastive.towers import HeadConfig, TwoTower, TwoTowerConfig
from contrastive.towers.convnet import ConvTowerConfig
from contrastive.training.state import abstract_state, init_state
from contrastive.training.step import make_train_step

SIZES = {"image_size": 8, "text_length": 6, "vocabulary_size": 30, "pad_id": 0}
HEAD = HeadConfig(layers=2, hidden=16, output=12, norm="batch")


def configure(**options):
    return TwoTowerConfig(image=ConvTowerConfig(widths=(4, 8)), embedding_dim=8, **options)


def build(pairs, config, bias, rngs):
    return TwoTower(config, pairs=pairs, bias_init=bias, rngs=rngs, **SIZES)


@functools.cache
def made(pairs, config, bias=None):
    abstract = nnx.eval_shape(lambda: build(pairs, config, bias, nnx.Rngs(0)))
    draw = jax.jit(lambda key: nnx.state(build(pairs, config, bias, nnx.Rngs(key))))
    return nnx.graphdef(abstract), draw(jax.random.key(0))


def batch_of(pairs, rows=16, negatives=3, crops=0, seed=1, words=False):
    rng = np.random.default_rng(seed)
    ids = np.arange(rows, dtype=np.int32) // 2
    batch = {"id": ids}
    if pairs == "texts":
        for name in ("query", "positive"):
            batch[name] = rng.integers(1, 30, (rows, 6), dtype=np.int32)
        if negatives:
            batch["negatives"] = rng.integers(1, 30, (rows, negatives, 6), dtype=np.int32)
            weight = rng.random((rows, negatives)) < 0.7
            batch["negative_weight"] = weight.astype(np.float32)
            batch["negative_id"] = rng.integers(0, rows, (rows, negatives), dtype=np.int32)
    else:
        names = ("view_a", "view_b") if pairs == "views" else ("image",)
        for name in names:
            batch[name] = rng.integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8)
        if pairs == "captions":
            batch["text"] = rng.integers(1, 30, (rows, 6), dtype=np.int32)
        if crops:
            batch["crops"] = rng.integers(0, 256, (rows, crops, 4, 4, 3), dtype=np.uint8)
    if words:
        batch["id"] = np.stack([np.zeros_like(ids), ids], axis=1).astype(np.uint32)
    return batch


def slope(pairs, config, loss, batch, *, microbatches=1, devices=1, fsdp=1, momentum=None):
    """Loss, metrics and gradient of the objective, on the host."""
    mesh = mesh_lib.make_mesh(MeshConfig(fsdp=fsdp), jax.devices()[:devices])
    bias = -3.0 if loss.name == "siglip" else None
    graphdef, parameters = made(pairs, config, bias)
    objective = make_objective(loss, pairs=pairs, microbatches=microbatches)

    def value(parameters, batch):
        return objective(nnx.merge(graphdef, parameters), batch, jax.random.key(3))

    with jax.set_mesh(mesh):
        part = functools.partial(build, pairs, config, bias)
        _, state = abstract_state(part, optax.sgd(0.1), mesh, average=False)
        parameters = jax.tree.map(
            lambda x, like: jax.device_put(x, like.sharding), parameters, state.parameters
        )
        batch = jax.device_put(batch, mesh_lib.batch_sharding(mesh))
        found = jax.jit(jax.value_and_grad(value, has_aux=True))(parameters, batch)
    (loss, metrics), gradient = jax.device_get(found)
    return float(loss), metrics, gradient


def assert_close(got, want, tolerance=3e-5):
    assert got[0] == pytest.approx(want[0], rel=1e-5)
    for (path, a), (_, b) in zip(
        *(jax.tree_util.tree_leaves_with_path(x[2]) for x in (got, want)), strict=True
    ):
        scale = max(np.abs(b).max(), 0.02)  # behind batch normalisation some are rounding only
        assert np.abs(a - b).max() / scale < tolerance, jax.tree_util.keystr(path)


class Run:
    """Steps of a small run with a momentum encoder."""

    def __init__(self, config, momentum, *, pairs="views", devices=1, fsdp=1, microbatches=1):
        self.mesh = mesh_lib.make_mesh(MeshConfig(fsdp=fsdp), jax.devices()[:devices])
        dim = config.head.output or config.embedding_dim
        self.momentum = Momentum(momentum, pairs, dim, 16, 10, microbatches)
        objective = make_objective(
            LossConfig(name="info_nce"), pairs=pairs, momentum=momentum, microbatches=microbatches
        )
        optimizer = optax.sgd(0.1)
        self.graphdef, self.state = init_state(
            functools.partial(build, pairs, config, None),
            optimizer,
            self.mesh,
            0,
            average=False,
            momentum=self.momentum,
        )
        self.step_fn = make_train_step(
            self.graphdef,
            objective,
            optimizer,
            seed=0,
            average_decay=None,
            momentum=self.momentum,
        )

    def step(self, batch):
        with jax.set_mesh(self.mesh):
            batch = jax.device_put(batch, mesh_lib.batch_sharding(self.mesh))
            self.state, metrics = self.step_fn(self.state, batch)
        return {name: float(value) for name, value in metrics.items()}
