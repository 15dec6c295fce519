"""Reads variables in a Keras loop that computes whole batches on one device, as with ``deterministic=True``.

Such a loop moves the model's weights to that device. All other variables keep their values on all devices of the
strategy: a weight of a teacher model in the loss, for example, or a metric that a layer updates in `predict`. A
compiled step gets such a value as a constant, but JAX refuses an operation on arrays of different devices in an
uncompiled step (``run_eagerly=True``).
"""

from __future__ import annotations

import contextvars
from contextlib import AbstractContextManager
from typing import TypeVar

import jax

from mirrored._blocks import setting
from mirrored._jax.traces import Tracer

T = TypeVar("T")
_device: contextvars.ContextVar[jax.Device | None] = contextvars.ContextVar("_device", default=None)


def computing_on(device: jax.Device | None) -> AbstractContextManager[None]:
    """Context manager of a Keras loop that computes whole batches on `device`; None for another loop."""
    return setting(_device, device)


def on_device_of_loop(value: T) -> T | jax.Array:
    """Returns the copy of a replicated array on the device of the current loop.

    Returns `value` itself outside of such a loop, for a tracer, and for an array that has no copy on that device.
    """
    device = _device.get()
    if device is None or not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return value
    return next((shard.data for shard in value.addressable_shards if shard.device == device), value)
