"""Arrays that JAX may move between devices.

JAX raises an error for an operation on arrays that are committed to different devices. Operands that are not committed
are copied: to the devices of committed operands, else to the default device.

Supports JAX 0.10 to 0.12: `jaxlib.xla_client.batched_device_put`, whose fifth parameter says whether the result is
committed. `jax.device_put` always commits an array to the device that is given.
"""

from __future__ import annotations

from typing import Any

from jaxlib import xla_client as _xla_client

from mirrored._jax.boxes import Array, Box


def movable(array: object) -> Any:
    """Returns an array with the same device buffer that is not committed to its device.

    A value that is not an array on one device is returned unchanged.
    """
    if type(array) is Box:
        return Box(array.owner, movable(array.payload), array.key)
    if type(array) is not Array or not array.committed or len(array.sharding.device_set) > 1:
        return array
    devices = list(array.sharding.device_set)
    return _xla_client.batched_device_put(array.aval, array.sharding, [array], devices, False)
