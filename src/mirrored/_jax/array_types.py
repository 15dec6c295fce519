"""Makes arrays of the types that JAX does not make from a NumPy array: weak types, and 64 bits without `enable_x64`."""

from __future__ import annotations

import contextlib
from typing import Final

import jax

from mirrored._jax.private import lax_operations as _lax_operations

_WIDE: Final = ("float64", "int64", "uint64", "complex128")


def weakly_typed(array: jax.Array) -> jax.Array:
    """Returns an array with a weak type, as `jnp.asarray(0.1)` has it: its dtype does not widen that of others."""
    weak: jax.Array = _lax_operations._convert_element_type(array, array.dtype, weak_type=True)
    return weak


def keeping_width(dtype: str) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which JAX makes arrays of a dtype of 64 bits, which it narrows otherwise."""
    return jax.enable_x64(True) if dtype in _WIDE else contextlib.nullcontext()
