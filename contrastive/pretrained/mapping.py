"""The parameters of a tower under other libraries' names and layouts: one table, read both ways.

A :class:`Rule` says which of our parameters is which of their tensors and how the axes lie, as an
einops pattern. Reading follows it from right to left, writing from left to right. Only axes move,
so there and back again is the same to the last bit.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import einops
import jax
import numpy as np

from contrastive.errors import WeightsError
from contrastive.pretrained.tensors import Tensors

_WRAPPERS = ("module.", "_orig_mod.")  # of data-parallel and of compiled models
_SHOWN = 30  # names of a kind in a message


@dataclasses.dataclass(frozen=True)
class Rule:
    """One of our parameters and the tensors that hold it elsewhere.

    Attributes:
      ours: Its path, joined by ``/``: ``image/transformer/blocks/attention/qkv``. Several paths of
        equal shapes: the first axis of the pattern's left side runs over them.
      theirs: Their name. ``{}`` in it is the number of a block: our first axis runs over the
        blocks. Several names: the first axis of the pattern's right side runs over them.
      layout: An einops pattern from our axes (without that of the blocks) to theirs. Empty: equal.
      sizes: Sizes of axes that stand in parentheses on the left side.
      parts: With several names: their first axes lie behind each other along the first axis of the
        pattern's right side, in these proportions. Empty: the first axis runs over the names.
      first_block: Earlier blocks have no such tensor; our parameter holds ones there.
    """

    ours: str | tuple[str, ...]
    theirs: str | tuple[str, ...]
    layout: str = ""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    parts: tuple[int, ...] = ()
    first_block: int = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """Our paths."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, with ``{}`` for the number of the block."""
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    @property
    def stacked(self) -> bool:
        """Whether our first axis runs over blocks."""
        return "{}" in self.names[0]

    def named(self, block: int) -> tuple[str, ...]:
        """Their names for one block."""
        return tuple(name.replace("{}", str(block)) for name in self.names)

    def to_theirs(self, value: Any) -> list[Any]:
        """Their tensors for one block, from our parameter."""
        if self.layout:
            value = einops.rearrange(value, self.layout, **self._sizes(value.shape, left=True))
        if self.parts:
            unit = value.shape[0] // sum(self.parts)
            ends = [unit * n for n in itertools.accumulate(self.parts)]
            return [value[a:b] for a, b in itertools.pairwise([0, *ends])]
        return [value] if len(self.names) == 1 else [value[i] for i in range(len(self.names))]

    def to_ours(self, values: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Our parameter for one block, of this shape, from their tensors."""
        if len(self.names) == 1:
            value = values[0]
        else:
            value = np.concatenate(values) if self.parts else np.stack(values)
        if not self.layout:
            return value.reshape(shape)
        left, right = self.layout.split("->")
        return einops.rearrange(value, f"{right} -> {left}", **self._sizes(shape, left=False))

    def _sizes(self, shape: tuple[int, ...], *, left: bool) -> dict[str, int]:
        """Sizes of the axes that einops cannot see: those in parentheses on the side it reads."""
        ours, theirs = self.layout.split("->")
        side = ours if left else theirs
        known = dict(self.sizes)
        if "(" not in ours:
            axes = ours.split()
            known |= {axis: n for axis, n in zip(axes, shape, strict=True) if axis.isalpha()}
        grouped = set(re.findall(r"[a-z]+", " ".join(re.findall(r"\(([^)]*)\)", side))))
        return {axis: n for axis, n in known.items() if axis in grouped}


Abstract = Mapping[str, Any]
"""Shapes of our parameters by path."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """What :func:`read` found.

    Attributes:
      parameters: Our parameters by path, float32.
      ignored: Their tensors that hold no parameter.
    """

    parameters: dict[str, np.ndarray]
    ignored: tuple[str, ...]


def read(
    rules: Iterable[Rule],
    tensors: Tensors,
    shapes: Abstract,
    *,
    ignored: Sequence[str] = (),
    renamed: Sequence[tuple[str, str]] = (),
    source: str = "the weights",
) -> Reading:
    """Our parameters from their tensors.

    Args:
      rules: The table; it has to cover every path of ``shapes``.
      tensors: Theirs, by name.
      shapes: Our parameters: path and shape.
      ignored: Regular expressions of their tensors that hold no parameter (buffers).
      renamed: Regular expressions and replacements, for names with several spellings.
      source: How messages call the weights.

    Raises:
      WeightsError: A tensor is missing, has another shape or is not of floats, or nothing takes it;
        all of them are listed.
    """
    tensors = _unwrapped(tensors)
    found = {_renamed(name, renamed): array for name, array in tensors.items()}
    account = _Account()
    parameters: dict[str, np.ndarray] = {}
    for rule in rules:
        parameters |= _parameters_of(rule, found, shapes, account)
    spare = [name for name in found if name not in account.used]
    skipped = tuple(sorted(n for n in spare if any(re.fullmatch(p, n) for p in ignored)))
    account.complain(source, extra=sorted(set(spare) - set(skipped)))
    uncovered = sorted(set(shapes) - set(parameters))
    if uncovered:
        raise KeyError(f"the table does not say where {', '.join(uncovered)} come from.")
    return Reading(parameters, skipped)


class _Account:
    """Names that a rule takes, and what is wrong with those tensors."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.wrong: list[str] = []

    def tensor(self, found: Tensors, name: str, form: tuple[int, ...]) -> np.ndarray | None:
        """The tensor in float32; None where there is none of this shape."""
        self.used.add(name)
        array = found.get(name)
        if array is None:
            self.missing.append(name)
        elif not _fits(array, form):
            self.wrong.append(f"{name} is {_form(array)}, expected float{list(form)}")
        else:
            return np.asarray(array).astype(np.float32).reshape(form)
        return None

    def complain(self, source: str, extra: list[str]) -> None:
        """Raises :class:`WeightsError` where something is missing, wrong or of no use."""
        parts = []
        for words, names, comma in (
            ("missing", self.missing, ", "),
            ("not known here", extra, ", "),
            ("of a wrong shape", self.wrong, "; "),
        ):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                parts.append(f"{len(names)} {words}: {comma.join(names[:_SHOWN])}{more}")
        if parts:
            raise WeightsError(
                f"the tensors of {source} are not those of its model. {'. '.join(parts)}."
            )


def _parameters_of(
    rule: Rule, found: Tensors, shapes: Abstract, account: _Account
) -> dict[str, np.ndarray]:
    """The parameters of one rule; none where a tensor of it is missing or wrong."""
    unknown = [path for path in rule.paths if path not in shapes]
    if unknown:
        raise KeyError(f"the table has {', '.join(unknown)}, which the model has not.")
    shape = tuple(shapes[rule.paths[0]].shape)
    blocks, inner = (shape[0], shape[1:]) if rule.stacked else (1, shape)
    if len(rule.paths) > 1:
        inner = (len(rule.paths), *inner)
    forms = expected(rule, inner)
    # A configuration may claim any depth; that more is missing than there is says enough.
    last = min(blocks, rule.first_block + len(found) + 1)
    values = []
    for block in range(rule.first_block, last):
        named = zip(rule.named(block), forms, strict=True)
        parts = [account.tensor(found, name, form) for name, form in named]
        whole = [part for part in parts if part is not None]
        if len(whole) == len(parts):
            values.append(rule.to_ours(whole, inner))
    if rule.first_block + len(values) < blocks:
        return {}
    values = [np.ones(inner, np.float32)] * rule.first_block + values
    value = np.stack(values) if rule.stacked else values[0]
    if len(rule.paths) == 1:
        return {rule.paths[0]: np.asarray(value)}
    each = np.moveaxis(value, 1 if rule.stacked else 0, 0)
    return {path: np.asarray(part) for path, part in zip(rule.paths, each, strict=True)}


def write(rules: Iterable[Rule], parameters: Mapping[str, Any]) -> Tensors:
    """Their tensors from our parameters: :func:`read` backwards."""
    out: Tensors = {}
    for rule in rules:
        values = [np.asarray(parameters[path]) for path in rule.paths]
        axis = 1 if rule.stacked else 0
        value = values[0] if len(values) == 1 else np.stack(values, axis)
        blocks = list(value) if rule.stacked else [value]
        for block, ours in enumerate(blocks):
            if block < rule.first_block:
                continue
            for name, theirs in zip(rule.named(block), rule.to_theirs(ours), strict=True):
                out[name] = np.ascontiguousarray(theirs).reshape(theirs.shape)
    return out


def expected(rule: Rule, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of their tensors for one block, where ours has this one."""
    parts = jax.eval_shape(rule.to_theirs, jax.ShapeDtypeStruct(shape, np.float32))
    return [tuple(part.shape) for part in parts]


def _fits(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Floats of this shape; one number may be () or (1,), as the families write it."""
    alone = array.size == 1 and array.ndim <= 1 and shape in ((), (1,))
    return _is_float(array) and (array.shape == shape or alone)


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name in ("bfloat16",)


def _form(array: np.ndarray) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


def _unwrapped(tensors: Tensors) -> Tensors:
    """Without the prefixes that PyTorch's wrappers put before every name."""
    for prefix in _WRAPPERS:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return _unwrapped({n.removeprefix(prefix): array for n, array in tensors.items()})
    return tensors


def _renamed(name: str, renamed: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in renamed:
        name = re.sub(pattern, replacement, name)
    return name
