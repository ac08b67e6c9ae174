"""The collectives of a compiled program: how many, how large, and over which axes of the mesh."""

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np

from contrastive.objectives import LOSS_SCOPE
from contrastive.planning.hlo import Instruction, Module

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
    "ragged-all-to-all",
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind over the same axes, for one purpose."""

    kind: str
    axes: tuple[str, ...]  # of the mesh, along which devices exchange
    group: int  # devices that exchange with each other
    loss: bool  # of the logit matrix; else of parameters, gradients and activations
    count: int  # executions a step
    payload_bytes: int  # of the whole array on one device, a step: input, or output of a gather
    sent_bytes: int  # that each device sends, a step, by ring algorithms


def collectives(module: Module, mesh: Mapping[str, int]) -> list[Collective]:
    """The collectives of a program, summed up by kind and axes, the largest first.

    ``sent_bytes`` are those of the ring algorithms that are optimal in bytes: ``(n − 1)/n`` of the
    whole for a gather or a scatter over n devices, twice that for an all-reduce, all of it for a
    permutation.

    Args:
      module: The compiled program.
      mesh: Names and sizes of the axes, in the order of the devices.
    """
    found: dict[tuple, list[int]] = {}
    for _, instruction, times in module.executed():
        kind, exchange = _exchange(module, instruction)
        if exchange is None:
            continue
        axes, group = axes_of(exchange, mesh)
        if group < 2:
            continue
        payload = _payload(kind, exchange, group)
        # The loss sums only scalars, which the compiler may combine with the gradients' sum.
        loss = LOSS_SCOPE in exchange.op_name and kind != "all-reduce"
        entry = found.setdefault((kind, axes, group, loss), [0, 0, 0])
        entry[0] += times
        entry[1] += times * payload
        entry[2] += times * _sent(kind, payload, group)
    rows = [Collective(*key, *values) for key, values in found.items()]
    return sorted(rows, key=lambda row: -row.sent_bytes)


def _exchange(module: Module, instruction: Instruction) -> tuple[str, Instruction | None]:
    """The collective that an instruction is or wraps. A TPU's fusion of an all-reduce with the
    slicing that follows is a reduce-scatter."""
    kind = instruction.opcode.removesuffix("-start")
    if kind in KINDS:
        return kind, instruction
    if instruction.opcode != "fusion":
        return kind, None
    called = instruction.called("calls") or ""
    inner = module.computations.get(called, {}).values()
    wrapped = next((one for one in inner if one.opcode.removesuffix("-start") in KINDS), None)
    if wrapped is None:
        return kind, None
    scatters = "scatter" in instruction.name or "scatter" in called
    return "reduce-scatter" if scatters else wrapped.opcode.removesuffix("-start"), wrapped


def _payload(kind: str, instruction: Instruction, group: int) -> int:
    results = instruction.result
    if instruction.opcode.endswith("-start") and len(results) > 1:
        if kind == "collective-permute":
            results = results[:1]
        elif kind in ("all-gather", "reduce-scatter"):
            results = results[len(results) // 2 :]
    size = sum(buffer.bytes for buffer in results)
    return size * group if instruction.opcode.startswith("reduce-scatter") else size


def _sent(kind: str, payload: int, group: int) -> int:
    if kind == "collective-permute":
        return payload
    share = (group - 1) / group
    return round(payload * share * (2 if kind == "all-reduce" else 1))


def axes_of(instruction: Instruction, mesh: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """The mesh axes along which the devices of a group differ, and the size of a group."""
    groups = replica_groups(instruction.rest, math.prod(mesh.values()))
    sizes = tuple(mesh.values())
    axes: set[int] = set()
    for group in groups:
        places = np.array(np.unravel_index(np.array(group), sizes))
        axes |= {i for i, row in enumerate(places) if len(set(row.tolist())) > 1}
    names = tuple(mesh)
    return tuple(names[i] for i in sorted(axes)), max(map(len, groups), default=1)


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
