"""`tf.device` and `tf.init_scope`: context managers that change where and how operations run."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import jax

from mirrored._blocks import contextmanager
from mirrored.errors import DeviceError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.entry_point import EagerlyWithin
from mirrored.tf._config import LogicalDevice, get_soft_device_placement
from mirrored.tf._device_spec import DeviceSpec
from mirrored.topology.device_assignment import parse_name, resolve_device

_log = logging.getLogger("mirrored.tf")
_warned: set[str] = set()


@contextmanager
def device(device_name: str | jax.Device | LogicalDevice | DeviceSpec | None) -> Iterator[None]:
    """A context manager in which new tensors and operations use the given device by default (`tf.device`).

    Operations on tensors that are committed to a device run there.

    Context: eager code. The arguments or the strategy determine the placement of compiled code as a whole.

    Args:
        device_name: ``"GPU:0"``, ``"/cpu:0"``, a full name, a `jax.Device`, a `tf.config.LogicalDevice`, a
            `tf.DeviceSpec`, or None for no change.

    Raises:
        DeviceError: The name is not a device, or the device is missing and soft device placement is off.

    TensorFlow: A missing device has no effect, as in TensorFlow; a warning is logged once.
    """
    if isinstance(device_name, DeviceSpec):
        device_name = "" if device_name.device_type is None else device_name.to_string().replace("*", "0")
    if device_name is None or device_name == "":
        yield
        return
    if isinstance(device_name, str) and not re.search(r":\d+$", device_name):
        device_name = f"{device_name}:0"
    found = _found(device_name)
    with contextlib.nullcontext() if found is None else jax.default_device(found):
        yield


def _found(device_name: str | jax.Device | LogicalDevice) -> jax.Device | None:
    called = f"tf.device({device_name!r})"
    try:
        return resolve_device(device_name, called=called)
    except DeviceError as error:
        if not isinstance(device_name, str) or not get_soft_device_placement():
            raise
        parse_name(device_name, called=called)
        if device_name not in _warned:
            _warned.add(device_name)
            _log.warning("%s, so tf.device has no effect (soft placement)", error.found)
        return None


class _InitScope(EagerlyWithin):
    def changes(self) -> dict[str, Any]:
        store = ambient().store
        return {"store": None} if store is not None and store.captures else {}


def init_scope() -> contextlib.AbstractContextManager[None]:
    """A context manager whose block runs eagerly, even while `tf.function` traces (`tf.init_scope`).

    The block reads and assigns the current values of variables.
    """
    return _InitScope()
