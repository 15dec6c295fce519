"""Computes constant results, such as zeros, on the host, because JAX would compile a program for each shape.

Supports JAX 0.10 to 0.12 (`jax.make_jaxpr`; the equations `broadcast_in_dim` and `copy`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from mirrored._jax.arrays import aligned_empty

_FILLS = "broadcast_in_dim"
_PLAIN_KINDS = "biufc"


def with_constants(function: Callable[..., Any], *args: Any) -> Any:
    """Computes a JAX function's result by tracing alone if possible, otherwise by calling the function.

    Tracing is enough if each leaf of the result is filled with one constant number.

    Args:
        function: A function of JAX without side effects.
        *args: Its arguments; pytrees of arrays and numbers.

    Returns:
        The result of ``function(*args)``; its leaves are NumPy arrays if each is filled with one constant number.
    """
    described = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), args)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*described)
    filled = _filled(closed.jaxpr, len(closed.consts))
    return function(*args) if filled is None else jax.tree.unflatten(jax.tree.structure(shapes), filled)


def _filled(jaxpr: Any, constants: int) -> list[np.ndarray[Any, Any]] | None:
    """Returns a program's results as NumPy arrays if each one is filled with a single number; otherwise None."""
    if constants:
        return None
    known: dict[Any, np.ndarray[Any, Any]] = {}
    for equation in jaxpr.eqns:
        if len(equation.outvars) != 1:  # a callback, such as `jax.debug.print`, has no results
            return None
        operand: Any = equation.invars[0] if equation.invars else None
        is_fill = equation.primitive.name == _FILLS and len(equation.invars) == 1 and isinstance(operand, Literal)
        aval: Any = equation.outvars[0].aval
        if not is_fill or aval.dtype.kind not in _PLAIN_KINDS or np.ndim(operand.val):
            return None
        known[equation.outvars[0]] = filled = aligned_empty(aval.shape, aval.dtype)
        filled[...] = operand.val
    results = []
    for atom in jaxpr.outvars:
        if isinstance(atom, Literal):
            literal: Any = atom.aval
            if np.ndim(atom.val) or literal.dtype.kind not in _PLAIN_KINDS:
                return None
            results.append(np.asarray(atom.val, literal.dtype))
        elif atom in known:
            results.append(known[atom])
        else:
            return None
    return results
