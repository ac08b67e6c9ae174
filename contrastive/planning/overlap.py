"""Which collectives of a scheduled program are on their way while the chip computes.

One that is begun and ended apart (``…-start`` and ``…-done``; on TPU also a fusion that begins it,
fusions that carry it on, and one that ends it) lets the instructions between the two run. Whether
it hides behind them is a matter of time; that there are products between them is a matter of the
program, and can be read.
"""

import re

from contrastive.planning.hlo import KINDS, Instruction, Module

_STARTS = tuple(f"{kind}-start" for kind in KINDS)
_PRODUCTS = ("dot", "convolution")


def products_beside(module: Module, computation: str) -> dict[str, int]:
    """For each instruction that begins a collective, how many products run before it is ended.

    Args:
      module: The compiled program, whose instructions stand in the order in which they run.
      computation: One of its computations.

    Returns:
      ``{name: products}`` of the collectives that are begun and ended apart; those that the chip
      waits for are not in it. A loop between the two counts with what runs in one round of it.
    """
    open_: dict[str, str] = {}  # what ends it: the name of what begins it
    found: dict[str, int] = {}
    for instruction in module.computations[computation].values():
        ended = _ended(module, instruction)
        for key in ended & open_.keys():
            del open_[key]
        count = _products(module, instruction)
        for name in open_.values():
            found[name] += count
        begun = _begun(module, instruction)
        if begun is not None:
            open_[begun] = instruction.name
            found[instruction.name] = 0
    return found


def _begun(module: Module, instruction: Instruction) -> str | None:
    """What will end the collective that this instruction begins: a name or a channel."""
    if instruction.opcode in _STARTS:
        return instruction.name
    if instruction.opcode == "fusion" and instruction.name.startswith("async-collective-start"):
        return _channel(module, instruction)
    return None


def _ended(module: Module, instruction: Instruction) -> set[str]:
    if instruction.opcode.endswith("-done"):
        return set(instruction.operands)
    if instruction.opcode == "fusion" and instruction.name.startswith("async-collective-done"):
        return {_channel(module, instruction) or ""}
    return set()


def _channel(module: Module, fusion: Instruction) -> str | None:
    inside = module.computations.get(fusion.called("calls") or "", {})
    for one in inside.values():
        found = re.search(r"channel_id=\d+", one.rest)
        if found and one.opcode.removesuffix("-start") in KINDS:
            return found.group()
    return None


def _products(module: Module, instruction: Instruction) -> int:
    """Products that an instruction runs."""
    if instruction.opcode in _PRODUCTS or "__cublas" in instruction.rest:
        return 1
    key = {"fusion": "calls", "while": "body", "call": "to_apply"}.get(instruction.opcode)
    inside = module.computations.get(instruction.called(key) or "", {}) if key else {}
    return sum(_products(module, one) for one in inside.values())
