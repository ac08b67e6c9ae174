"""The collectives of a compiled program: how many, how large, and over which axes of the mesh."""

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np

from contrastive.objectives import LOSS_SCOPE
from contrastive.planning.hlo import KINDS, Instruction, Module
from contrastive.planning.overlap import products_beside


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind over the same axes, for one purpose."""

    kind: str
    axes: tuple[str, ...]  # of the mesh, along which devices exchange
    group: int  # devices that exchange with each other
    loss: bool  # of the logit matrix; else of parameters, gradients and activations
    count: int  # executions a step
    payload_bytes: int  # of the whole array on one device, a step: input, or output of a gather
    sent_bytes: int  # that each device sends, a step
    between_bytes: int  # of these, over the slow links between slices or nodes
    beside_bytes: int  # of these, those that are on their way while products run


def collectives(module: Module, mesh: Mapping[str, int], unit: int) -> list[Collective]:
    """The collectives of a program, summed up by kind and axes, the largest first.

    ``sent_bytes`` are those of algorithms that are optimal in bytes: ``(n − 1)/n`` of the whole for
    a gather or a scatter over n devices, twice that for an all-reduce, all of it for a permutation.
    Over s slices or nodes with m = n/s devices of the group in each, such an algorithm exchanges
    the whole inside and one m-th of it between: ``between_bytes`` are ``(s − 1)/s`` of that m-th,
    and all of a permutation in which any device sends to another slice or node. ``beside_bytes``:
    see :mod:`contrastive.planning.overlap`.

    Args:
      module: The compiled program.
      mesh: Names and sizes of the axes, in the order of the devices.
      unit: Devices of a slice or node, which share fast links.
    """
    found: dict[tuple, list[int]] = {}
    exchanges = {name: _exchanges(module, name) for name in module.computations}
    beside = {name: products_beside(module, name) for name in module.computations}
    scopes = module.scopes()
    for computation, instruction, times in module.executed():
        exchange = exchanges[computation].get(instruction.name)
        if exchange is None:
            continue
        if exchange.groups is None:
            axes, group, groups = ("slice",), math.prod(mesh.values()) // unit, [[0, unit]]
        else:
            groups = replica_groups(exchange.groups, math.prod(mesh.values()))
            axes, group = _axes(groups, mesh), max(map(len, groups), default=1)
        if group < 2:
            continue
        kind = exchange.kind
        payload = exchange.operand_bytes * (group if kind == "all-gather" else 1)
        sent = _sent(kind, payload, group)
        between = sent if exchange.groups is None else _sent_between(kind, payload, groups, unit)
        # The loss sums only scalars, which the compiler may combine with the gradients' sum.
        loss = LOSS_SCOPE in exchange.op_name + scopes[computation] and kind != "all-reduce"
        hidden = sent if beside[computation].get(instruction.name) else 0
        entry = found.setdefault((kind, axes, group, loss), [0, 0, 0, 0, 0])
        for i, value in enumerate((1, payload, sent, between, hidden)):
            entry[i] += times * value
    rows = [Collective(*key, *values) for key, values in found.items()]
    return sorted(rows, key=lambda row: -row.sent_bytes)


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """One collective of a computation."""

    kind: str
    groups: str | None  # the text that names them; None: a transfer between slices, of all devices
    operand_bytes: int
    op_name: str


def _exchanges(module: Module, computation: str) -> dict[str, _Exchange]:
    """The collectives of a computation, by the name of the instruction that runs them.

    The TPU compiler wraps collectives in fusions: an all-reduce with the slicing that follows is a
    reduce-scatter; and one that runs beside other work stands, with the same channel, in the
    fusions that start it, in each that carries it on, and in the one that waits for it. Of what
    goes between slices it leaves the part inside each slice, and sends the rest through the hosts.
    """
    found: dict[str, _Exchange] = {}
    started: set[str] = set()
    for instruction in module.computations[computation].values():
        around, wrapped = module.computations[computation], instruction
        if instruction.opcode == "fusion":
            around = module.computations.get(instruction.called("calls") or "", {})
            wrapped = next((one for one in around.values() if _kind(one)), instruction)
        kind = _kind(wrapped)
        if kind is None:
            continue
        if wrapped is not instruction:
            channel = re.search(r"channel_id=\d+", wrapped.rest)
            if channel and channel.group() in started:
                continue
            started |= {channel.group()} if channel else set()
            if "scatter" in instruction.name or "scatter" in (instruction.called("calls") or ""):
                kind = "reduce-scatter"
        hosts = wrapped.opcode == "send"
        operands = wrapped.operands[:1] if hosts else wrapped.operands  # the other is a token
        size = sum(buffer.bytes for name in operands for buffer in around[name].result)
        if kind == wrapped.opcode == "all-reduce":  # of bfloat16 it may be one to float32
            size = max(size, sum(buffer.bytes for buffer in wrapped.result))
        found[instruction.name] = _Exchange(
            kind, None if hosts else wrapped.rest, size, wrapped.op_name
        )
    return found


def _kind(instruction: Instruction) -> str | None:
    """Which collective an instruction is, or starts; None: none."""
    kind = instruction.opcode.removesuffix("-start")
    if kind == "send":
        transfer = re.search(r'_megascale_transfer_type="(\w+)"', instruction.rest)
        kind = transfer.group(1).lower().replace("_", "-") if transfer else ""
        kind = "collective-permute" if kind == "one-to-one" else kind
    return kind if kind in KINDS else None


def _sent(kind: str, payload: int, group: int) -> int:
    if kind == "collective-permute":
        return payload
    share = (group - 1) / group
    return round(payload * share * (2 if kind == "all-reduce" else 1))


def _sent_between(kind: str, payload: int, groups: list[list[int]], unit: int) -> int:
    units = max(len({device // unit for device in group}) for group in groups)
    if units == 1:
        return 0
    if kind in ("all-to-all", "ragged-all-to-all"):
        return _sent(kind, payload, units)
    inside = max(map(len, groups)) // units
    return _sent(kind, payload // (1 if kind == "collective-permute" else inside), units)


def _axes(groups: list[list[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the devices of a group differ."""
    sizes = tuple(mesh.values())
    axes: set[int] = set()
    for group in groups:
        places = np.array(np.unravel_index(np.array(group), sizes))
        axes |= {i for i, row in enumerate(places) if len(set(row.tolist())) > 1}
    names = tuple(mesh)
    return tuple(names[i] for i in sorted(axes))


