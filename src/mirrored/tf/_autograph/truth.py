"""Evaluates conditions, ``not x``, ``x in y``, ``x == y`` and ``x != y`` in code that AutoGraph has converted."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, TypeGuard

import jax
import jax.numpy as jnp

from mirrored._jax.traces import Tracer
from mirrored.tf._ops.control_flow import known_bool
from mirrored.tf._tensors import as_tensor

_NOTE: Final = (
    "tf.function: AutoGraph does not convert `in`, `not in`, `any`, `all` and the `if` of a comprehension\n"
    "  rule:   their conditions stay Python, so that tensors in them must be known while tracing\n"
    "  remedy: tf.reduce_any(tf.equal(x, [1, 2, 3])) for `x in [1, 2, 3]`, tf.reduce_any(tf.stack(conditions)) for "
    "`any(conditions)`, tf.reduce_all for `all`, and tf.where for such an `if`"
)


def is_traced(value: object) -> TypeGuard[jax.Array]:
    """Returns whether a value is a traced tensor, known or not."""
    return isinstance(value, jax.Array) and isinstance(value, Tracer)


def truth(value: object) -> bool | None:
    """Returns a condition as a Python bool, or None if it is a traced tensor that is known only at run time."""
    if hasattr(type(value), "__jax_array__"):
        value = as_tensor(value)
    return known_bool(value) if is_traced(value) else bool(value)


def known_truth(value: object) -> bool:
    """Returns a condition as a Python bool, where converted code needs one, as in ``assert value``.

    Raises:
        TracerBoolConversionError: It is a traced tensor that is known only at run time.
    """
    known = truth(value)
    if known is not None:
        return known
    try:
        return bool(value)
    except jax.errors.ConcretizationTypeError as error:
        error.add_note(_NOTE)
        raise


def is_abstract(value: object) -> bool:
    """Returns whether a value is a traced tensor that Python's `bool` and `int` refuse, even if its value is known."""
    if not is_traced(value) or value.ndim > 0:
        return is_traced(value)
    try:
        bool(value)
    except jax.errors.ConcretizationTypeError:
        return True
    return False


def not_(value: object) -> Any:
    """Evaluates ``not value`` in code that AutoGraph has converted; `value` may be a traced tensor.

    The result for a traced tensor is a tensor, even if its value is known, as that of ``value == 0``.
    """
    if hasattr(type(value), "__jax_array__"):
        value = as_tensor(value)
    return jnp.logical_not(value) if is_traced(value) else not value


def is_in(value: object, items: Container[Any]) -> bool:
    """Evaluates ``value in items`` in code that AutoGraph has converted; compares tensors that are known."""
    if not isinstance(items, (list, tuple)) or type(items) not in (list, tuple):  # a subclass may define `in`
        return value in items
    return any(one is value or known_truth(one == value) for one in items)


def eq(first: object, second: object) -> Any:
    """Evaluates ``first == second`` in code that AutoGraph has converted."""
    return first == second


def not_eq(first: object, second: object) -> Any:
    """Evaluates ``first != second`` in code that AutoGraph has converted."""
    return first != second
