"""A replacement of Python's `range` for traced bounds, which are known only at run time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.sequences import OPERATORS
from mirrored._typing import DTypeLike, Operand
from mirrored.tf._autograph.state import is_number
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._tensors import as_tensor


class TracedRange:
    """A range with traced bounds, which replaces Python's `range` in code that AutoGraph has converted.

    Args:
        start: The first value.
        limit: The exclusive upper bound.
        delta: The step.
        dtype: The dtype of the values; None for that of the bounds.
        error: Raised when the range is used as a tensor, which needs a known size.
        is_empty: Whether the bounds are known, and the range is empty.
    """

    def __init__(
        self,
        start: Operand,
        limit: Operand,
        delta: Operand,
        *,
        dtype: DTypeLike | None,
        error: Exception,
        is_empty: bool = False,
    ) -> None:
        given = [one if is_number(one) else as_tensor(one) for one in (start, limit, delta)]
        common = jnp.result_type(*given) if dtype is None else array_dtype(dtype)
        self._start, self._limit, self._delta = (jnp.asarray(one, common) for one in (start, limit, delta))
        self._error = error
        self.is_empty = is_empty

    @property
    def count(self) -> jax.Array:
        """The number of elements of the range, as an int32 tensor."""
        if not jnp.issubdtype(self._start.dtype, jnp.integer):
            span = (self._limit - self._start) / self._delta
            return jnp.maximum(jnp.ceil(span), 0).astype(jnp.int32)
        # Integers: a quotient of floats would be inexact from 2**24 on, and unsigned differences can be negative.
        wide = jnp.promote_types(self._start.dtype, jnp.uint16)  # no difference of int8 or int16 overflows
        start, limit, delta = (one.astype(wide) for one in (self._start, self._limit, self._delta))
        rises, falls = (delta > 0) & (limit > start), (delta < 0) & (limit < start)
        distance = jnp.where(falls, start - limit, limit - start)
        step = jnp.where(falls, -delta, delta)
        return jnp.where(rises | falls, (distance - 1) // step + 1, 0).astype(jnp.int32)

    def empty(self) -> jax.Array:
        """Returns an empty tensor with the dtype of the range."""
        return as_tensor(np.zeros(0, self._start.dtype))

    def at(self, place: Operand) -> jax.Array:
        """Returns the number at a given index of the range."""
        return self._start + jnp.asarray(place).astype(self._start.dtype) * self._delta

    def __iter__(self) -> Iterator[Any]:
        raise self._error

    def __jax_array__(self) -> Any:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        """Raises an error for attributes of tensors, such as `shape`: a range with traced bounds is not a tensor."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error


def _refused(traced: TracedRange, *_: object) -> Any:
    raise traced._error


# Python looks up operators in the class, and not by `__getattr__`. Equality is kept: AutoGraph compares variables.
_OPERATORS = [name for name in OPERATORS if name not in ("__eq__", "__ne__")]
for _name in ("__getitem__", "__len__", "__neg__", "__abs__", *_OPERATORS):
    setattr(TracedRange, _name, _refused)
