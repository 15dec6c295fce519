"""Puts host arrays on devices, faster than `jax.device_put`, and without aliasing memory that user code owns.

Supports JAX 0.10 to 0.12: `jaxlib.xla_client.batched_device_put`, which `jax.device_put` calls. Calling it directly
avoids the lookups of `device_put` for every batch (``f32[512, 784]`` on 4 devices: 11 us against 44 us). It also lets
the caller choose what XLA does with the buffer: alias it, or finish reading it before the call returns.
`jax.device_put` always chooses the former, even with `may_alias=False`, and reads a buffer that it cannot alias after
it has returned.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib import xla_client as _xla_client

from mirrored._jax.host_memory import is_owned, owned

ShapedArray = jax.core.ShapedArray

_ALIAS = _xla_client.HostBufferSemantics.ZERO_COPY
_COPY = _xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL


@functools.lru_cache(maxsize=256)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    return ShapedArray(shape, dtype)


def put_rows(rows: np.ndarray, sharding: jax.sharding.Sharding, devices: Sequence[jax.Device]) -> jax.Array:
    """Returns an array whose dimension 0 is sharded evenly over `devices` of this process, in their order.

    Equivalent to `jax.device_put(rows, sharding)` for a `sharding` of dimension 0. CPU devices alias an aligned buffer
    that `mirrored` owns. Any other buffer has been read when the call returns.

    Args:
        rows: ``[n * len(devices), ...]``.
        sharding: The sharding of the result.
        devices: Its devices.
    """
    dtype = jax.dtypes.canonicalize_dtype(rows.dtype)
    if rows.dtype != dtype:
        rows = rows.astype(dtype)
    each = rows.shape[0] // len(devices)
    parts = [rows[first : first + each] for first in range(0, rows.shape[0], each)]
    return _put(_aval(rows.shape, dtype), sharding, parts, devices, is_owned(rows))


def put(value: Any, device: jax.Device | None) -> jax.Array:
    """Puts a value on a device. When it returns, it has read the memory of `value`, unless `mirrored` owns the memory.

    Args:
        value: A NumPy array, or another value that `jax.device_put` accepts.
        device: A device of this process, or None for the default one.
    """
    if device is None or not isinstance(value, np.ndarray):
        return jax.device_put(owned(value), device)  # type: ignore[no-any-return]
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if value.dtype != dtype:
        value = value.astype(dtype)
    aval = _aval(value.shape, dtype)
    return _put(aval, jax.sharding.SingleDeviceSharding(device), [value], [device], is_owned(value))


def as_array(value: Any, dtype: Any = None) -> jax.Array:
    """Converts a value like `jnp.asarray`, without sharing memory: copies NumPy arrays that `mirrored` does not own.

    Args:
        value: A value that `jnp.asarray` accepts.
        dtype: The dtype of the result. Default: that of `value`.
    """
    array: jax.Array = jnp.asarray(owned(value), dtype)
    return array


def _put(aval: Any, sharding: Any, parts: Sequence[Any], devices: Sequence[jax.Device], aliases: bool) -> jax.Array:
    # XLA fails with "bad_function_call" when it copies an empty buffer, so empty buffers are aliased.
    semantics = _ALIAS if aliases or not aval.size else _COPY
    placed: jax.Array = _xla_client.batched_device_put(
        aval, sharding, parts, list(devices), True, host_buffer_semantics=semantics
    )
    return placed
