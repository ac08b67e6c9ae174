"""Running statistics of rows (or columns) of logits, merged tile by tile and device by device."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from contrastive.logits.partition import Layout
from contrastive.logits.statistics import RowStatistics

Extras = tuple[str, ...]  # names of the fields of Running that are asked for


class Running(NamedTuple):
    """``log Σ exp`` as the largest logit and a sum relative to it; the rest only when asked for.

    Attributes:
      max: The largest logit so far, -inf before the first.
      total: ``Σ exp(s − max)``.
      ties: How many logits equal ``max``.
      min: The smallest logit, inf before the first.
      sum: ``Σ s``.
      number: How many logits.
      own: The logit of the own pair.
    """

    max: Array
    total: Array | None = None
    ties: Array | None = None
    min: Array | None = None
    sum: Array | None = None
    number: Array | None = None
    own: Array | None = None


def finite(top: Array) -> Array:
    """``top`` with 0 in place of -inf, so that differences with it are never NaN."""
    return jnp.where(top == -jnp.inf, 0.0, top)


def blank(layout: Layout, size: int, dtype: jnp.dtype, extras: Extras) -> Running:
    """Nothing seen yet, for ``size`` rows."""
    infinity, zero = layout.own((jnp.full(size, jnp.inf, dtype), jnp.zeros(size, dtype)))
    start = dict.fromkeys(extras, zero)
    if "min" in extras:
        start["min"] = infinity
    return Running(-infinity, **start)


def of_tile(
    logits: Float[Array, "rows columns"],
    mask: Bool[Array, "#rows #columns"] | None,
    own: Bool[Array, "rows columns"] | None,
    axis: int,
    extras: Extras,
) -> Running:
    """Statistics of one tile along ``axis`` over the entries of ``mask`` (None: all)."""

    def along(x: Array) -> Array:
        return x.astype(logits.dtype).sum(axis)

    there = logits if mask is None else jnp.where(mask, logits, -jnp.inf)
    top = there.max(axis)
    level = jnp.expand_dims(finite(top), axis)
    kept: dict[str, Array] = {}
    if "total" in extras:
        kept["total"] = jnp.exp(there - level).sum(axis)
    if "ties" in extras:
        kept["ties"] = along(there == level)
    if "min" in extras:
        kept["min"] = (logits if mask is None else jnp.where(mask, logits, jnp.inf)).min(axis)
    if "sum" in extras:
        kept["sum"] = along(logits if mask is None else jnp.where(mask, logits, 0.0))
    if "number" in extras:
        kept["number"] = along(jnp.broadcast_to(True if mask is None else mask, logits.shape))
    if "own" in extras:
        kept["own"] = jnp.zeros_like(top) if own is None else along(jnp.where(own, logits, 0.0))
    return Running(top, **kept)


def merge(a: Running, b: Running) -> Running:
    """Statistics over the logits of both."""
    top = jnp.maximum(a.max, b.max)
    total, ties, least = None, None, None
    if a.total is not None and b.total is not None:
        level = finite(top)
        total = a.total * jnp.exp(a.max - level) + b.total * jnp.exp(b.max - level)
    if a.ties is not None and b.ties is not None:
        ties = jnp.where(a.max == top, a.ties, 0.0) + jnp.where(b.max == top, b.ties, 0.0)
    if a.min is not None and b.min is not None:
        least = jnp.minimum(a.min, b.min)
    rest = [None if x is None or y is None else x + y for x, y in zip(a[4:], b[4:], strict=True)]
    return Running(top, total, ties, least, *rest)


def settle(layout: Layout, seen: Running) -> Running:
    """From every device's statistics of all columns to each device's own columns."""

    def scatter(x: Array) -> Array:
        return lax.psum_scatter(x, layout.axes, tiled=True)

    def home(x: Array) -> Array:
        size = x.shape[0] // layout.devices
        return lax.dynamic_slice_in_dim(x, layout.part() * size, size)

    top = lax.pmax(seen.max, layout.axes)
    total, ties, least = None, None, None
    if seen.total is not None:
        total = scatter(seen.total * jnp.exp(seen.max - finite(top)))
    if seen.ties is not None:
        ties = scatter(jnp.where(seen.max == top, seen.ties, 0.0))
    if seen.min is not None:
        least = home(lax.pmin(seen.min, layout.axes))
    rest = [None if x is None else scatter(x) for x in seen[4:]]
    return Running(home(top), total, ties, least, *rest)


def logsumexp(running: Running) -> Array:
    """``log Σ exp(s)``; -inf where nothing was seen."""
    assert running.total is not None
    empty = running.total == 0
    return jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1.0, running.total)) + running.max)


def describe(running: Running) -> RowStatistics:
    """The statistics in the form that losses return."""
    return RowStatistics(
        positive=running.own,
        max=running.max,
        ties=running.ties,
        min=running.min,
        sum=running.sum,
        count=running.number,
    )
