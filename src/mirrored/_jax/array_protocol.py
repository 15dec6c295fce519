"""Registers classes whose instances JAX accepts as arrays.

Supports JAX 0.10 to 0.12. `lax`, `jit` and `jax.nn` do not call `__jax_array__`; they look up the type in two tables.
When a primitive is applied, JAX 0.10.0 consults one of the tables only for numbers and NumPy arrays, so this module
extends that lookup to the registered classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src import core as _core
from jax._src import dtypes as _dtypes

_registered: set[type] = set()


def register_array_like(cls: type, *, read: Callable[[Any], Any], shape_of: Callable[[Any], Any]) -> None:
    """Makes JAX accept instances of `cls` as arrays.

    Args:
        cls: The class; subclasses are included.
        read: Returns the array (or tracer) of an instance. It is called whenever a primitive is applied to it.
        shape_of: Returns the instance's abstract value (a `ShapedArray`) without reading the instance.
    """
    _dtypes.canonicalize_value_handlers[cls] = read
    _core.pytype_aval_mappings[cls] = shape_of
    _registered.add(cls)


def _with_registered(canonicalize: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def canonicalize_value_dtype(value: Any) -> Any:
        if _registered.isdisjoint(type(value).__mro__):
            return canonicalize(value)
        return _dtypes.canonicalize_value(value)  # type: ignore[no-untyped-call]

    return canonicalize_value_dtype


if hasattr(_core, "canonicalize_value_dtype"):  # JAX 0.10.0
    _core.canonicalize_value_dtype = _with_registered(_core.canonicalize_value_dtype)
