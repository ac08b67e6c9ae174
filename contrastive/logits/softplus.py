"""``Σ softplus(s)`` over a matrix of logits, with its gradient computed on the way forward.

The derivative of an entry needs nothing but the entry, so one walk over the tiles yields the value
and every gradient: 3U operations (U = 2·b·B·d), nothing recomputed, one tile in memory.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Integer

from contrastive.logits import masks, running
from contrastive.logits.dense import dense_logits, describe
from contrastive.logits.exchange import Account, walk
from contrastive.logits.masks import Labels
from contrastive.logits.partition import Layout, LogitPartition, resolve
from contrastive.logits.running import Running
from contrastive.logits.statistics import RowStatistics
from contrastive.logits.tiles import Side, accumulator, dot, walk_tiles


@dataclasses.dataclass(frozen=True)
class Task:
    """What to sum, known when the program is traced."""

    layout: Layout
    same: bool  # entries of the row's own content are positives instead of absent
    statistics: bool
    gradients: bool


# What is collected for each row, and for each column, as far as it is needed: "value" (weighted
# softplus), "slope" (weighted sigmoid, for the gradient of the bias), "gradient" [n, dim], "seen".
Sums = dict[str, Any]


class Gradients(NamedTuple):
    """Of the sum, with respect to rows, columns, scale and bias."""

    rows: Any
    columns: Any
    scale: Any
    bias: Any


_EXTRAS = ("ties", "min", "sum", "number", "own")

# Factors 1 + e with e <= 1: a product of this many stays below 2^64.
_GROUP = 64


def softplus_along(x: Float[Array, "rows columns"], axis: int) -> Float[Array, " n"]:
    """``Σ log(1 + exp(x))`` along an axis, with one logarithm for up to 64 entries.

    ``Π (1 + e_k) − 1`` is accumulated as ``p + e + p·e``, which keeps the relative precision of the
    smallest terms, where a product of ``1 + e`` would round them away.
    """
    size = x.shape[axis]
    group = max(g for g in range(1, min(_GROUP, size) + 1) if size % g == 0)
    split = (*x.shape[:axis], group, size // group, *x.shape[axis + 1 :])
    e = jnp.exp(-jnp.abs(x)).reshape(split)
    products = lax.reduce(e, jnp.zeros((), x.dtype), lambda p, e: p + e + p * e, (axis,))
    return jnp.maximum(x, 0.0).sum(axis) + jnp.log1p(products).sum(axis)


@jax.custom_jvp
def _sigmoid(x: Array) -> Array:
    """Softplus's slope, from the exponential that ``softplus_along`` takes: compiled, it is one."""
    e = jnp.exp(-jnp.abs(x))
    return jnp.where(x >= 0, 1.0, e) / (1.0 + e)


@_sigmoid.defjvp
def _sigmoid_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y = _sigmoid(primals[0])
    return y, tangents[0] * y * (1.0 - y)


def _blank(task: Task, size: int, dim: int, dtype: Any, *also: str) -> Sums:
    zero = task.layout.own(jnp.zeros(size, dtype))
    sums: Sums = dict.fromkeys(also, zero)
    if task.gradients:
        sums["gradient"] = task.layout.own(jnp.zeros((size, dim), dtype))
    if task.statistics:
        sums["seen"] = running.blank(task.layout, size, dtype, _EXTRAS)
    return sums


def _add(sums: Sums, **more: Array) -> Sums:
    return sums | {name: sums[name] + x for name, x in more.items()}


def _entries(task: Task, logits: Array, r: Labels, c: Labels) -> tuple[Array, Array | None]:
    """Logits whose softplus counts, -inf for absent entries; and which are positives (negated)."""
    other, own = masks.negatives(r, c), masks.own_pair(r, c)
    there = logits if other is None else jnp.where(other, logits, -jnp.inf)
    positives = masks.positives(r, c) if task.same else None
    if positives is None or own is None:
        return there, None
    positives = positives & ~own
    return jnp.where(positives, -logits, there), positives


