"""Meshes by name, and float64 values and gradients of the two reductions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive.logits import LogitPartition

MESHES = {
    "1": ((1,), ("data",)),
    "2": ((2,), ("data",)),
    "4": ((4,), ("data",)),
    "2x2": ((2, 2), ("data", "fsdp")),
    "8": ((8,), ("data",)),
    "2x4": ((2, 4), ("data", "fsdp")),
    "2x2x2": ((2, 2, 2), ("slice", "data", "fsdp")),
}


def make_mesh(name: str, kind: AxisType = AxisType.Explicit) -> Mesh:
    shape, axes = MESHES[name]
    devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
    return Mesh(devices, axes, axis_types=(kind,) * len(axes))


def cut(mesh: Mesh, axes=None):
    """A function that cuts arrays over the axes (all by default) and leaves scalars alone."""
    sharding = NamedSharding(mesh, PartitionSpec(axes or mesh.axis_names))

    def put(x):
        x = jnp.asarray(x)
        return jax.device_put(x, sharding) if x.ndim else x

    return put


class Sum(np.float64):
    """A sum and the norm of its terms: where they cancel, no rounding of theirs can be as small as
    the sum."""

    terms: float

    @classmethod
    def of(cls, terms):
        total = cls(terms.sum())
        total.terms = float(np.linalg.norm(terms))
        return total


def relative(value, expected) -> float:
    """Norm-wise relative error; of a :class:`Sum`, relative to the norm of its terms."""
    size = max(np.linalg.norm(expected), getattr(expected, "terms", 0.0), 1e-30)
    value, expected = (np.asarray(x).astype(np.float64) for x in (value, expected))
    assert value.shape == expected.shape
    return float(np.linalg.norm(value - expected) / size)


def same_content(ids, other):
    return (ids[:, None] == other[None]) & (ids[:, None] != -1)


def dlogsumexp(logits, mask):
    """logsumexp over the last axis over the mask, and its derivative."""
    there = np.where(mask, logits, -np.inf)
    top = there.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    e = np.exp(there - top)
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        value = (np.log(total) + top)[..., 0]
    return value, e / np.where(total == 0, 1.0, total)


class Problem:
    """Rows, columns, masks and random weights of the results, with the answer in float64."""

    def __init__(self, rows, columns, dim, *, dtype=jnp.float32, scale=15.0, seed=0, masked=True):
        rng = np.random.default_rng(seed)

        def unit(n):
            x = rng.normal(size=(n, dim))
            return x / np.linalg.norm(x, axis=1, keepdims=True)

        self.paired = rows == columns
        x, y = unit(rows), unit(columns)
        if self.paired:
            y = x + 0.7 * y
            y /= np.linalg.norm(y, axis=1, keepdims=True)
        self.x, self.y = jnp.asarray(x, dtype), jnp.asarray(y, dtype)
        self.scale, self.bias = jnp.float32(scale), jnp.float32(-scale / 2)
        self.row_ids = rng.integers(-1, rows // 2, rows).astype(np.int32) if masked else None
        self.column_ids = rng.integers(-1, rows // 2, columns).astype(np.int32) if masked else None
        self.row_exists = rng.random(rows) < 0.8 if masked else None
        self.column_exists = rng.random(columns) < 0.8 if masked else None
        if self.paired:
            self.column_ids, self.column_exists = self.row_ids, self.row_exists
        # Rows that don't exist have results that nobody reads.
        read = np.ones(rows) if self.row_exists is None else self.row_exists
        read_columns = np.ones(columns) if self.column_exists is None else self.column_exists
        self.on_rows = (rng.normal(size=rows) * read).astype(np.float32)
        self.on_columns = (rng.normal(size=columns) * read_columns).astype(np.float32)

    def labels(self, put=jnp.asarray, put_columns=None):
        put_columns = put_columns or put
        names = {
            "row_ids": (self.row_ids, put),
            "row_exists": (self.row_exists, put),
            "column_ids": (self.column_ids, put_columns),
            "column_exists": (self.column_exists, put_columns),
        }
        return {k: None if v is None else p(v) for k, (v, p) in names.items()}

    def masks(self):
        """Negatives, and entries of the row's own content."""
        shape = len(self.x), len(self.y)
        same = np.eye(*shape, dtype=bool) if self.paired else np.zeros(shape, bool)
        if self.row_ids is not None:
            same |= same_content(self.row_ids, self.column_ids)
        there = np.ones(shape, bool)
        if self.row_exists is not None:
            there &= self.row_exists[:, None] & self.column_exists[None]
        return there & ~same, there & same

    def logits(self):
        x, y = (np.asarray(v).astype(np.float64) for v in (self.x, self.y))
        return x, y, float(self.scale) * x @ y.T

    def pull(self, slope):
        """Gradients with respect to rows, columns and scale of a slope on the logits."""
        x, y, _ = self.logits()
        scale = float(self.scale)
        return scale * slope @ y, scale * slope.T @ x, Sum.of(slope * (x @ y.T))

    def logsumexp(self, two_way=True, same=False):
        """``Σ on_rows · n + Σ on_columns · m`` (and of the same content's) with its gradients."""
        _, _, s = self.logits()
        negative, own = self.masks()
        slope, value = np.zeros_like(s), 0.0
        sides = [(s, 0), (s.T, 1)] if two_way else [(s, 0)]
        for logits, side in sides:
            weight = (self.on_rows, self.on_columns)[side].astype(np.float64)
            for mask in (negative, own) if same else (negative,):
                mask = mask.T if side else mask
                n, p = dlogsumexp(logits, mask)
                n = np.where(np.isfinite(n), n, 0.0)
                value += weight @ n
                slope += (weight[:, None] * p).T if side else weight[:, None] * p
                if same and mask is not negative and mask.base is not negative:
                    value += weight @ np.where(mask, logits, 0.0).sum(1)
                    extra = weight[:, None] * mask
                    slope += extra.T if side else extra
        return value, self.pull(slope)

    def softplus(self, weights=None, same=False):
        s = self.logits()[2] + float(self.bias)
        negative, own = self.masks()
        w = np.ones(len(s)) if weights is None else weights.astype(np.float64)
        entry = (w[:, None] + w[None]) / 2
        positive = own & ~np.eye(len(s), dtype=bool)
        z = np.where(positive, 1.0, -1.0)
        entry = entry * (negative | positive if same else negative)
        value = (entry * (np.maximum(-z * s, 0) + np.log1p(np.exp(-np.abs(s))))).sum()
        slope = -z * entry / (1 + np.exp(z * s))
        return value, (*self.pull(slope), slope.sum())


def product_flops(function, *args) -> int:
    """Operations of all matrix products that one device runs, loops counted by their length."""

    def count(jaxpr) -> int:
        total = 0
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "dot_general":
                (contract, _), _ = eqn.params["dimension_numbers"]
                shared = np.prod([eqn.invars[0].aval.shape[i] for i in contract])
                total += 2 * int(np.prod(eqn.outvars[0].aval.shape) * shared)
            rounds = eqn.params["length"] if eqn.primitive.name == "scan" else 1
            assert eqn.primitive.name not in ("while", "cond"), "trip count is not known"
            for inner in jax.tree.leaves(
                list(eqn.params.values()),
                is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr"),
            ):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += rounds * count(inner)
        return total

    return count(jax.make_jaxpr(function)(*args).jaxpr)


@pytest.fixture(scope="session")
def tools():
    class Tools:
        pass

    tools = Tools()
    tools.MESHES, tools.make_mesh, tools.cut = MESHES, make_mesh, cut
    tools.product_flops = product_flops
    tools.Problem, tools.relative, tools.LogitPartition = Problem, relative, LogitPartition
    return tools
