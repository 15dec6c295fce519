"""Functions on arrays: allocate aligned host memory, transfer arrays to devices, read PRNG keys."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib import xla_client as _xla_client

from mirrored._jax.private import core as _core
from mirrored._jax.source_lines import user_stacklevel
from mirrored._jax.traces import canonical_dtype
from mirrored._typing import DTypeLike, Leaf, Operand
from mirrored.errors import ArgumentError

# NumPy memory that JAX may alias: who owns an array's buffer, and private copies of buffers that the user owns.
#
# On CPU, `jax.device_put` and compiled calls alias an aligned NumPy buffer instead of copying it, and they read any
# other buffer asynchronously, after the call has returned. Both are safe only if no one writes to the buffer
# afterwards. A read-only flag does not prove that: a read-only view may have a writable base, and an owner may set the
# flag back. Hence the only proof used here is that `mirrored` allocated the buffer itself and never gave user code a
# writable view of it.

ALIGNMENT_BYTES: Final = 64


class HostBuffer(np.ndarray[Any, Any]):
    """The memory behind an array from `aligned_empty`, shared by all views of that array.

    Attributes:
        exposed: Whether user code was given a writable view.
    """

    exposed = False


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Returns an uninitialised NumPy array whose memory `mirrored` allocates and aligns to 64 bytes.

    It has the native byte order, the only one that JAX and the dtypes of `mirrored.tf` have.
    """
    kind = np.dtype(dtype)
    if not kind.isnative:
        kind = kind.newbyteorder("=")
    if kind.hasobject:
        return np.empty(shape, kind)
    size_bytes = math.prod(shape) * kind.itemsize
    raw = HostBuffer((size_bytes + ALIGNMENT_BYTES,), np.uint8)
    offset = -raw.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return np.ndarray(shape, kind, buffer=raw, offset=offset)


def is_aligned(array: np.ndarray) -> bool:
    """Returns whether a NumPy array is contiguous and its memory begins at a multiple of 64 bytes."""
    return bool(array.flags.c_contiguous) and array.ctypes.data % ALIGNMENT_BYTES == 0


def is_owned(array: np.ndarray) -> bool:
    """Returns whether only this library has write access to a NumPy array's memory.

    This is so if `mirrored` has allocated the memory and given user code no writable view of it.
    """
    buffer = _buffer_of(array)
    return buffer is not None and not buffer.exposed


def owned(value: object) -> Any:
    """Returns `value`, or a copy if `value` is a NumPy array that code outside `mirrored` can write to.

    Args:
        value: Any value. A value that is not a NumPy array is returned unchanged.
    """
    if not isinstance(value, np.ndarray) or is_owned(value):
        return value
    refuse_masked(value)
    copy = aligned_empty(value.shape, value.dtype)
    copy[...] = value
    return copy


def refuse_masked(value: object) -> None:
    """Raises an error for a masked NumPy array, because arrays on devices cannot have masks.

    Raises:
        ArgumentError: `value` is a `numpy.ma.MaskedArray`.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            "mirrored",
            found=f"a numpy.ma.MaskedArray of {value.dtype}{list(value.shape)}",
            rule="arrays on devices have no mask: masked entries would count as ordinary ones",
            remedy="pass array.filled(number), and numpy.ma.getmaskarray(array) as a second array",
        )


def unmasked(value: Any) -> Any:
    """Returns `value`, and a NumPy matrix as an array: slices of a matrix have two dims, so that one could be lost.

    Raises:
        ArgumentError: `value` is a `numpy.ma.MaskedArray`.
    """
    refuse_masked(value)
    return value.view(np.ndarray) if isinstance(value, np.matrix) else value


def frozen(value: object) -> Any:
    """Returns a read-only NumPy array with the contents of `value`, in memory that no other code can change.

    It can be kept and returned more than once. A value that is not a NumPy array is returned unchanged.
    """
    array = owned(value)
    if isinstance(array, np.ndarray):
        # Its bases too: a view of a writable base can be made writable again.
        base: Any = array
        while isinstance(base, np.ndarray):
            base.flags.writeable = False
            base = base.base
    return array


def expose(value: object) -> None:
    """Records that user code receives the array `value` and may write to its memory."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        buffer = _buffer_of(value)
        if buffer is not None:
            buffer.exposed = True