def _tile(
    task: Task, scale: Array, bias: Array, r: Side, c: Side, r_sums: Sums, c_sums: Sums
) -> tuple[Sums, Sums]:
    precision, weighted = task.layout.precision, r.extra is not None
    logits = scale * dot(r.x, c.x, (1, 1), precision) + bias
    x, positives = _entries(task, logits, r.labels, c.labels)
    value = softplus_along(x, 1)
    r_sums = _add(r_sums, value=r.extra * value if weighted else value)
    if weighted:
        c_sums = _add(c_sums, value=c.extra * softplus_along(x, 0))
    if task.statistics:
        other, own = masks.negatives(r.labels, c.labels), masks.own_pair(r.labels, c.labels)
        rows, columns = (running.of_tile(logits, other, own, axis, _EXTRAS) for axis in (1, 0))
        r_sums = r_sums | {"seen": running.merge(r_sums["seen"], rows)}
        c_sums = c_sums | {"seen": running.merge(c_sums["seen"], columns)}
    if not task.gradients:
        return r_sums, c_sums
    slope = _sigmoid(x)
    if weighted:
        slope = slope * (r.extra[:, None] + c.extra[None, :])
    if positives is not None:
        slope = jnp.where(positives, -slope, slope)
    narrow = slope.astype(r.x.dtype)
    r_sums = _add(r_sums, slope=slope.sum(1), gradient=dot(narrow, c.x, (1, 0), precision))
    return r_sums, _add(c_sums, gradient=dot(narrow, r.x, (0, 0), precision))


def _settle(layout: Layout, seen: Sums) -> Sums:
    def home(x: Array | Running) -> Array | Running:
        if isinstance(x, Running):
            return running.settle(layout, x)
        return lax.psum_scatter(x, layout.axes, tiled=True)

    return {name: home(x) for name, x in seen.items()}


def _local(
    task: Task,
    x: Array,
    y: Array,
    scale: Array,
    bias: Array,
    labels: tuple[Labels, Labels],
    weights: Array | None,
) -> tuple[Array, tuple[Running | None, Running | None], Gradients | None]:
    """The sum over all devices, statistics and gradients of this device's rows and columns."""
    layout, dtype = task.layout, accumulator(x.dtype)
    size, dim = x.shape
    # An entry weighs the mean of its row's and its column's weight.
    half = None if weights is None else weights / 2
    pair = layout.numbers(size)
    rows = Side(x, labels[0]._replace(pair=pair), half)
    columns = Side(y, labels[1]._replace(pair=pair), half)
    only = () if weights is None else ("value",)
    account = Account(
        blank=lambda count: _blank(task, count, dim, dtype, *only), settle=partial(_settle, layout)
    )
    tile = partial(_tile, task, scale, bias)

    def visit(panel: Side, account: Sums, carry: Sums) -> tuple[Sums, Sums]:
        shape = layout.tile(x, panel.x)
        carry, account = walk_tiles(tile, rows, panel, carry, account, *shape)
        return account, carry

    start = _blank(task, size, dim, dtype, "value", *(["slope"] if task.gradients else []))
    c_sums, r_sums = walk(layout, columns, account, start, visit)
    value = r_sums["value"].sum() + (c_sums["value"].sum() if only else 0.0)
    value, watched = layout.total(value), (r_sums.get("seen"), c_sums.get("seen"))
    if not task.gradients:
        return value, watched, None
    dx, dy = r_sums["gradient"], c_sums["gradient"]
    d_scale, d_bias = layout.total((jnp.sum(dx * x.astype(dtype)), r_sums["slope"].sum()))
    return value, watched, Gradients(dx, dy, d_scale, d_bias)


# Compiled once for each task even where the caller does not compile: op by op, loops crawl.
@partial(jax.jit, static_argnums=0)
def _run(task: Task, *args: Any) -> Any:
    cut, whole = task.layout.cut, PartitionSpec()
    specs = (cut, cut, whole, whole, cut, cut)
    gradients = Gradients(cut, cut, whole, whole) if task.gradients else None
    return task.layout.run(partial(_local, task), specs, (whole, cut, gradients), *args)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum(
    task: Task,
    x: Array,
    y: Array,
    scale: Array,
    bias: Array,
    labels: tuple[Labels, Labels],
    weights: Array | None,
) -> tuple[Array, tuple[Running | None, Running | None]]:
    return _run(task, x, y, scale, bias, labels, weights)[:2]


