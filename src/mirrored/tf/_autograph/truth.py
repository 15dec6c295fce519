"""Evaluates conditions in code that AutoGraph has converted, and `and`, `or`, `not` on traced tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax.traces import Tracer
from mirrored.tf._ops.control_flow import known_bool
from mirrored.tf._tensors import as_tensor


def truth(value: object) -> bool | None:
    """Returns a condition as a Python bool, or None if it is a traced tensor that is known only at run time."""
    if hasattr(type(value), "__jax_array__"):
        value = as_tensor(value)
    return known_bool(value) if isinstance(value, jax.Array) and isinstance(value, Tracer) else bool(value)


def is_unknown(value: object) -> bool:
    """Returns whether a value is a traced tensor whose elements are known only at run time."""
    return isinstance(value, jax.Array) and isinstance(value, Tracer) and (value.ndim > 0 or truth(value) is None)


def not_(value: object) -> Any:
    """Evaluates ``not value`` in code that AutoGraph has converted, also for a traced tensor."""
    known = truth(value)
    return jnp.logical_not(as_tensor(value)) if known is None else not value


def and_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Evaluates ``first() and second()`` in code that AutoGraph has converted, also for traced tensors."""
    value = first()
    known = truth(value)
    if known is None:
        return jnp.logical_and(as_tensor(value), as_tensor(second()))
    return value and second() if not isinstance(value, jax.Array) else second() if known else value


def or_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Evaluates ``first() or second()`` in code that AutoGraph has converted, also for traced tensors."""
    value = first()
    known = truth(value)
    if known is None:
        return jnp.logical_or(as_tensor(value), as_tensor(second()))
    return value or second() if not isinstance(value, jax.Array) else value if known else second()


def eq(first: object, second: object) -> Any:
    """Evaluates ``first == second`` in code that AutoGraph has converted."""
    return first == second


def not_eq(first: object, second: object) -> Any:
    """Evaluates ``first != second`` in code that AutoGraph has converted."""
    return first != second
