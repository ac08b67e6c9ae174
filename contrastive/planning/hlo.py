"""Reads the text of a compiled program: which instructions run, how often, on how many bytes.

Loops over layers, tiles and ring steps are ``while`` instructions; each instruction inside counts
as often as its loops go round. Trip counts come from the compiler's own note where it leaves one,
else from the constant that the loop's counter is compared with.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

_BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
    "f8e4m3fn": 1, "f8e5m2": 1, "token": 0,
}  # fmt: skip
KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
    "ragged-all-to-all",
)
"""The collectives."""
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_OPCODE = re.compile(r"^([a-z][a-z0-9\-]*)\(")


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One array of an instruction's result or operand."""

    dtype: str
    shape: tuple[int, ...]
    fast: bool  # kept in the chip's own memory, not in HBM

    @property
    def bytes(self) -> int:
        return math.ceil(_BYTES.get(self.dtype, 4) * math.prod(self.shape))


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    result: tuple[Buffer, ...]
    operands: tuple[str, ...]
    rest: str  # everything after the opcode
    root: bool

    def called(self, key: str) -> str | None:
        """The computation that ``key=%name`` names."""
        found = re.search(rf"\b{key}=%?([\w.\-]+)", self.rest)
        return found.group(1) if found else None

    @property
    def op_name(self) -> str:
        """Where it comes from in the traced program."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found.group(1) if found else ""


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program."""

    computations: dict[str, dict[str, Instruction]]
    entry: str

    def executed(self) -> Iterator[tuple[str, Instruction, int]]:
        """``(computation, instruction, times)`` of all that run by themselves: the entry, loop
        bodies and branches, but not the insides of fusions."""
        yield from self._executed(self.entry, 1)

    def _executed(self, computation: str, times: int) -> Iterator[tuple[str, Instruction, int]]:
        for instruction in self.computations[computation].values():
            yield computation, instruction, times
            if instruction.opcode == "while":
                body = instruction.called("body")
                if body in self.computations:
                    yield from self._executed(body, times * self.trips(instruction))
            elif instruction.opcode in ("call", "async-start"):
                target = instruction.called("to_apply") or instruction.called("calls")
                if target in self.computations:
                    yield from self._executed(target, times)
            elif instruction.opcode == "conditional":  # the dearest branch would need a guess
                for target in re.findall(r"%([\w.\-]+)", _after(instruction.rest, "branch")):
                    if target in self.computations:
                        yield from self._executed(target, times)

    def scopes(self) -> dict[str, str]:
        """Where the loops that each computation is the body of come from in the traced program,
        the outermost first: the compiler drops the origin of some instructions, not of loops."""
        callers = {
            instruction.called("body"): (name, instruction.op_name)
            for name, computation in self.computations.items()
            for instruction in computation.values()
            if instruction.opcode == "while"
        }

        def scope(name: str) -> str:
            caller, op_name = callers.get(name, ("", ""))
            return f"{scope(caller)} {op_name}" if caller else ""

        return {name: scope(name) for name in self.computations}

    def trips(self, loop: Instruction) -> int:
        """How often a loop goes round; 1 where it cannot be known."""
        noted = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest)
        if noted:
            return int(noted.group(1))
        condition = self.computations.get(loop.called("condition") or "", {})
        constants = {
            name: int(found.group(1))
            for name, instruction in condition.items()
            if instruction.opcode == "constant"
            and (found := re.match(r"\((\d+)\)", instruction.rest))
        }
        for instruction in condition.values():
            limits = [constants[name] for name in instruction.operands if name in constants]
            if instruction.opcode == "compare" and "direction=LT" in instruction.rest and limits:
                return limits[0]
            if instruction.opcode == "fusion" and instruction.root and limits:
                return limits[0]
        return 1


def _after(text: str, word: str) -> str:
    return text[text.index(word) :] if word in text else ""


def parse(text: str) -> Module:
    """The computations of an HLO module's text."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header and " = " not in line.split("(", 1)[0]:
            current = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
            continue
        if line.startswith("}"):
            current = None
        found = _INSTRUCTION.match(line) if current is not None else None
        if found and current is not None:
            instruction = _instruction(bool(found.group(1)), found.group(2), found.group(3))
            if instruction is not None:
                current[instruction.name] = instruction
    return Module(computations, entry)


def _instruction(root: bool, name: str, text: str) -> Instruction | None:
    kind, rest = _split_type(text)
    opcode = _OPCODE.match(rest)
    if opcode is None:
        return None
    rest = rest[len(opcode.group(1)) :]
    inside = rest[1 : _closing(rest)]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(name, opcode.group(1), buffers(kind), operands, rest, root)


def _split_type(text: str) -> tuple[str, str]:
    """The type of the result, which may be a tuple with spaces, and what follows it."""
    if text.startswith("("):
        end = _closing(text) + 1
        return text[:end], text[end:].lstrip()
    kind, _, rest = text.partition(" ")
    return kind, rest


def _closing(text: str) -> int:
    """Where the bracket that opens ``text`` closes."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return i
    return len(text)


