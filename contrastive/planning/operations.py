"""Floating-point operations of a traced function: those of its matrix products and convolutions.

The compiler's own count sees the body of a loop once; here a loop over layers or tiles counts as
often as it goes round, and a program that runs on every device counts for every device.
"""

import dataclasses
import math
from typing import Any

import jax
from jax import lax
from jax.extend import core


@dataclasses.dataclass(frozen=True)
class Operations:
    """A multiplication and an addition are two.

    Attributes:
      total: All.
      exact: Those in float32 at the highest precision, which are slower than bfloat16.
      inside: Those in the scope that was asked for.
    """

    total: int = 0
    exact: int = 0
    inside: int = 0

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(
            self.total + other.total, self.exact + other.exact, self.inside + other.inside
        )

    def times(self, count: int) -> "Operations":
        """Of a loop."""
        return Operations(self.total * count, self.exact * count, self.inside * count)


def operations(function: Any, *args: Any, scope: str | None = None) -> Operations:
    """Operations of one call, over all devices.

    Args:
      function: Any function that JAX can trace; ``args`` may be ``jax.ShapeDtypeStruct``.
      scope: A name given with ``jax.named_scope``; what is computed under it, and for its
        gradient, is counted as ``inside``.
    """
    return _count(jax.make_jaxpr(function)(*args).jaxpr, scope, False)


def _count(jaxpr: Any, scope: str | None, inside: bool) -> Operations:
    return sum((_of_equation(e, scope, inside) for e in jaxpr.eqns), Operations())


def _of_equation(equation: Any, scope: str | None, inside: bool) -> Operations:
    name, params = equation.primitive.name, equation.params
    if scope is not None and not inside:
        inside = scope in str(equation.source_info.name_stack)
    if name in ("dot_general", "conv_general_dilated"):
        count = _of_product(equation)
        exact = equation.invars[0].aval.dtype == "float32" and _highest(params["precision"])
        return Operations(count, count if exact else 0, count if inside else 0)
    if name == "cond":
        counts = [_count(_open(branch), scope, inside) for branch in params["branches"]]
        return max(counts, key=lambda count: count.total)
    times = 1
    if name == "scan":
        times = params["length"]
    elif name == "shard_map":
        times = math.prod(params["mesh"].shape.values())
    inner = [
        _open(value)
        for value in jax.tree.leaves(
            tuple(params.values()), is_leaf=lambda v: isinstance(v, _KINDS)
        )
        if isinstance(value, _KINDS)
    ]
    found = sum((_count(jaxpr, scope, inside) for jaxpr in inner), Operations())
    if name == "while" and found.total:
        found = found.times(_trips(equation))
    return found.times(times)


def _of_product(equation: Any) -> int:
    output, params = equation.outvars[0].aval.shape, equation.params
    if equation.primitive.name == "dot_general":
        (contract, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * math.prod(output) * math.prod(left[i] for i in contract)
    kernel = equation.invars[1].aval.shape
    channels_out = params["dimension_numbers"].rhs_spec[0]
    return 2 * math.prod(output) * math.prod(kernel) // kernel[channels_out]


def _highest(precision: Any) -> bool:
    both = precision if isinstance(precision, tuple) else (precision,)
    return lax.Precision.HIGHEST in both


_Closed = core.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
_KINDS = (core.Jaxpr, _Closed)


def _open(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if isinstance(jaxpr, _Closed) else jaxpr


def _trips(equation: Any) -> int:
    """Of ``fori_loop(a, b)``: b − a where both are literals in the equation, else 1."""
    params = equation.params
    condition = _open(params["cond_jaxpr"])
    start = params["cond_nconsts"] + params["body_nconsts"]
    ends = [
        variable.val
        for variable in (*equation.invars[: params["cond_nconsts"]], *equation.invars[start:])
        if isinstance(variable, core.Literal) and getattr(variable.aval, "shape", None) == ()
    ]
    if len(condition.eqns) == 1 and condition.eqns[0].primitive.name == "lt" and len(ends) >= 2:
        return max(int(ends[1]) - int(ends[0]), 0)
    return 1
