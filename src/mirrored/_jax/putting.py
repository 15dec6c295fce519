"""Puts host arrays on devices, faster than `jax.device_put`, and without aliasing memory that somebody else owns.

Serves JAX 0.10 to 0.12: `jaxlib.xla_client.batched_device_put`, which `jax.device_put` ends in. Going there directly
saves what `device_put` looks up anew for every batch (``f32[512, 784]`` on 4 devices: 11 us against 44 us). It also
lets the caller choose what XLA may do with the buffer: alias it, or be done with it when the call returns.
`jax.device_put` always chooses the former, with `may_alias=False` too, and reads a buffer that it cannot alias after it
has returned.
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
    """An array whose dim 0 is spread evenly over `devices` of this process, in their order.

    Like `jax.device_put(rows, sharding)`, where `sharding` spreads dim 0 that way. CPU devices alias an aligned buffer
    that `mirrored` owns; any other buffer has been read when the call returns.

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
    """`jax.device_put(value, device)`, done with the memory of `value` when it returns unless `mirrored` owns it.

    Args:
        value: A NumPy array, or anything else that `jax.device_put` takes.
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
    """`jnp.asarray` that owns its memory: NumPy arrays are copied unless `mirrored` allocated them.

    Args:
        value: Whatever `jnp.asarray` takes.
        dtype: Of the result.
    """
    array: jax.Array = jnp.asarray(owned(value), dtype)
    return array


def _put(aval: Any, sharding: Any, parts: Sequence[Any], devices: Sequence[jax.Device], aliases: bool) -> jax.Array:
    # XLA fails with "bad_function_call" where it is to copy an empty buffer.
    semantics = _ALIAS if aliases or not aval.size else _COPY
    placed: jax.Array = _xla_client.batched_device_put(
        aval, sharding, parts, list(devices), True, host_buffer_semantics=semantics
    )
    return placed
