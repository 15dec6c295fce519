"""Creates JAX arrays with weak types, and 64-bit arrays even without `enable_x64`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.boxes import Array
from mirrored._jax.private import lax_operations as _lax_operations

_WIDE: Final = ("float64", "int64", "uint64", "complex128")
_WIDE_DTYPES: Final = frozenset(map(np.dtype, _WIDE))


def weakly_typed(array: jax.Array) -> jax.Array:
    """Makes an array weakly typed, as `jnp.asarray(0.1)` is, so that it does not widen the dtype of another operand."""
    weak: jax.Array = _lax_operations._convert_element_type(array, array.dtype, weak_type=True)
    return weak


def not_weakly_typed(array: jax.Array) -> jax.Array:
    """Makes a weakly typed array strongly typed, and keeps its dtype even if that has 64 bits."""
    if not getattr(array, "weak_type", False):
        return array
    with keeping_width_of([array]):
        return array.astype(array.dtype)


def keeping_width(dtype: str) -> contextlib.AbstractContextManager[object]:
    """Returns a context manager in which JAX keeps arrays of a 64-bit `dtype` instead of narrowing them to 32 bits."""
    return jax.enable_x64(True) if dtype in _WIDE else contextlib.nullcontext()


def keeping_width_of(arrays: Iterable[object]) -> contextlib.AbstractContextManager[object]:
    """Returns a context manager in which JAX keeps 64-bit arrays, if any concrete JAX array among `arrays` has 64 bits.

    Outside of 64-bit mode JAX reads such arrays in 32 bits, and integers wrap around. NumPy arrays do not count: as
    everywhere in JAX, they have 32 bits outside of 64-bit mode. Nor do arrays that a tape tracks: what it records in
    64-bit mode could not be differentiated outside of it.
    """
    is_wide = any(type(array) is Array and array.dtype in _WIDE_DTYPES for array in arrays)
    return jax.enable_x64(True) if is_wide else contextlib.nullcontext()


def ones_like(array: jax.Array) -> jax.Array:
    """Returns ones of an array's shape and dtype, also if that has 64 bits outside of 64-bit mode."""
    with keeping_width_of([array]):
        return jnp.ones_like(array)
