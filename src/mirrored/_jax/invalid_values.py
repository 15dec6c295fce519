"""Names the operation that has computed a NaN or infinity in a jaxpr, under `jax_debug_nans` or `jax_debug_infs`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from jax.extend.core import Jaxpr, Literal, Var, primitives  # type: ignore[attr-defined]

from mirrored._jax.private import api_util as _api_util

# When the result of a jitted function contains an invalid value, JAX calls the Python function again, so that each
# operation is checked. A jitted function within it is Python code, too, which JAX calls again. If the function
# evaluates a jaxpr, a nested jitted function is an equation: JAX then raises its private `InternalFloatingPointError`,
# which only `jax.jit` catches.
#
# Supports JAX 0.10 to 0.12: `api_util.InternalFloatingPointError`, with the attributes `name` and `ty`.

InternalFloatingPointError: Final = _api_util.InternalFloatingPointError


def named_error(
    error: _api_util.InternalFloatingPointError, jaxpr: Jaxpr, constants: Sequence[Any], args: Sequence[Any]
) -> FloatingPointError:
    """Evaluates a jaxpr again, operation by operation, and returns the error that names the first invalid value.

    Args:
        error: What the first evaluation raised.
        jaxpr: The open jaxpr.
        constants: The value of each constvar.
        args: The value of each input.
    """
    try:
        _evaluate(jaxpr, (*constants, *args))
    except FloatingPointError as found:
        return found
    return _public(error)


def _public(error: _api_util.InternalFloatingPointError) -> FloatingPointError:
    return FloatingPointError(f"invalid value ({error.ty}) encountered in {error.name}")


def _evaluate(jaxpr: Jaxpr, values: Iterable[Any]) -> list[Any]:
    """Evaluates an open jaxpr for its constants and inputs; nested jitted functions are not compiled."""
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))
    for equation in jaxpr.eqns:
        operands = [_value(atom, known) for atom in equation.invars]
        if equation.primitive is primitives.jit_p:
            closed = equation.params["jaxpr"]
            outputs = _evaluate(getattr(closed, "jaxpr", closed), (*closed.consts, *operands))
        else:
            try:
                with equation.ctx.manager:
                    params = equation.primitive.get_bind_params(equation.params)
                    outputs = equation.primitive.bind(*operands, **params)
            except InternalFloatingPointError as error:
                raise _public(error) from None
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        known.update(zip(equation.outvars, outputs, strict=True))
    return [_value(atom, known) for atom in jaxpr.outvars]


def _value(atom: Var | Literal, known: dict[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]
