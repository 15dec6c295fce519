"""Finds the values over which functions with custom derivatives (`jax.custom_jvp`, `jax.custom_vjp`) close in programs.

In a traced program, the closed-over values are leading operands of the call, and the derivative rule does not cover
them. JAX refuses to differentiate a `custom_vjp` call with respect to them; for `custom_jvp` it drops their tangents.
The rules themselves are traced later, by a program that is derived from this one, and embed what they close over there.

Supports JAX 0.10 to 0.12 (`num_consts` of the two primitives).
"""

from __future__ import annotations

import enum
import functools
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Literal, primitives

from mirrored._jax.embedded import scan_split
from mirrored._jax.programs import JaxprProgram, is_inexact
from mirrored._jax.structured import stop_gradient_p

_CUSTOM = (primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)
_SAME_OPERANDS = (primitives.jit_p, primitives.remat_p, primitives.scan_p, primitives.cond_p, *_CUSTOM)


class CustomCalls(enum.IntEnum):
    """The kinds of functions with custom derivatives that a program contains."""

    NONE = 0
    PLAIN = 1
    CLOSING_OVER = 2


_found: weakref.WeakKeyDictionary[Any, CustomCalls] = weakref.WeakKeyDictionary()


def custom_calls(params: Mapping[str, Any]) -> CustomCalls:
    """Returns the kind of custom-derivative functions in the jaxprs among a primitive's parameters, at any depth."""
    return max((_custom_calls_in(jaxpr) for jaxpr in _jaxprs_in(params)), default=CustomCalls.NONE)


def _custom_calls_in(jaxpr: Any) -> CustomCalls:
    found = _found.get(jaxpr)
    if found is None:
        found = _found[jaxpr] = max(map(_custom_calls_of, _opened(jaxpr).eqns), default=CustomCalls.NONE)
    return found


def _custom_calls_of(equation: Any) -> CustomCalls:
    inside = custom_calls(equation.params)
    if equation.primitive not in _CUSTOM:
        return inside
    return max(inside, CustomCalls.CLOSING_OVER if equation.params["num_consts"] else CustomCalls.PLAIN)


def closed_over_inputs(program: JaxprProgram) -> list[int]:
    """Returns the inputs of `program` on which the closed-over operands of custom-derivative calls depend."""
    jaxpr = program.jaxpr
    _, lost = _flow(jaxpr, [1 << position for position in range(len(jaxpr.invars))])
    return [position for position in range(len(jaxpr.invars)) if lost >> position & 1]


def used_constants(program: JaxprProgram) -> list[Any]:
    """Returns the constants of `program` on which its results depend by paths without `stop_gradient`."""
    jaxpr = program.jaxpr
    bits = [1 << position for position in range(len(jaxpr.constvars))]
    results, lost = _flow(jaxpr, [0] * len(jaxpr.invars), bits)
    used = functools.reduce(operator.or_, results, lost)
    return [constant for position, constant in enumerate(program.constants) if used >> position & 1]


def embedded_tracers(program: JaxprProgram) -> list[Any]:
    """Returns the tracers embedded in the inner jaxprs of `program`, at any depth, except its own constants."""
    return list(_tracers_in(program.jaxpr.eqns))


def _tracers_in(equations: Iterable[Any]) -> Iterator[Any]:
    for equation in equations:
        for jaxpr in _jaxprs_in(equation.params):
            yield from (one for one in getattr(jaxpr, "consts", ()) if isinstance(one, jax.core.Tracer))
            yield from _tracers_in(_opened(jaxpr).eqns)


def _jaxprs_in(params: Mapping[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(one, "eqns"):
                yield one


def _opened(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _flow(jaxpr: Any, masks: Sequence[int], of_constants: Sequence[int] = ()) -> tuple[list[int], int]:
    """Returns bit masks of the inputs on which each result, and the closed-over operands, depend.

    Args:
        jaxpr: An open or closed jaxpr.
        masks: For each input of `jaxpr`, the mask of the program inputs on which it depends.
        of_constants: The same for its constants. Default: no dependency.
    """
    jaxpr = _opened(jaxpr)
    known: dict[Any, int] = dict(zip(jaxpr.invars, masks, strict=True))
    known.update(zip(jaxpr.constvars, of_constants, strict=False))
    lost = 0

    def mask_of(atom: Any) -> int:
        return 0 if isinstance(atom, Literal) else known.get(atom, 0)

    for equation in jaxpr.eqns:
        results, lost_here = _through(equation, [mask_of(atom) for atom in equation.invars])
        lost |= lost_here
        for variable, mask in zip(equation.outvars, results, strict=True):
            known[variable] = mask if is_inexact(variable.aval) else 0
    return [mask_of(atom) for atom in jaxpr.outvars], lost


def _through(equation: Any, masks: Sequence[int]) -> tuple[list[int], int]:
    """Computes `_flow` for one equation."""
    everything = functools.reduce(operator.or_, masks, 0)
    results = [0 if equation.primitive is stop_gradient_p else everything] * len(equation.outvars)
    lost = 0
    if equation.primitive in _CUSTOM:
        lost = functools.reduce(operator.or_, masks[: equation.params["num_consts"]], 0)
    for jaxpr in _jaxprs_in(equation.params):
        if _custom_calls_in(jaxpr) is CustomCalls.CLOSING_OVER:
            lost |= _lost_inside(equation, jaxpr, masks, everything)
    return results, lost


def _lost_inside(equation: Any, jaxpr: Any, masks: Sequence[int], everything: int) -> int:
    operands = masks[1:] if equation.primitive is primitives.cond_p else masks
    if equation.primitive not in _SAME_OPERANDS or len(_opened(jaxpr).invars) != len(operands):
        return _flow(jaxpr, [everything] * len(_opened(jaxpr).invars))[1]
    if equation.primitive is primitives.scan_p:
        return _lost_in_scan(equation.params, jaxpr, operands)
    return _flow(jaxpr, operands)[1]


def _lost_in_scan(params: Mapping[str, Any], jaxpr: Any, masks: Sequence[int]) -> int:
    """Computes the mask for a `scan`: iterates until the dependencies of the carry reach a fixed point."""
    start, count = scan_split(params)
    before: list[int] = []
    after = list(masks)
    while after != before:
        before = after
        results, lost = _flow(jaxpr, before)
        carried = [one | other for one, other in zip(before[start : start + count], results, strict=False)]
        after = [*before[:start], *carried, *before[start + count :]]
    return lost