def replica_groups(text: str, devices: int) -> list[list[int]]:
    """The groups of devices that an instruction's text names, in any of its notations.

    A permutation's pairs are groups of two.
    """
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text)
    if pairs:
        found = re.findall(r"\{(\d+),(\d+)\}", pairs.group(1))
        return [[int(a), int(b)] for a, b in found if a != b]
    named = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", text)
    if named:
        sizes = {k: int(v) for k, v in re.findall(r"'([^']+)'=(\d+)", named.group(1))}
        return _over(sizes, re.findall(r"'([^']+)'", named.group(2)))
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota:
        shape, dims = (tuple(map(int, iota.group(i).split(","))) for i in (1, 2))
        ids = np.arange(math.prod(dims)).reshape(dims)
        if iota.group(3):
            ids = ids.transpose(tuple(map(int, iota.group(3).split(","))))
        return ids.reshape(shape[0], -1).tolist()
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)+)\}", text)
    if listed:
        return [
            [int(n) for n in group.split(",")]
            for group in re.findall(r"\{([\d,]+)\}", listed.group(1))
        ]
    return [list(range(devices))]


def _over(sizes: dict[str, int], names: list[str]) -> list[list[int]]:
    axes = list(sizes)
    ids = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    inner = [i for i, name in enumerate(axes) if name in names]
    outer = [i for i in range(len(axes)) if i not in inner]
    ids = ids.transpose((*outer, *inner))
    return ids.reshape(-1, math.prod(sizes[axes[i]] for i in inner)).tolist()