def _buffer_of(array: np.ndarray) -> HostBuffer | None:
    base = array.base
    while isinstance(base, np.ndarray) and type(base) is not HostBuffer:
        base = base.base
    return base if type(base) is HostBuffer else None


# New arrays without a compilation: `jnp.array(value, copy=True)` compiles a program for each shape, which takes a few
# milliseconds of a processor in every process, and again in every epoch of an elastic job.
#
# Supports JAX 0.10 to 0.12: `jax.device_put(array, may_alias=False)` copies a JAX array to a new buffer on its devices.
# It loses the sharding of an array of typed keys, and it aliases NumPy arrays, which are therefore copied before.

_PLAIN_KINDS: Final = "biufc"


def is_ready(array: jax.Array) -> bool:
    """Returns, without waiting, whether a concrete array is computed, has failed, or is deleted.

    JAX's method `is_ready` raises an error for a deleted array and, in JAX 0.10, ends the process. JAX's arrays of
    typed PRNG keys have no such method.
    """
    data: Any = getattr(array, "_base_array", array)  # JAX's stubs do not list `is_ready`
    return bool(data.is_deleted() or data.is_ready())


def copied(array: jax.Array) -> jax.Array:
    """Returns a copy of an array on the same devices, in new buffers that a compiled step may donate."""
    if is_key(array):
        return jnp.array(array, copy=True)
    if array.is_fully_addressable:
        copy: jax.Array = jax.device_put(array, may_alias=False)
        return copy
    parts = [jax.device_put(shard.data, may_alias=False) for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def new_array(value: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns a new array that is not committed to a device, like `jnp.array(value, dtype, copy=True)`.

    A NumPy array or scalar is not weakly typed, so the result is not either.

    Args:
        value: An array, a number, or a list.
        dtype: The dtype of the result. Default: that of the value, as far as JAX has it.
    """
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _PLAIN_KINDS:
        refuse_masked(value)
        wanted = np.dtype(canonical_dtype(value.dtype if dtype is None else dtype))
        if wanted.kind == value.dtype.kind:
            host = aligned_empty(value.shape, wanted)
            host[...] = value
            array: jax.Array = jax.device_put(host)
            return array
    if isinstance(value, jax.Array) and not isinstance(value, _core.Tracer) and (dtype is None or value.dtype == dtype):
        return copied(value)
    return jnp.array(owned(value), dtype=_narrowed_dtype(dtype), copy=True)


def _narrowed_dtype(dtype: DTypeLike | None) -> DTypeLike | None:
    """Narrows a 64-bit dtype to 32 bits if JAX's x64 mode is off, and issues a warning at the user's source line."""
    if dtype is None or jnp.issubdtype(dtype, jax.dtypes.extended):
        return dtype
    available = jax.dtypes.canonicalize_dtype(dtype)
    if available != np.dtype(dtype):
        warnings.warn(
            f"JAX has no {np.dtype(dtype).name} without its x64 mode: the array has dtype {available.name}\n"
            f'  remedy: dtype={available.name}, or jax.config.update("jax_enable_x64", True) before arrays are made',
            UserWarning,
            stacklevel=user_stacklevel(),
        )
    return available


# Puts host arrays on devices, faster than `jax.device_put`, and without aliasing memory that user code owns.
#
# Supports JAX 0.10 to 0.12: `jaxlib.xla_client.batched_device_put`, which `jax.device_put` calls. Calling it directly
# avoids the lookups of `device_put` for every batch (``f32[512, 784]`` on 4 devices: 11 us against 44 us). It also lets
# the caller choose what XLA does with the buffer: alias it, or finish reading it before the call returns.
# `jax.device_put` always chooses the former, even with `may_alias=False`, and reads a buffer that it cannot alias after
# it has returned.

ShapedArray = jax.core.ShapedArray

_ALIAS = _xla_client.HostBufferSemantics.ZERO_COPY
_COPY = _xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL


@functools.lru_cache(maxsize=256)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    return ShapedArray(shape, dtype)


def fits(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Returns whether all values of a 64-bit integer array fit into the integer `dtype`; True for any other dtypes."""
    if array.dtype.itemsize < 8 or dtype.itemsize >= 8 or array.dtype.kind not in "iu" or dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return not array.size or bool(array.min() >= limits.min and array.max() <= limits.max)


def check_fit(value: object, dtype: DTypeLike | None = None) -> None:
    """Raises an error if a NumPy array or scalar has 64-bit integers that JAX would silently truncate to fewer bits.

    Args:
        value: Any value; only NumPy arrays and scalars are checked.
        dtype: The dtype that it is converted to. Default: its own, as far as JAX has it.

    Raises:
        ArgumentError: Integers of 64 bits do not fit into 32.
    """
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.itemsize < 8:
        return
    array, wanted = np.asarray(value), canonical_dtype(value.dtype if dtype is None else dtype)
    if fits(array, wanted):
        return
    raise ArgumentError(
        "mirrored",
        found=f"the values {np.array2string(array, threshold=5)} of dtype {array.dtype} do not fit into {wanted}",
        rule="integers on devices have 32 bits, unless JAX's 64-bit mode is on",
        remedy="set the environment variable JAX_ENABLE_X64=1, or reduce or drop these numbers",
    )


def _is_canonical(array: np.ndarray) -> bool:
    """Returns whether `array` is an unmasked NumPy array whose dtype JAX keeps on devices, in the native byte order."""
    # A dtype of the other byte order is not equal.
    return type(array) is np.ndarray and array.dtype == canonical_dtype(array.dtype)


def canonical(array: np.ndarray) -> np.ndarray:
    """Converts a NumPy array to the dtype that JAX would give it on devices, such as float32 for float64.

    Raises:
        ArgumentError: The array is masked, or integers of 64 bits do not fit into 32.
    """
    if _is_canonical(array):
        return array
    refuse_masked(array)
    check_fit(array)
    return array.astype(canonical_dtype(array.dtype), copy=False)


def put_rows(rows: np.ndarray, sharding: jax.sharding.Sharding, devices: Sequence[jax.Device]) -> jax.Array:
    """Splits a host array evenly along dimension 0, copies one part to each of `devices`, and returns a sharded array.

    Equivalent to `jax.device_put(rows, sharding)` for a `sharding` of dimension 0.

    Args:
        rows: ``[n * len(devices), ...]``.
        sharding: The sharding of the result.
        devices: The devices of `sharding`.
    """
    each = rows.shape[0] // len(devices)
    return put_shards([rows[first : first + each] for first in range(0, rows.shape[0], each)], sharding, devices)


def put_shards(
    parts: Sequence[np.ndarray], sharding: jax.sharding.Sharding, devices: Sequence[jax.Device]
) -> jax.Array:
    """Copies ``parts[i]`` to ``devices[i]`` for each i, and returns one array that is sharded along dimension 0.

    CPU devices alias an aligned buffer that `mirrored` owns. Any other buffer has been read when the call returns.

    Args:
        parts: One host array per device, with the rows of this device. All parts have the same shape and dtype.
        sharding: The sharding of the result.
        devices: The devices of `sharding`.
    """
    if not _is_canonical(parts[0]):
        parts = [canonical(part) for part in parts]
    aval = _aval((len(parts) * parts[0].shape[0], *parts[0].shape[1:]), parts[0].dtype)
    return _put(aval, sharding, parts, devices, all(map(is_owned, parts)))


def put(value: Operand, device: jax.Device | None) -> jax.Array:
    """Transfers an array to a device; copies a NumPy array first if user code may overwrite it later.

    Args:
        value: A NumPy array, or another value that `jax.device_put` accepts.
        device: A device of this process, or None for the default one.

    Raises:
        ArgumentError: The array is masked, or integers of 64 bits do not fit into 32.
    """
    if not isinstance(value, np.ndarray):
        check_fit(value)
        return jax.device_put(value, device)  # type: ignore[no-any-return]
    value = canonical(value)
    if device is None:
        return jax.device_put(owned(value))  # type: ignore[no-any-return]
    aval = _aval(value.shape, value.dtype)
    return _put(aval, jax.sharding.SingleDeviceSharding(device), [value], [device], is_owned(value))


def shape_of(value: object) -> tuple[int, ...] | None:
    """Returns the shape of an array or Python number; None for other objects."""
    return () if isinstance(value, (bool, int, float, complex)) else getattr(value, "shape", None)


def is_host_dtype(dtype: np.dtype[Any]) -> bool:
    """Returns whether a NumPy dtype is one that JAX does not support: strings, objects, dates or records."""
    return dtype.hasobject or dtype.kind in "SUTMm" or dtype.fields is not None


def refuse_host_dtype(array: np.ndarray | np.generic) -> None:
    """Raises an error if a NumPy array passed to a compiled function has a dtype that JAX does not support.

    Raises:
        ArgumentError: The array has strings, objects, dates or records.
    """
    if is_host_dtype(array.dtype):
        raise ArgumentError(
            "mirrored.function",
            found=f"an argument is a NumPy array of dtype {array.dtype}",
            rule="a compiled function computes with numbers: JAX has no arrays of strings, dates, records and objects",
            remedy="convert it to numbers before the call, or pass a Python string or another hashable object, which "
            "is static",
        )


def has_host_dtype(value: object) -> bool:
    """Returns whether a value is a NumPy array or scalar of a dtype that JAX does not support."""
    return isinstance(value, (np.ndarray, np.generic)) and is_host_dtype(value.dtype)


def as_array(value: Operand, dtype: DTypeLike | None = None) -> jax.Array:
    """Converts a value to a JAX array like `jnp.asarray`, but copies NumPy memory that user code can write to.

    Args:
        value: A value that `jnp.asarray` accepts.
        dtype: The dtype of the result. Default: that of `value`.

    Raises:
        ArgumentError: Integers of 64 bits do not fit into the 32 bits of the result.
    """
    check_fit(value, dtype)
    host = owned(value)
    if dtype is None and isinstance(host, np.ndarray) and not host.dtype.isnative:
        host = canonical(host)
    array: jax.Array = jnp.asarray(host, dtype)
    return array


def _put(
    aval: ShapedArray,
    sharding: jax.sharding.Sharding,
    parts: Sequence[Any],
    devices: Sequence[jax.Device],
    aliases: bool,
) -> jax.Array:
    # XLA fails with "bad_function_call" when it copies an empty buffer, so empty buffers are aliased.
    semantics = _ALIAS if aliases or not aval.size else _COPY

    def placed(parts: Sequence[Any]) -> Any:
        return _xla_client.batched_device_put(
            aval, sharding, parts, list(devices), True, host_buffer_semantics=semantics
        )

    try:
        array: jax.Array = placed(parts)
    except RuntimeError as error:
        # So does it when it copies parts that begin at one address, as those of `np.broadcast_to` do.
        if "bad_function_call" not in str(error):
            raise
        array = placed([np.array(part) for part in parts])
    return array


# Converts typed PRNG keys, which NumPy cannot represent, to their data.


def is_key(value: object) -> bool:
    """Returns whether a value is an array of typed PRNG keys."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def is_key_dtype(dtype: DTypeLike) -> bool:
    """Returns whether a dtype is the dtype of typed PRNG keys (`jax.random.key`)."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def implementation_of(dtype: Any) -> str:
    """Returns the name of the PRNG algorithm of a PRNG key dtype, such as ``threefry2x32``.

    `jax.random.key_impl` needs the keys themselves, which a variable may have lost in a failed step.
    """
    return str(dtype._impl.name)


def key_data(value: Leaf) -> Any:
    """Returns the integers that represent typed PRNG keys (`jax.random.key_data`), and any other value unchanged."""
    return jax.random.key_data(value) if is_key(value) else value