def _sum_forward(task: Task, x: Array, y: Array, scale: Array, *rest: Any) -> tuple[Any, Any]:
    value, watched, gradients = _run(dataclasses.replace(task, gradients=True), x, y, scale, *rest)
    like = jnp.zeros((0,), x.dtype)
    return (value, watched), (gradients, scale, like)


def _sum_backward(task: Task, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    del task
    gradients, scale, like = saved
    factor = cotangents[0]
    dx, dy = (((factor * scale) * g).astype(like.dtype) for g in gradients[:2])
    return dx, dy, factor * gradients.scale, factor * gradients.bias, None, None


_sum.defvjp(_sum_forward, _sum_backward)


def _dense(
    task: Task,
    x: Array,
    y: Array,
    scale: Array,
    bias: Array,
    labels: tuple[Labels, Labels],
    weights: Array | None,
) -> tuple[Array, list[RowStatistics]]:
    layout = task.layout
    products, sides = dense_logits(layout, x, y, labels, paired=True)
    logits = scale * products + bias
    entries, _ = _entries(task, logits, *sides)
    value = jnp.where(entries == -jnp.inf, 0.0, jax.nn.softplus(entries))
    if weights is not None:
        rows, columns = layout.place(weights, layout.cut), layout.place(weights, PartitionSpec())
        value = value * ((rows[:, None] + columns[None, :]) / 2)
    other, own = masks.negatives(*sides), masks.own_pair(*sides)
    seen = [RowStatistics(**describe(logits, other, own, axis)) for axis in (1, 0)]
    return value.sum(), layout.place(seen, layout.cut)


def softplus(
    rows: Float[Array, "batch dim"],
    columns: Float[Array, "batch dim"],
    scale: Float[Array, ""],
    bias: Float[Array, ""],
    *,
    ids: Integer[Array, "batch *words"] | None = None,
    weights: Float[Array, " batch"] | None = None,
    same: bool = False,
    statistics: bool = False,
    partition: LogitPartition | None = None,
) -> tuple[Float[Array, ""], RowStatistics | None]:
    """``Σ_ij w_ij softplus(s_ij)`` over the negatives; ``s = scale · rows columnsᵀ + bias``.

    An entry is a negative unless it is the row's own pair or has the row's known id. The exact
    gradient is reverse mode, once (``exchange="dense"`` can be differentiated in any mode, any
    number of times).

    Args:
      rows: ``[batch, dim]``, float32, bfloat16 (or float16, float64). Logits and their sums are
        float32 (float64).
      columns: ``[batch, dim]`` of the same dtype; row i and column i are a pair.
      scale: Scalar of the accumulation dtype.
      bias: Scalar of the accumulation dtype, added to every logit.
      ids: int32 ``[batch]`` or uint32 ``[batch, 2]``; -1 equals nothing.
      weights: ``[batch]`` of the accumulation dtype; an entry weighs the mean of its row's and its
        column's weight where both are positive, else it is absent. Absent rows have to hold
        finite numbers.
      same: Entries of the row's own content off the diagonal are positives, ``softplus(−s_ij)``,
        instead of absent.
      statistics: Also collect ``max, ties, min, sum, count, positive`` of rows and columns.
      partition: How the logits are cut; None reads it from the types of the inputs.

    Returns:
      The sum, and the statistics of the rows (those of the columns in ``columns``) or None.

    Raises:
      ValueError: Sizes that cannot be cut evenly over the devices.
    """
    layout = resolve(partition, rows)
    exists = None
    if weights is not None:
        exists = weights > 0
        weights = jnp.where(exists, jax.lax.stop_gradient(weights), 0.0)
    labels = (Labels(None, ids, exists), Labels(None, ids, exists))
    task = Task(layout, same=same, statistics=statistics, gradients=False)
    if layout.exchange == "dense":
        value, seen = _dense(task, rows, columns, scale, bias, labels, weights)
        return value, dataclasses.replace(seen[0], columns=seen[1]) if statistics else None
    placed = layout.place((rows, columns, labels, weights), layout.cut)
    scale, bias = layout.place((scale, bias), PartitionSpec())
    value, watched = _sum(task, placed[0], placed[1], scale, bias, *placed[2:])
    if not statistics:
        return value, None
    row, column = (running.describe(lax.stop_gradient(seen)) for seen in watched)
    return value, dataclasses.replace(row, columns=column)
