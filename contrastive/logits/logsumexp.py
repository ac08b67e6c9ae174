"""``log Σ exp`` of the rows, and in the same pass of the columns, of a matrix of logits.

Forward: one product a tile serves both directions. Backward: the tile is computed again, turned
into the gradient with respect to its logits, and multiplied with either side: 4U operations in all
(U = 2·b·B·d for b rows a device of a batch B), and never more than a tile of logits in memory.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Integer

from contrastive.logits import masks, running
from contrastive.logits.dense import dense_logsumexp
from contrastive.logits.exchange import Account, walk, walk_shared
from contrastive.logits.masks import Labels
from contrastive.logits.partition import Layout, LogitPartition, check_divides, is_cut, resolve
from contrastive.logits.running import Running
from contrastive.logits.statistics import RowStatistics
from contrastive.logits.tiles import Side, accumulator, dot, walk_tiles


@dataclasses.dataclass(frozen=True)
class Task:
    """What to reduce, known when the program is traced."""

    layout: Layout
    paired: bool  # row i and column i are a pair: no negatives of each other
    two_way: bool  # also reduce the columns
    symmetric: bool  # the columns are the rows
    shared: bool  # every device holds all columns
    same: bool  # also reduce the entries of the row's own content
    statistics: bool  # also collect max, ties, min, sum, count, positive

    @property
    def extras(self) -> running.Extras:
        """Extra statistics of the negatives."""
        if not self.statistics:
            return ("total",)
        return ("total", "ties", "min", "sum", "number", *(("own",) if self.paired else ()))

    @property
    def column_spec(self) -> PartitionSpec:
        """How the columns lie on the devices."""
        return PartitionSpec() if self.shared else self.layout.cut


class Sums(NamedTuple):
    """Running statistics of one side: of negatives, and of the row's own content."""

    other: Running
    same: Running | None


class Reduced(NamedTuple):
    """Results of one side. The first three carry gradients."""

    logsumexp: Array
    same_logsumexp: Array | None
    same_sum: Array | None
    rest: Any  # statistics of the negatives, and the number of entries of the row's own content


class Pull(NamedTuple):
    """What the backward pass needs of each row or column: results and their cotangents."""

    level: Array  # logsumexp; +inf where it is -inf, so that exp(s - level) is 0
    weight: Array
    same_level: Array | None
    same_weight: Array | None
    sum_weight: Array | None


_SAME_EXTRAS = ("total", "sum", "number")


def _blank(task: Task, size: int, dtype: Any) -> Sums:
    return Sums(
        running.blank(task.layout, size, dtype, task.extras),
        running.blank(task.layout, size, dtype, _SAME_EXTRAS) if task.same else None,
    )


def _merge(a: Sums, b: Sums) -> Sums:
    if a.same is None or b.same is None:
        return Sums(running.merge(a.other, b.other), None)
    return Sums(running.merge(a.other, b.other), running.merge(a.same, b.same))


def _reduced(sums: Sums) -> Reduced:
    same = sums.same
    return Reduced(
        logsumexp=running.logsumexp(sums.other),
        same_logsumexp=None if same is None else running.logsumexp(same),
        same_sum=None if same is None else same.sum,
        rest=(sums.other, None if same is None else same.number),
    )


def _labelled(task: Task, labels: Labels, size: int) -> Labels:
    return labels._replace(pair=task.layout.numbers(size)) if task.paired else labels


def _logits(task: Task, rows: Side, columns: Side, scale: Array) -> Array:
    return scale * dot(rows.x, columns.x, (1, 1), task.layout.precision)


def _forward_local(
    task: Task, x: Array, y: Array | None, scale: Array, x_labels: Labels, y_labels: Labels
) -> tuple[Reduced, Reduced | None]:
    """Results of this device's rows and columns."""
    y, y_labels = (x, x_labels) if y is None else (y, y_labels)
    rows = Side(x, _labelled(task, x_labels, x.shape[0]))
    columns = Side(y, _labelled(task, y_labels, y.shape[0]))
    dtype = accumulator(x.dtype)

    def tile(r: Side, c: Side, r_sums: Sums, c_sums: Any) -> tuple[Sums, Any]:
        logits = _logits(task, r, c, scale)
        other, own = masks.negatives(r.labels, c.labels), masks.own_pair(r.labels, c.labels)
        same = masks.positives(r.labels, c.labels) if task.same else None

        def along(axis: int) -> Sums:
            return Sums(
                running.of_tile(logits, other, own, axis, task.extras),
                running.of_tile(logits, same, own, axis, _SAME_EXTRAS) if task.same else None,
            )

        r_sums = _merge(r_sums, along(1))
        return r_sums, _merge(c_sums, along(0)) if task.two_way else c_sums

    def visit(panel: Side, account: Any, carry: Sums) -> tuple[Any, Sums]:
        shape = task.layout.tile(x, panel.x)
        carry, account = walk_tiles(tile, rows, panel, carry, account, *shape)
        return account, carry

    account = Account(
        blank=lambda size: _blank(task, size, dtype) if task.two_way else (),
        settle=lambda seen: jax.tree.map(
            partial(running.settle, task.layout), seen, is_leaf=lambda s: isinstance(s, Running)
        ),
    )
    go = walk_shared if task.shared else walk
    seen, sums = go(task.layout, columns, account, _blank(task, x.shape[0], dtype), visit)
    return _reduced(sums), _reduced(seen) if task.two_way else None


