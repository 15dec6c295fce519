"""Registers classes whose instances JAX accepts as arrays: operands of primitives, arguments, and indices.

Supports JAX 0.10 to 0.12. `lax`, `jit` and `jax.nn` do not call `__jax_array__`; they look up the type in two tables.
Three functions of JAX consult neither table, so this module extends them to the registered classes; for any other value
they behave as before:

- `eliminate_deprecated_list_indexing` gets every index of an array (``array[i]`` and ``array.at[i]``); JAX accepts only
  numbers and arrays there.
- `lax.asarray` gets the operands that all branches of `lax.cond` or `lax.switch` return unchanged.
- `core.canonicalize_value_dtype` (JAX 0.10.0 only) gets the operands of primitives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from mirrored._jax.private import array as _array
from mirrored._jax.private import core as _core
from mirrored._jax.private import dtypes as _dtypes
from mirrored._jax.private import indexing as _indexing
from mirrored._jax.private import lax_operations as _lax
from mirrored.patches import replace

_Array = _array.ArrayImpl
_registered: set[type] = set()
_as_index: dict[type, Callable[[Any], Any]] = {}


def register_array_like(cls: type, *, read: Callable[[Any], Any], shape_of: Callable[[Any], Any]) -> None:
    """Registers a class with JAX, so that JAX functions accept its instances as arrays.

    Args:
        cls: The class; subclasses are included.
        read: Returns the array (or tracer) of an instance. It is called whenever a primitive is applied to it.
        shape_of: Returns the instance's abstract value (a `ShapedArray`) without reading the instance.
    """
    _dtypes.canonicalize_value_handlers[cls] = read
    _core.pytype_aval_mappings[cls] = shape_of
    _registered.add(cls)
    register_index(cls, read)


def register_index(cls: type, as_index: Callable[[Any], Any]) -> None:
    """Registers a class whose instances may index JAX arrays; `as_index` converts each instance to an index.

    Args:
        cls: The class; subclasses are included.
        as_index: Returns the index for an instance, or raises an error.
    """
    _as_index[cls] = as_index


def registered_as_arrays(values: Sequence[Any], context: Callable[[], AbstractContextManager[Any]]) -> Sequence[Any]:
    """Converts the registered array-like objects among `values` to arrays, inside a ``with context():`` block.

    JAX converts the operands of a primitive when it applies the primitive, but not the arguments of a function with a
    custom derivative rule if a transformation such as `vmap` forwards the call.
    """
    at = [place for place, value in enumerate(values) if _is_registered(value)]
    if not at:
        return values
    read = list(values)
    with context():
        for place in at:
            read[place] = _dtypes.canonicalize_value(read[place])  # type: ignore[no-untyped-call]
    return read


def has_registered(values: Sequence[Any]) -> bool:
    """Returns whether any of the values is an instance of a registered array-like class, such as a variable."""
    return any(type(value) is not _Array and _is_registered(value) for value in values)


def _is_registered(value: object) -> bool:
    return not _registered.isdisjoint(type(value).__mro__)


def _with_registered(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def of_registered_too(x: Any) -> Any:
        if isinstance(x, jax.Array) or not _is_registered(x):
            return function(x)
        return _dtypes.canonicalize_value(x)  # type: ignore[no-untyped-call]

    return of_registered_too


def _with_indices(indices_of: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    @functools.wraps(indices_of)
    def indices_of_registered_too(idx: Any) -> tuple[Any, ...]:
        return tuple(map(_index, indices_of(idx)))

    return indices_of_registered_too


def _index(value: Any) -> Any:
    kind = type(value)
    if kind is slice or kind is int:
        return value
    as_index = next((_as_index[cls] for cls in kind.__mro__ if cls in _as_index), None)
    return value if as_index is None else as_index(value)


replace("jax functions", _lax, "asarray", _with_registered(_lax.asarray))
_INDICES = "eliminate_deprecated_list_indexing"
replace("jax functions", _indexing, _INDICES, _with_indices(_indexing.eliminate_deprecated_list_indexing))
if hasattr(_core, "canonicalize_value_dtype"):  # JAX 0.10.0
    replace("jax functions", _core, "canonicalize_value_dtype", _with_registered(_core.canonicalize_value_dtype))
