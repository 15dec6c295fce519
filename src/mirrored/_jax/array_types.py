"""Creates JAX arrays with weak types, and 64-bit arrays even without `enable_x64`."""

from __future__ import annotations

import contextlib
from typing import Final

import jax

from mirrored._jax.private import lax_operations as _lax_operations

_WIDE: Final = ("float64", "int64", "uint64", "complex128")


def weakly_typed(array: jax.Array) -> jax.Array:
    """Makes an array weakly typed, as `jnp.asarray(0.1)` is, so that it does not widen the dtype of another operand."""
    weak: jax.Array = _lax_operations._convert_element_type(array, array.dtype, weak_type=True)
    return weak


def keeping_width(dtype: str) -> contextlib.AbstractContextManager[object]:
    """Returns a context manager in which JAX keeps arrays of a 64-bit `dtype` instead of narrowing them to 32 bits."""
    return jax.enable_x64(True) if dtype in _WIDE else contextlib.nullcontext()
