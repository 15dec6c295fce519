"""Records which tensors were requested as int64 but have 32 bits, because JAX's 64-bit mode is off.

Functions of datasets compute in 64 bits. There such a tensor counts as int64. The sums of a tensor that was requested
as int32 wrap around, as in TensorFlow.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import Tracer
from mirrored._typing import DTypeLike
from mirrored.tf._dtypes import as_dtype, int64

_MOST_COPIED: Final = 16  # larger arrays are rather labels of a step, in which a copy costs time, than a state
_narrowed: Final[dict[int, weakref.ref[Any]]] = {}  # by id: arrays have weak references, but no hash


def requested_as(dtype: DTypeLike | None, array: jax.Array, source: object = None) -> jax.Array:
    """Returns `array` or a copy of it; if `dtype` is int64 but the array is int32, records the request for int64.

    Args:
        dtype: The requested dtype.
        array: The array.
        source: The tensor from which it was made. If that is the array itself, a copy is returned and recorded, unless
            the array is too large to be a state of a dataset's function.
    """
    if array.dtype == np.int32 and dtype is not None and as_dtype(dtype) is int64 and not isinstance(array, Tracer):
        if array is source:
            if array.size > _MOST_COPIED:
                return array
            array = jnp.copy(array)
        key = id(array)
        _narrowed[key] = weakref.ref(array, lambda _: _narrowed.pop(key, None))
    return array


def is_narrowed(value: object) -> bool:
    """Returns whether a value is an int32 tensor that was requested as int64."""
    found = _narrowed.get(id(value))
    return found is not None and found() is value