def _pull(result: Reduced, cotangent: Reduced) -> Pull:
    def level(value: Array) -> Array:
        return jnp.where(value == -jnp.inf, jnp.inf, value)

    if result.same_logsumexp is None:
        return Pull(level(result.logsumexp), cotangent.logsumexp, None, None, None)
    return Pull(
        level(result.logsumexp),
        cotangent.logsumexp,
        level(result.same_logsumexp),
        cotangent.same_logsumexp,
        cotangent.same_sum,
    )


def _slope(logits: Array, other: Array | None, same: Array | None, pull: Pull, axis: int) -> Array:
    """Gradient with respect to a tile of logits that comes through one side's results."""
    level, weight = (jnp.expand_dims(x, axis) for x in pull[:2])
    if pull.same_level is None or same is None:
        there = logits if other is None else jnp.where(other, logits, -jnp.inf)
        return weight * jnp.exp(there - level)
    same_level, same_weight, sum_weight = (
        jnp.expand_dims(x, axis) for x in pull[2:] if x is not None
    )
    there = same if other is None else same | other
    part = jnp.exp(jnp.where(there, logits, -jnp.inf) - jnp.where(same, same_level, level))
    return jnp.where(same, same_weight * part + sum_weight, weight * part)


def _backward_local(
    task: Task,
    x: Array,
    y: Array | None,
    scale: Array,
    x_labels: Labels,
    y_labels: Labels,
    results: tuple[Reduced, Reduced | None],
    cotangents: tuple[Reduced, Reduced | None],
) -> tuple[Array, Array | None, Array]:
    """Gradients of this device's rows and columns, and of the scale."""
    dtype = accumulator(x.dtype)
    row_pull = _pull(results[0], cotangents[0])
    if y is None:
        y_labels, column_pull = x_labels, row_pull
    elif results[1] is not None and cotangents[1] is not None:
        column_pull = _pull(results[1], cotangents[1])
    else:
        column_pull = None
    y_side = x if y is None else y
    rows = Side(x, _labelled(task, x_labels, x.shape[0]), row_pull)
    columns = Side(y_side, _labelled(task, y_labels, y_side.shape[0]), column_pull)

    def tile(r: Side, c: Side, dr: Array, dc: Any) -> tuple[Array, Any]:
        logits = _logits(task, r, c, scale)
        other = masks.negatives(r.labels, c.labels)
        same = masks.positives(r.labels, c.labels) if task.same else None
        slope = _slope(logits, other, same, r.extra, 1)
        if c.extra is not None:
            slope = slope + _slope(logits, other, same, c.extra, 0)
        slope = slope.astype(x.dtype)
        dr = dr + dot(slope, c.x, (1, 0), task.layout.precision)
        if not task.symmetric:
            dc = dc + dot(slope, r.x, (0, 0), task.layout.precision)
        return dr, dc

    def visit(panel: Side, account: Any, carry: Array) -> tuple[Any, Array]:
        shape = task.layout.tile(x, panel.x)
        carry, account = walk_tiles(tile, rows, panel, carry, account, *shape)
        return account, carry

    def zeros(size: int) -> Any:
        return task.layout.own(jnp.zeros((size, x.shape[1]), dtype))

    account = Account(
        blank=lambda size: () if task.symmetric else zeros(size),
        settle=lambda seen: jax.tree.map(
            lambda g: jax.lax.psum_scatter(g, task.layout.axes, tiled=True), seen
        ),
    )
    go = walk_shared if task.shared else walk
    dy, dx = go(task.layout, columns, account, zeros(x.shape[0]), visit)
    d_scale = task.layout.total(jnp.sum(dx * x.astype(dtype)))
    if task.symmetric:
        return (scale * dx).astype(x.dtype), None, d_scale / 2
    if task.shared:
        dy = task.layout.total(dy)
    return (scale * dx).astype(x.dtype), (scale * dy).astype(x.dtype), d_scale


# Compiled once for each task even where the caller does not compile: op by op, loops crawl.
@partial(jax.jit, static_argnums=0)
def _run_forward(task: Task, *args: Any) -> tuple[Reduced, Reduced | None]:
    cut, columns, whole = task.layout.cut, task.column_spec, PartitionSpec()
    specs = (cut, columns, whole, cut, columns)
    return task.layout.run(partial(_forward_local, task), specs, (cut, cut), *args)


