"""The helpers of tests/logits, and every loss with its reference."""

import functools
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from contrastive import losses, reference
from contrastive.logits import LogitPartition

_path = pathlib.Path(__file__).parents[1] / "logits" / "conftest.py"
_spec = importlib.util.spec_from_file_location("logit_tools", _path)
assert _spec is not None
assert _spec.loader is not None
_tools = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_tools)
tools = _tools.tools

POSITIVE = ("images", "texts", "scale")
KEYS = ("queries", "keys", "scale")
# name: (loss, reference, names of what is differentiated, options)
LOSSES = {
    "clip": (losses.clip_loss, reference.clip_loss, POSITIVE, ("ids", "weights")),
    "info_nce": (losses.info_nce, reference.info_nce, KEYS, ("key_ids", "weights")),
    "info_nce, hard negatives": (
        losses.info_nce,
        reference.info_nce,
        (*KEYS, "negatives"),
        ("key_ids", "weights", "hard", "negative_ids", "negative_weights"),
    ),
    "info_nce, own negatives": (
        functools.partial(losses.info_nce, share_negatives=False),
        functools.partial(reference.info_nce, share_negatives=False),
        (*KEYS, "negatives"),
        ("key_ids", "weights", "hard", "negative_ids", "negative_weights"),
    ),
    "info_nce, queue": (
        functools.partial(losses.info_nce, in_batch=False),
        functools.partial(reference.info_nce, in_batch=False),
        (*KEYS, "negatives"),
        ("queue", "key_ids", "negative_ids", "negative_weights"),
    ),
    "nt_xent": (
        losses.nt_xent, reference.nt_xent, ("view_a", "view_b", "scale"), ("ids", "weights"),
    ),
    "gte": (losses.gte_loss, reference.gte_loss, KEYS, ("ids", "weights")),
    "decoupled": (losses.decoupled_loss, reference.decoupled_loss, POSITIVE, ("ids", "weights")),
    "decoupled, one way": (
        functools.partial(losses.decoupled_loss, two_way=False),
        functools.partial(reference.decoupled_loss, two_way=False),
        POSITIVE,
        ("ids", "weights"),
    ),
    "multi_positive": (
        losses.multi_positive_loss, reference.multi_positive_loss, POSITIVE, ("ids", "weights"),
    ),
    "multi_positive, one way": (
        functools.partial(losses.multi_positive_loss, two_way=False),
        functools.partial(reference.multi_positive_loss, two_way=False),
        POSITIVE,
        ("ids", "weights"),
    ),
    "sigmoid": (
        losses.sigmoid_loss, reference.sigmoid_loss, (*POSITIVE, "bias"), ("ids", "weights"),
    ),
    "sigmoid, multi-positive": (
        functools.partial(losses.sigmoid_loss, multi_positive=True),
        functools.partial(reference.sigmoid_loss, multi_positive=True),
        (*POSITIVE, "bias"),
        ("ids", "weights"),
    ),
}  # fmt: skip


def unit(rng, *shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class Batch:
    """Inputs of one loss: arguments that are differentiated, and options."""

    def __init__(self, name, *, batch=24, dim=7, dtype=jnp.float32, scale=15.0, noise=0.7, seed=0):
        self.loss, self.reference, self.names, options = LOSSES[name]
        rng = np.random.default_rng(seed)
        x = unit(rng, batch, dim)
        y = x + noise * unit(rng, batch, dim)
        y /= np.linalg.norm(y, axis=1, keepdims=True)
        values = {"scale": np.float32(scale), "bias": np.float32(-scale / 2)}
        extra = (batch, 2) if "hard" in options else (2 * batch,)
        values["negatives"] = unit(rng, *extra, dim)
        ids = rng.integers(-1, batch, batch).astype(np.int32)
        weights = rng.integers(0, 3, batch).astype(np.float32)
        drawn = {
            "ids": ids,
            "key_ids": ids,
            "weights": weights,
            "negative_ids": rng.integers(-1, batch, extra).astype(np.int32),
            "negative_weights": rng.integers(0, 2, extra).astype(np.float32),
        }
        first, second, *rest = self.names
        values |= {first: x, second: y}
        rows = (first, second, "negatives")
        self.args = {
            n: jnp.asarray(values[n], dtype if n in rows else jnp.float32)
            for n in (first, second, *rest)
        }
        self.options = {n: v for n, v in drawn.items() if n in options}

    def expected(self):
        """Value and gradients by the float64 reference."""
        args = {n: np.asarray(v).astype(np.float64) for n, v in self.args.items()}
        value, grads = self.reference(**args, **self.options)
        return value, [grads[n] for n in self.names]

    def got(self, partition=None, put=jnp.asarray, **more):
        """Value and gradients by the loss, compiled."""
        args = {n: put(v) for n, v in self.args.items()}
        options = {n: put(v) for n, v in self.options.items()}

        def value(args, options):
            return self.loss(**args, **options, partition=partition, **more)

        value, grads = jax.jit(jax.value_and_grad(value))(args, options)
        return value, [grads[n] for n in self.names]

    def check(self, got, tolerance):
        relative = _tools.relative
        (value, grads), (true_value, true_grads) = got, self.expected()
        errors = [relative(g, t) for g, t in zip(grads, true_grads, strict=True)]
        assert relative(value, true_value) < tolerance
        assert max(errors) < tolerance, dict(zip(self.names, errors, strict=True))


def partitioned(name, kind=AxisType.Explicit):
    """A partition by name, and how to place its inputs."""
    if name == "none":
        return None, jnp.asarray
    exchange, mesh = name.split()
    if mesh == "one":
        return LogitPartition(exchange=exchange, block_rows=5, block_cols=7), jnp.asarray
    mesh = _tools.make_mesh(mesh, kind)
    partition = LogitPartition(mesh, mesh.axis_names, exchange, block_rows=2, block_cols=5)
    return partition, _tools.cut(mesh)


@pytest.fixture(scope="session")
def bench(tools):
    tools.Batch, tools.LOSSES, tools.partitioned, tools.unit = Batch, LOSSES, partitioned, unit
    return tools
