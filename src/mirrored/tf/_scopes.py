"""`tf.device`, `tf.init_scope` and what else opens a block."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import jax

from mirrored._jax.traces import eager
from mirrored.errors import DeviceError
from mirrored.runtime.ambient import ambient, within
from mirrored.tf._config import get_soft_device_placement
from mirrored.topology.devices import parse_name, resolve_device

_log = logging.getLogger("mirrored.tf")
_warned: set[str] = set()


@contextlib.contextmanager
def device(device_name: Any) -> Iterator[None]:
    """Makes tensors, and runs operations on tensors without a device of their own, on one device.

    Context: eager code. Compiled code is placed as a whole, by its arguments or its strategy.

    Args:
        device_name: ``"GPU:0"``, ``"/cpu:0"``, a full name, a `jax.Device`, a `tf.config.LogicalDevice`, or None for
            no change.

    Raises:
        DeviceError: It is no device, or one that is not there while `tf.config.set_soft_device_placement(False)`.

    TensorFlow: A device that is not there changes nothing, as in TensorFlow, but is warned of once.
    """
    if device_name is None or device_name == "":
        yield
        return
    if isinstance(device_name, str) and not re.search(r":\d+$", device_name):
        device_name = f"{device_name}:0"
    found = _found(device_name)
    with contextlib.nullcontext() if found is None else jax.default_device(found):
        yield


def _found(device_name: Any) -> jax.Device | None:
    called = f"tf.device({device_name!r})"
    try:
        return resolve_device(device_name, called=called)
    except DeviceError as error:
        if not isinstance(device_name, str) or not get_soft_device_placement():
            raise
        parse_name(device_name, called=called)
        if device_name not in _warned:
            _warned.add(device_name)
            _log.warning("%s, so tf.device changes nothing (soft placement)", error.found)
        return None


@contextlib.contextmanager
def init_scope() -> Iterator[None]:
    """Runs the block at once, also while `tf.function` traces: variables are read and assigned as they are now."""
    store = ambient().store
    outside = {"store": None} if store is not None and store.captures else {}
    with eager(), within(**outside):
        yield
