"""Arrays that JAX may move between devices.

JAX raises an error for an operation on arrays that are committed to different devices. Operands that are not committed
are copied: to the devices of committed operands, else to the default device.

Supports JAX 0.10 to 0.12: `jaxlib.xla_client.batched_device_put`, whose fifth parameter says whether the result is
committed. `jax.device_put` always commits an array to the device that is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jaxlib import xla_client as _xla_client

from mirrored._jax.boxes import Array, Box, payload_of


def movable(array: object) -> Any:
    """Returns an array with the same device buffer that is not committed to its device.

    A value that is not an array on one device is returned unchanged. A box stays the same object, by which nested tapes
    know it; its payload is replaced.
    """
    if type(array) is Box:
        array.payload = movable(array.payload)
        return array
    if type(array) is not Array or not array.committed or len(array.sharding.device_set) > 1:
        return array
    devices = list(array.sharding.device_set)
    return _xla_client.batched_device_put(array.aval, array.sharding, [array], devices, False)


def near_first(arrays: Sequence[Any]) -> list[Any] | None:
    """Moves committed arrays to the devices of the first of them; returns None for tracers, or if none is committed."""
    payloads = [payload_of(array) for array in arrays]
    if not all(type(payload) is Array for payload in payloads):
        return None
    home = next((payload.sharding for payload in payloads if payload.committed), None)
    if home is None:
        return None
    return [
        jax.device_put(array, home) if payload.committed and payload.sharding.device_set != home.device_set else array
        for array, payload in zip(arrays, payloads, strict=True)
    ]
