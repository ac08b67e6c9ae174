"""Floating-point operations of a traced function: those of its matrix products and convolutions.

The compiler's own count sees the body of a loop once; here a loop over layers or tiles counts as
often as it goes round, and a program that runs on every device counts for every device.
"""

import math
from typing import Any

import jax
from jax.extend import core


def operations(function: Any, *args: Any) -> int:
    """Operations (a multiplication and an addition are two) of one call, over all devices.

    Args:
      function: Any function that JAX can trace; ``args`` may be ``jax.ShapeDtypeStruct``.
    """
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr: Any) -> int:
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contract, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contract)
    if name == "conv_general_dilated":
        kernel, output = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
        channels_out = params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(output) * math.prod(kernel) // kernel[channels_out]
    times = 1
    if name == "scan":
        times = params["length"]
    elif name == "shard_map":
        times = math.prod(params["mesh"].shape.values())
    elif name == "while":
        times = _trips(equation)
    elif name == "cond":
        return max(map(_count, map(_open, params["branches"])))
    inner = [
        _open(value)
        for value in jax.tree.leaves(
            tuple(params.values()), is_leaf=lambda v: isinstance(v, _KINDS)
        )
        if isinstance(value, _KINDS)
    ]
    return times * sum(map(_count, inner))


_KINDS = (core.Jaxpr, core.ClosedJaxpr)


def _open(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr


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
