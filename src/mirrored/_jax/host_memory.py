"""NumPy memory that JAX may alias: who owns an array's buffer, and private copies of buffers that the user owns.

On CPU, `jax.device_put` and compiled calls alias an aligned NumPy buffer instead of copying it, and they read any other
buffer asynchronously, after the call has returned. Both are safe only if no one writes to the buffer afterwards. A
read-only flag does not prove that: a read-only view may have a writable base, and an owner may set the flag back. Hence
the only proof used here is that `mirrored` allocated the buffer itself and never gave user code a writable view of it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT_BYTES: Final = 64


class HostBuffer(np.ndarray[Any, Any]):
    """The bytes behind an array from `aligned_empty`: the last `base` of all its views.

    Attributes:
        exposed: Whether user code was given a writable view.
    """

    exposed = False


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Returns an uninitialised array, owned by `mirrored`, whose data begins at a multiple of 64 bytes."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        return np.empty(shape, kind)
    size_bytes = math.prod(shape) * kind.itemsize
    raw = HostBuffer((size_bytes + ALIGNMENT_BYTES,), np.uint8)
    offset = -raw.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return np.ndarray(shape, kind, buffer=raw, offset=offset)


def is_aligned(array: np.ndarray) -> bool:
    """Returns whether the array is contiguous and begins at a multiple of 64 bytes."""
    return bool(array.flags.c_contiguous) and array.ctypes.data % ALIGNMENT_BYTES == 0


def is_owned(array: np.ndarray) -> bool:
    """Returns whether only `mirrored` can write to the array's memory."""
    buffer = _buffer_of(array)
    return buffer is not None and not buffer.exposed


def owned(value: Any) -> Any:
    """Returns an array that no other code can write to: the array itself if that is proven, else an aligned copy.

    Args:
        value: Any value. A value that is not a NumPy array is returned unchanged.
    """
    if not isinstance(value, np.ndarray) or is_owned(value):
        return value
    copy = aligned_empty(value.shape, value.dtype)
    copy[...] = value
    return copy


def frozen(value: Any) -> Any:
    """Returns a read-only `owned` array, for arrays that are kept and returned more than once."""
    array = owned(value)
    if isinstance(array, np.ndarray):
        # Its bases too: a view of a writable base can be made writable again.
        base: Any = array
        while isinstance(base, np.ndarray):
            base.flags.writeable = False
            base = base.base
    return array


def expose(value: Any) -> None:
    """Records that user code receives `value`. If it is writable, its memory no longer counts as owned."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        buffer = _buffer_of(value)
        if buffer is not None:
            buffer.exposed = True


def _buffer_of(array: np.ndarray) -> HostBuffer | None:
    base = array.base
    while type(base) is np.ndarray:
        base = base.base
    return base if type(base) is HostBuffer else None
