"""Evaluates conditions, ``not x``, ``x == y`` and ``x != y`` in code that AutoGraph has converted."""

from __future__ import annotations

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
    """Evaluates ``not value`` in code that AutoGraph has converted; `value` may be a traced tensor."""
    known = truth(value)
    return jnp.logical_not(as_tensor(value)) if known is None else not value


def eq(first: object, second: object) -> Any:
    """Evaluates ``first == second`` in code that AutoGraph has converted."""
    return first == second


def not_eq(first: object, second: object) -> Any:
    """Evaluates ``first != second`` in code that AutoGraph has converted."""
    return first != second
