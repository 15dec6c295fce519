"""Converts Python lists and tuples that are used as operands of arrays: ``array - [0.5, 0.25]``.

JAX's arrays refuse them. Variables accept them; the arrays of a program that imports `mirrored.tf` do, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike
from mirrored.errors import ArgumentError

COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
ARITHMETIC: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
OPERATORS: Final = tuple(f"__{name}__" for name in (*COMPARISONS, *ARITHMETIC, *(f"r{one}" for one in ARITHMETIC)))
"""The special methods of the operators that take lists."""

# The least of JAX's scalar types that a Python number of each kind has; a list has that of its numbers.
_WEAK: Final = ((np.bool_, False), (np.integer, 0), (np.floating, 0.0), (np.complexfloating, 0j))


def beside(value: Any, dtype: DTypeLike) -> Any:
    """Converts a list or tuple to an array of `dtype`, or of a wider kind of dtype if the elements need one.

    The result is an operand next to an array of `dtype`, and is promoted like a Python number: floats are float32 next
    to integers.

    Args:
        value: A list or tuple of numbers, arrays, variables and lists of them.
        dtype: The dtype of the array.

    Returns:
        A NumPy array if all elements are numbers or NumPy arrays; else an array of JAX, stacked from the elements.

    Raises:
        TypeError: An element is neither a number nor an array.
        ValueError: The lists have different lengths.
        ArgumentError: An integer does not fit into the dtype.
    """
    elements = [_read(one) for one in _flat(value)]
    if any(isinstance(one, jax.Array) for one in elements):
        return stacked(value, _common(jnp.result_type(*elements), dtype))
    array = np.asarray(value)
    if array.dtype.kind not in "biufcV" or array.dtype.fields:
        raise _no_tensor_error(value, elements)
    wanted = np.dtype(dtype) if not array.size else np.dtype(_common(array.dtype, dtype))
    if not _is_held(array, wanted):
        raise ArgumentError(
            "an operator",
            found=f"the list {value!r} beside an array of dtype {np.dtype(dtype)}",
            rule="a list takes the dtype of the array, so its integers must fit into it",
            remedy=f"convert the array, for example array.astype({jnp.result_type(int)!s})",
        )
    return array.astype(wanted)


def _flat(value: Sequence[Any]) -> Iterator[Any]:
    for one in value:
        if isinstance(one, (list, tuple)):
            yield from _flat(one)
        else:
            yield one


def _read(value: Any) -> Any:
    if isinstance(value, jax.Array) or not hasattr(type(value), "__jax_array__"):
        return value
    return value.__jax_array__()


def _common(found: DTypeLike, dtype: DTypeLike) -> Any:
    weak = next(number for kind, number in _WEAK if jnp.issubdtype(found, kind))
    return jnp.result_type(dtype, weak)


def without_lists_of_arrays(value: object) -> Any:
    """Stacks a list or tuple that contains arrays of JAX, tracers included; returns any other value unchanged."""
    if isinstance(value, (list, tuple)) and any(isinstance(_read(one), jax.Array) for one in _flat(value)):
        return stacked(value)
    return value


def common_dtype(value: Sequence[Any]) -> Any:
    """Returns the dtype to which JAX promotes the arrays and numbers of a list or tuple."""
    return jnp.result_type(*map(_read, _flat(value)))


def stacked(value: Sequence[Any], dtype: DTypeLike | None = None) -> jax.Array:
    """Stacks an arbitrarily nested list or tuple of arrays, variables and numbers into one array.

    Args:
        value: The parts.
        dtype: The dtype of the result. Default: that to which JAX promotes the arrays and numbers.
    """
    kind = common_dtype(value) if dtype is None else dtype
    return jnp.stack(
        [stacked(one, kind) if isinstance(one, (list, tuple)) else jnp.asarray(_read(one), kind) for one in value]
    )


def has_wide_items(value: object, array: np.ndarray[Any, Any]) -> bool:
    """Returns whether a list's 64-bit dtype comes from NumPy or JAX elements instead of Python numbers.

    Such a list stays one of 64 bits: its dtype would otherwise depend on the values of its elements. `numpy.float64`
    counts as a Python number, which it is, too.

    Args:
        value: Any value; only lists and tuples of numbers, arrays, and lists of them are examined.
        array: The array that NumPy makes of it.
    """
    if array.dtype.itemsize < 8 or not isinstance(value, (list, tuple)):
        return False
    return any(
        getattr(one, "dtype", None) == array.dtype and not isinstance(one, float | complex) for one in _flat(value)
    )


def _is_held(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    if array.dtype.kind not in "iu" or dtype.kind not in "iu" or not array.size:
        return True
    limits = np.iinfo(dtype)
    return limits.min <= int(array.min()) and int(array.max()) <= limits.max


def _no_tensor_error(value: Sequence[Any], elements: Sequence[Any]) -> TypeError:
    kinds = sorted({type(one).__name__ for one in elements if not isinstance(one, (bool, int, float, complex))})
    return TypeError(
        f"Attempt to convert a value ({value!r}) with an unsupported type ({', '.join(kinds)}) to an operand of an "
        "array: tensors are of numbers and booleans"
    )


def with_sequences(operator: Callable[[Any, Any], Any], kinds: Set[type]) -> Callable[[Any, Any], Any]:
    """Wraps a binary operator of arrays so that the second operand may also be a list or tuple.

    Args:
        operator: The special method of arrays, such as ``jax.Array.__add__``.
        kinds: The types of the operands to convert.
    """

    @functools.wraps(operator)
    def method(self: Any, other: Any) -> Any:
        return operator(self, beside(other, self.dtype) if type(other) in kinds else other)

    return method
