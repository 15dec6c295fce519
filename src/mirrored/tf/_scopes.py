"""`tf.device`, `tf.init_scope` and what else opens a block."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import jax

from mirrored._jax.traces import eager
from mirrored.replicas.ambient import ambient, within
from mirrored.replicas.devices import resolve_device


@contextlib.contextmanager
def device(device_name: Any) -> Iterator[None]:
    """Makes tensors, and runs operations on tensors without a device of their own, on one device.

    Context: eager code. Compiled code is placed as a whole, by its arguments or its strategy.

    Args:
        device_name: ``"GPU:0"``, ``"/cpu:0"``, a full name, a `jax.Device`, a `tf.config.LogicalDevice`, or None for
            no change.

    Raises:
        DeviceError: There is no such device.
    """
    if device_name is None or device_name == "":
        yield
        return
    if isinstance(device_name, str) and not re.search(r":\d+$", device_name):
        device_name = f"{device_name}:0"
    with jax.default_device(resolve_device(device_name, called=f"tf.device({device_name!r})")):
        yield


@contextlib.contextmanager
def init_scope() -> Iterator[None]:
    """Runs the block at once, also while `tf.function` traces: variables are read and assigned as they are now."""
    frame = ambient().frame
    outside = {"frame": None} if frame is not None and frame.captures else {}
    with eager(), within(**outside):
        yield
