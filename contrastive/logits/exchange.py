"""How the columns of all devices pass by each device's rows: gathered, or around a ring.

A *panel* is a tree of arrays with one entry per column: embeddings, labels, and what the columns
bring along. An *account* is a tree with one entry per column too, and collects what the rows of all
devices do to the columns: their running statistics on the way forward, their gradient on the way
back. Both belong to a home device; accounts have to come home.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax

from contrastive.logits.partition import Layout

Visit = Callable[[Any, Any, Any], tuple[Any, Any]]


class Account(NamedTuple):
    """What a walk collects for the columns.

    Attributes:
      blank: From a number of columns to an empty account.
      settle: From every device's account of all columns to each device's own columns, summed up.
    """

    blank: Callable[[int], Any]
    settle: Callable[[Any], Any]


def walk(layout: Layout, panel: Any, account: Account, carry: Any, visit: Visit) -> tuple[Any, Any]:
    """Shows every device's panel to this device's rows.

    Args:
      layout: How the batch is cut; decides between gathering and a ring.
      panel: This device's columns.
      account: What is collected for the columns.
      carry: What is collected for this device's rows.
      visit: ``visit(panel, account, carry) -> (account, carry)``; called with columns of any
        device, in an order that differs from device to device.

    Returns:
      The account of this device's columns, seen by all devices, and the carry.
    """
    if layout.mesh is None or layout.devices == 1:
        return visit(panel, account.blank(_columns(panel)), carry)
    if layout.exchange == "gather":
        return _gather(layout, panel, account, carry, visit)
    return _ring(layout, panel, account, carry, visit)


def walk_shared(
    layout: Layout, panel: Any, account: Account, carry: Any, visit: Visit
) -> tuple[Any, Any]:
    """The same for a panel that all devices hold whole: nothing moves.

    Returns:
      This device's own account of the whole panel, and the carry.
    """
    return visit(layout.own(panel), account.blank(_columns(panel)), carry)


def _columns(panel: Any) -> int:
    return jax.tree.leaves(panel)[0].shape[0]


def _gather(
    layout: Layout, panel: Any, account: Account, carry: Any, visit: Visit
) -> tuple[Any, Any]:
    everything = jax.tree.map(lambda x: lax.all_gather(x, layout.axes, tiled=True), panel)
    seen, carry = visit(everything, account.blank(_columns(everything)), carry)
    return account.settle(seen), carry


def _halves(panel: Any) -> list[Any]:
    columns = _columns(panel)
    if columns == 1:
        return [panel]
    middle = columns // 2
    return [jax.tree.map(lambda x: x[:middle], panel), jax.tree.map(lambda x: x[middle:], panel)]


def _ring(
    layout: Layout, panel: Any, account: Account, carry: Any, visit: Visit
) -> tuple[Any, Any]:
    """Two halves of each panel travel, in opposite directions where that shortens the way.

    Halves also keep the links busy while the device computes: each panel is sent on before it is
    visited; the first half's account travels while the second half is visited, and the second
    half's account, one hop behind its panel, while the first half is. Nothing waits for an account
    that is still being written, and accounts are written in place.
    """
    assert layout.mesh is not None
    sizes = [(axis, layout.mesh.shape[axis]) for axis in layout.axes]
    *outer, (inner, around) = [(axis, size) for axis, size in sizes if size > 1]
    panels = _halves(panel)
    directions = [1, -1 if around > 2 else 1][: len(panels)]

    def hop(tree: Any, axis: str, size: int, step: int) -> Any:
        route = [(i, (i + step) % size) for i in range(size)]
        return jax.tree.map(lambda x: lax.ppermute(x, axis, route), tree)

    def next_inner(tree: Any, half: int) -> Any:
        return hop(tree, inner, around, directions[half])

    def inner_step(_: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        panels, accounts, carry = state
        ahead = [next_inner(half, i) for i, half in enumerate(panels)]
        first, carry = visit(panels[0], accounts[0], carry)
        accounts = [next_inner(first, 0), *accounts[1:]]
        if len(panels) == 2:
            second, carry = visit(panels[1], next_inner(accounts[1], 1), carry)
            accounts = [accounts[0], second]
        return ahead, accounts, carry

    def rounds(axes: list[tuple[str, int]], state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        """All visits over the inner ring and the given outer axes; panels return to their home."""
        if not axes:
            return lax.fori_loop(0, around, inner_step, state)
        (axis, size), *rest = axes

        def outer_step(_: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            panels, accounts, carry = state
            ahead = hop(panels, axis, size, 1)  # crosses the slow link during the inner round
            _, accounts, carry = rounds(rest, (panels, accounts, carry))
            return ahead, hop(accounts, axis, size, 1), carry

        return lax.fori_loop(0, size, outer_step, state)

    accounts = [account.blank(_columns(half)) for half in panels]
    _, accounts, carry = rounds(outer, (panels, accounts, carry))
    accounts = [accounts[0], *(next_inner(late, 1) for late in accounts[1:])]
    if len(accounts) == 1:
        return accounts[0], carry
    return jax.tree.map(lambda a, b: lax.concatenate([a, b], 0), *accounts), carry