def buffers(kind: str) -> tuple[Buffer, ...]:
    """The arrays of a type."""
    return tuple(
        Buffer(
            found.group(1),
            tuple(int(n) for n in found.group(2).split(",") if n),
            fast="S(1)" in (found.group(3) or ""),
        )
        for found in _ARRAY.finditer(kind)
        if found.group(1) in _BYTES
    )


# --- Traffic between a device and its memory ---------------------------------------------------

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional",
    "call", "after-all", "partition-id", "replica-id", "copy-done", "all-gather-done",
    "all-reduce-done", "collective-permute-done", "async-done", "async-start", "async-update",
    "iota", "broadcast", "opt-barrier", "send", "recv", "send-done", "recv-done",
    "fusion-done",
}  # fmt: skip


def memory_traffic(module: Module) -> int:
    """Bytes that one device reads from and writes to its memory in one run of the program.

    Operands and results of every instruction that runs, loops counted; a fusion that reads a slice
    of a stack, or writes one in place, counts the slice. Arrays in the chip's own memory count
    nothing. An estimate from above: caches and kept tiles are not known here.
    """
    total = 0
    for computation, instruction, times in module.executed():
        if instruction.opcode in _FREE:
            continue
        total += times * _touched(module, module.computations[computation], instruction)
    return total


def _touched(module: Module, around: dict[str, Instruction], instruction: Instruction) -> int:
    if instruction.opcode in ("dynamic-slice", "slice", "gather"):
        return 2 * _slow(instruction.result)
    if instruction.opcode == "dynamic-update-slice":
        update = around.get(instruction.operands[1])
        return 2 * _slow(update.result) if update else 0
    operands = [around[name].result for name in instruction.operands if name in around]
    if "__cublas" in instruction.rest:  # the last result is workspace, an upper bound
        return _slow(instruction.result[:1]) + sum(map(_slow, operands))
    if instruction.opcode == "fusion-start":  # of its results the first are its operands
        fresh = instruction.result[sum(map(len, operands)) :]
        instruction = dataclasses.replace(instruction, opcode="fusion", result=fresh)
    if instruction.opcode == "copy-start" or instruction.opcode.endswith("-start"):
        return 2 * sum(map(_slow, operands))
    inner = module.computations.get(instruction.called("calls") or "")
    if instruction.opcode != "fusion" or inner is None:
        return _slow(instruction.result) + sum(map(_slow, operands))
    if any(one.opcode in KINDS for one in inner.values()):
        return _beside_a_collective(instruction, operands)
    return _fused(inner, instruction, operands)


def _beside_a_collective(instruction: Instruction, operands: list[tuple[Buffer, ...]]) -> int:
    """Of a fusion that carries on a collective: its arrays pass through and are not touched."""
    aliased = re.findall(
        r"\{(\d*)\}: \((\d+),", _after(instruction.rest, "output_to_operand_aliasing")
    )
    outputs, inputs = ({int(pair[i] or 0) for pair in aliased} for i in (0, 1))
    results = [(buffer,) for buffer in instruction.result]
    return sum(
        _slow(one)
        for side, through in ((results, outputs), (operands, inputs))
        for i, one in enumerate(side)
        if i not in through
    )


def _fused(
    inner: dict[str, Instruction], instruction: Instruction, operands: list[tuple[Buffer, ...]]
) -> int:
    parameters = {}
    for one in inner.values():
        number = re.match(r"\((\d+)\)", one.rest)
        if one.opcode == "parameter" and number:
            parameters[int(number.group(1))] = one.name
    total, in_place = 0, 0
    for i, result in enumerate(operands):
        users = [one for one in inner.values() if parameters.get(i) in one.operands]
        first = [u for u in users if u.operands[0] == parameters.get(i)]
        slices = [u for u in first if u.opcode in ("dynamic-slice", "slice", "gather")]
        updates = [u for u in first if u.opcode == "dynamic-update-slice"]
        if users and len(slices) == len(users):
            total += 0 if _fast(result) else sum(_size(u.result) for u in slices)
        elif users and len(updates) == len(users):
            written = sum(_size(inner[u.operands[1]].result) for u in updates)
            total += 0 if _fast(result) else written
            in_place += 0 if _fast(result) else _size(result)
        else:
            total += _slow(result)
    return total + max(0, _slow(instruction.result) - in_place)


def _slow(result: tuple[Buffer, ...]) -> int:
    return sum(b.bytes for b in result if not b.fast)


def _size(result: tuple[Buffer, ...]) -> int:
    return sum(b.bytes for b in result)


def _fast(result: tuple[Buffer, ...]) -> bool:
    return all(b.fast for b in result)
