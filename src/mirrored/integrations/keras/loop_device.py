"""Reads variables in a Keras loop that computes whole batches on one device, as with ``deterministic=True``.

Such a loop has the model's weights on that device. A variable that is none of them, such as a weight of a teacher model
in the loss or a metric that a layer updates in `predict`, has its value on all devices of the strategy. A compiled step
gets it as a constant, but operations that run at once (``run_eagerly=True``) refuse arrays of different devices.
"""

from __future__ import annotations

import contextvars
from contextlib import AbstractContextManager
from typing import Any

import jax

from mirrored._blocks import setting
from mirrored._jax.traces import Tracer

_device: contextvars.ContextVar[jax.Device | None] = contextvars.ContextVar("_device", default=None)


def computing_on(device: jax.Device | None) -> AbstractContextManager[None]:
    """Context manager of a Keras loop that computes whole batches on `device`; None for another loop."""
    return setting(_device, device)


def on_device_of_loop(value: Any) -> Any:
    """Returns the copy of an array on the device of the current loop; `value` itself if there is none."""
    device = _device.get()
    if device is None or not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return value
    return next((shard.data for shard in value.addressable_shards if shard.device == device), value)