@partial(jax.jit, static_argnums=0)
def _run_backward(task: Task, *args: Any) -> tuple[Array, Array | None, Array]:
    cut, columns, whole = task.layout.cut, task.column_spec, PartitionSpec()
    specs = (cut, columns, whole, cut, columns, cut, cut)
    return task.layout.run(partial(_backward_local, task), specs, (cut, columns, whole), *args)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduce(
    task: Task, x: Array, y: Array | None, scale: Array, x_labels: Labels, y_labels: Labels
) -> tuple[Reduced, Reduced | None]:
    return _run_forward(task, x, y, scale, x_labels, y_labels)


def _reduce_forward(task: Task, *args: Any) -> tuple[Any, Any]:
    results = _reduce(task, *args)
    return results, (args, _differentiable(results))


def _differentiable(results: tuple[Reduced, Reduced | None]) -> tuple[Reduced, Reduced | None]:
    rows, columns = results
    return rows._replace(rest=()), None if columns is None else columns._replace(rest=())


def _reduce_backward(task: Task, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    args, results = saved
    dx, dy, d_scale = _run_backward(task, *args, results, _differentiable(cotangents))
    return dx, dy, d_scale, None, None


_reduce.defvjp(_reduce_forward, _reduce_backward)


def logsumexp(
    rows: Float[Array, "rows dim"],
    columns: Float[Array, "columns dim"] | None,
    scale: Float[Array, ""],
    *,
    paired: bool = True,
    two_way: bool = False,
    same: bool = False,
    row_ids: Integer[Array, "rows *words"] | None = None,
    column_ids: Integer[Array, "columns *words"] | None = None,
    row_exists: Bool[Array, " rows"] | None = None,
    column_exists: Bool[Array, " columns"] | None = None,
    statistics: bool = False,
    partition: LogitPartition | None = None,
) -> RowStatistics:
    """``n_i = log Σ_j exp(s_ij)`` over the negatives j of row i; ``s = scale · rows columnsᵀ``.

    An entry is a negative unless it is the row's own pair, has the row's known id, or its row or
    column does not exist. The exact gradient is reverse mode, once (``exchange="dense"`` can be
    differentiated in any mode, any number of times).

    Args:
      rows: ``[rows, dim]``, float32, bfloat16 (or float16, float64). Logits and their sums are
        float32 (float64).
      columns: ``[columns, dim]`` of the same dtype; None for the rows themselves, at 3U operations.
      scale: Scalar of the accumulation dtype.
      paired: Row i and column i are a pair.
      two_way: Also reduce the columns, from the same product.
      same: Also reduce the entries of the row's own content (``same_*`` of the result).
      row_ids: int32 ``[rows]`` or uint32 ``[rows, 2]``; -1 equals nothing.
      column_ids: The same for the columns.
      row_exists: Rows that are not there count in no column.
      column_exists: Columns that are not there count in no row. Absent rows and columns have to
        hold finite numbers.
      statistics: Also collect ``max, ties, min, sum, count, positive``.
      partition: How the logits are cut; None reads it from the types of the inputs.

    Returns:
      The statistics of the rows, with those of the columns in ``columns``.

    Raises:
      ValueError: Sizes that cannot be cut evenly over the devices.
    """
    layout = resolve(partition, rows, "batch")
    symmetric = columns is None
    if symmetric:
        column_ids, column_exists = row_ids, row_exists
    labels = Labels(None, row_ids, row_exists), Labels(None, column_ids, column_exists)
    if layout.exchange == "dense":
        return dense_logsumexp(
            layout, rows, columns, scale, labels, paired=paired, two_way=two_way, same=same
        )
    shared = columns is not None and not paired and _shared(layout, columns)
    if columns is not None and not shared:
        check_divides(layout, columns.shape[0], "negatives")
    task = Task(layout, paired, two_way, symmetric, shared, same, statistics)
    x, row_labels = layout.place((rows, labels[0]), layout.cut)
    y, column_labels = layout.place((columns, labels[1]), task.column_spec)
    if symmetric:
        column_labels = Labels()
    scale = layout.place(scale, PartitionSpec())
    row_results, column_results = _reduce(task, x, y, scale, row_labels, column_labels)
    result = _statistics(row_results, statistics)
    if column_results is None:
        return result
    return dataclasses.replace(result, columns=_statistics(column_results, statistics))


def _shared(layout: Layout, columns: Array) -> bool:
    """Whether a pool stays whole on every device: it is not cut, or can't be cut evenly."""
    return not is_cut(columns) or columns.shape[0] % layout.devices != 0


def _statistics(reduced: Reduced, statistics: bool) -> RowStatistics:
    other, same_count = jax.lax.stop_gradient(reduced.rest)
    return dataclasses.replace(
        running.describe(other) if statistics else RowStatistics(),
        logsumexp=reduced.logsumexp,
        same_logsumexp=reduced.same_logsumexp,
        same_sum=reduced.same_sum,
        same_count=same_count,
    )
