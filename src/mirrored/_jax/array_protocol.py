"""Making a class of ours acceptable wherever JAX takes an array.

Serves JAX 0.10 to 0.12: `lax`, `jit` and `jax.nn` no longer honour `__jax_array__`; they look the type up in two
tables. JAX 0.10.0 looks at one of them only for numbers and NumPy arrays when a primitive is applied, so there the
look is widened to the classes registered here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src import core as _core
from jax._src import dtypes as _dtypes

_registered: set[type] = set()


def register_array_like(cls: type, *, read: Callable[[Any], Any], shape_of: Callable[[Any], Any]) -> None:
    """Lets JAX take instances of `cls` for arrays.

    Args:
        cls: The class; subclasses are covered too.
        read: Gives the array (or tracer) that stands for an instance, each time a primitive is applied to it.
        shape_of: Gives the instance's abstract value (a `ShapedArray`) without reading it.
    """
    _dtypes.canonicalize_value_handlers[cls] = read
    _core.pytype_aval_mappings[cls] = shape_of
    _registered.add(cls)


def _looking_up_ours(canonicalize: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def canonicalize_value_dtype(value: Any) -> Any:
        if _registered.isdisjoint(type(value).__mro__):
            return canonicalize(value)
        return _dtypes.canonicalize_value(value)  # type: ignore[no-untyped-call]

    return canonicalize_value_dtype


if hasattr(_core, "canonicalize_value_dtype"):  # JAX 0.10.0
    _core.canonicalize_value_dtype = _looking_up_ours(_core.canonicalize_value_dtype)
