"""Which entries of a tile of logits are negatives, and which are of the row's own content."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool


class Labels(NamedTuple):
    """What is known of each row (or column) of the logits beside its embedding.

    Attributes:
      pair: int32 ``[n]``; entries where row and column agree are the own pair, never a negative.
      ids: Content ids, int32 ``[n]`` or uint32 ``[n, 2]``; -1 is unknown.
      exists: bool ``[n]``; False for padding.
    """

    pair: Array | None = None
    ids: Array | None = None
    exists: Array | None = None


def check_ids(name: str, ids: Array | np.ndarray | None, lead: tuple[int, ...]) -> None:
    """Raises unless ids are int32 of shape ``lead``, or uint32 ``[*lead, 2]`` (64-bit words).

    Raises:
      TypeError: Another dtype; int64 is named, because JAX wraps it to 32 bits silently.
      ValueError: Another shape.
    """
    if ids is None:
        return
    if str(ids.dtype) not in ("int32", "uint32"):
        raise TypeError(
            f"{name} is {ids.dtype}; content ids are int32 [...], or 64-bit ids as uint32 "
            "[..., 2] (high and low word). int64 is not accepted: without 64-bit mode JAX would "
            "wrap it to 32 bits without a word."
        )
    wanted = lead if ids.dtype == jnp.int32 else (*lead, 2)
    if ids.shape != wanted:
        raise ValueError(f"{name} is {ids.dtype} {list(ids.shape)}, expected {list(wanted)}.")


def known(ids: Array) -> Bool[Array, " n"]:
    """Which ids say something: -1 (all bits set) equals nothing."""
    if ids.ndim == 1:
        return ids != -1
    return (ids != jnp.uint32(0xFFFFFFFF)).any(-1)


def equal_ids(rows: Array, columns: Array) -> Bool[Array, "rows columns"]:
    """Which entries have the same known id."""
    if rows.ndim == 1:
        equal = rows[:, None] == columns[None, :]
    else:
        equal = (rows[:, None, 0] == columns[None, :, 0]) & (
            rows[:, None, 1] == columns[None, :, 1]
        )
    return equal & known(rows)[:, None]


def first_of_content(ids: Array) -> Bool[Array, " n"]:
    """Which rows are the first of their content; rows with unknown ids all are.

    Args:
      ids: Content ids of the whole batch, int32 ``[n]`` or uint32 ``[n, 2]``; a global array under
        jit, cut over devices or not. (They are gathered: 4 or 8 bytes a row.)
    """
    layout = jax.typeof(ids).sharding
    cut = not layout.mesh.empty and AxisType.Explicit in layout.mesh.axis_types
    whole = jax.sharding.reshard(ids, PartitionSpec()) if cut else ids
    words = whole[:, None] if whole.ndim == 1 else whole
    order = jnp.lexsort(tuple(words.T))  # stable: of equal ids the first row stays first
    ranked = words[order]
    repeated = (ranked[1:] == ranked[:-1]).all(-1) & known(whole)[order][1:]
    first = jnp.ones(len(ids), bool).at[order[1:]].set(~repeated)
    return jax.sharding.reshard(first, PartitionSpec(layout.spec[0])) if cut else first


def _all(*masks: Array | None) -> Array | None:
    result = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result & mask
    return result


def _present(rows: Labels, columns: Labels) -> Array | None:
    return _all(
        None if rows.exists is None else rows.exists[:, None],
        None if columns.exists is None else columns.exists[None, :],
    )


def own_pair(rows: Labels, columns: Labels) -> Bool[Array, "rows columns"] | None:
    """The entries of the rows' own pairs that are there; None where rows and columns are not
    pairs."""
    if rows.pair is None or columns.pair is None:
        return None
    return _all(rows.pair[:, None] == columns.pair[None, :], _present(rows, columns))


def own_content(rows: Labels, columns: Labels) -> Bool[Array, "rows columns"] | None:
    """Own pairs and entries with the row's known id."""
    own = own_pair(rows, columns)
    if rows.ids is None or columns.ids is None:
        return own
    same = equal_ids(rows.ids, columns.ids)
    return same if own is None else own | same


def negatives(rows: Labels, columns: Labels) -> Bool[Array, "#rows #columns"] | None:
    """The entries that are there and not of the row's own content; None where all are."""
    own = own_content(rows, columns)
    return _all(None if own is None else ~own, _present(rows, columns))


def positives(rows: Labels, columns: Labels) -> Bool[Array, "#rows #columns"] | None:
    """The entries that are there and of the row's own content."""
    return _all(own_content(rows, columns), _present(rows, columns))
