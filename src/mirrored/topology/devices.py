"""Device names: converts TensorFlow's device strings to `jax.Device` objects and back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Final

import jax

from mirrored.config import virtual_kind
from mirrored.errors import DeviceError
from mirrored.settings import KINDS

# All spellings of TensorFlow: "GPU:0", "/gpu:0", "/device:GPU:0", "/job:worker/replica:0/task:1/device:GPU:0".
_NAME: Final = re.compile(
    rf"""(?:/job:(?P<job>[A-Za-z_]\w*))? (?:/replica:(?P<replica>\d+))? (?:/task:(?P<task>\d+))?
         /? (?:device:)? (?P<kind>{"|".join(KINDS)}) : (?P<index>\d+)""",
    re.IGNORECASE | re.VERBOSE,
)
_SPELLING: Final = 'a device is named like "GPU:0", "/gpu:0" or "/job:worker/replica:0/task:0/device:GPU:0"'


@dataclasses.dataclass(frozen=True)
class DeviceName:
    """A device name in TensorFlow's scheme.

    Attributes:
        kind: ``"CPU"``, ``"GPU"`` or ``"TPU"``.
        index: The index among the devices of that kind in the process.
        task: The index of the process; None means this process.
    """

    kind: str
    index: int
    task: int | None = None

    def __str__(self) -> str:
        short = f"{self.kind}:{self.index}"
        return short if self.task is None else f"/task:{self.task}/device:{short}"


def resolve_device(device: Any, *, called: str) -> jax.Device:
    """Resolves a user's argument to a `jax.Device`.

    Args:
        device: A name as TensorFlow writes it, a named tuple with such a `name`, or the device itself.
        called: What the user called, for messages.

    Raises:
        DeviceError: The argument is not a device name, is of another type, or its kind or index does not exist.
    """
    if isinstance(device, jax.Device):
        return device
    if isinstance(device, tuple):
        device = getattr(device, "name", device)  # TensorFlow's PhysicalDevice or LogicalDevice
    if not isinstance(device, str):
        raise DeviceError(
            called,
            found=f"{device!r} ({type(device).__name__}) in the device list",
            rule="a device is a string or a jax.Device",
            remedy='write "GPU:0", or take devices from jax.devices()',
        )
    name = parse_name(device, called=called)
    existing = devices_of_kind(name.kind, task=name.task)
    if name.index < len(existing):
        return existing[name.index]
    raise DeviceError(
        called,
        found=f"{device!r} is not on this machine",
        rule=f"the machine has {_inventory(name.task)}",
        remedy="name one of these, omit the list to use all, or simulate devices with "
        f"mirrored.config.set_virtual_devices(n{'' if name.kind == 'CPU' else f', kind={name.kind!r}'})",
    )


def parse_name(text: str, *, called: str) -> DeviceName:
    """Parses a device name in any of TensorFlow's spellings.

    Raises:
        DeviceError: The text does not match any spelling.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise DeviceError(
            called,
            found=f"{text!r} is not a device name",
            rule=_SPELLING,
            remedy=f"use one of these spellings; this machine has {_inventory(None)}",
        )
    task = match["task"]
    # TensorFlow names a single process /job:localhost/replica:0/task:0, so task 0 is this process without a cluster.
    alone = jax.process_count() == 1 and task is not None and int(task) == 0
    return DeviceName(match["kind"].upper(), int(match["index"]), None if task is None or alone else int(task))


def name_device(device: jax.Device) -> DeviceName:
    """Returns the name of a device. It contains the task only for a device of another process."""
    kind = kind_of(device)
    index = devices_of_kind(kind, task=device.process_index).index(device)
    return DeviceName(kind, index, None if device.process_index == jax.process_index() else device.process_index)


def full_name(device: jax.Device) -> str:
    """Returns TensorFlow's full name of a device: ``"/job:localhost/replica:0/task:0/device:GPU:0"``."""
    job = "localhost" if jax.process_count() == 1 else "worker"
    name = name_device(device)
    return f"/job:{job}/replica:0/task:{device.process_index}/device:{name.kind}:{name.index}"


def kind_of(device: jax.Device) -> str:
    """Returns ``"CPU"``, ``"GPU"`` or ``"TPU"``; for virtual devices, the kind that they simulate."""
    kind = device.platform.upper()
    return virtual_kind() if kind == "CPU" else kind


def devices_of_kind(kind: str, *, task: int | None = None) -> list[jax.Device]:
    """Returns the devices of one kind in a process (default: this one), in TensorFlow's numbering; [] for none."""
    # CPU devices that simulate GPUs also remain available under the kind CPU.
    backend = "cpu" if kind == virtual_kind() else kind.lower()
    if task is not None and not 0 <= task < jax.process_count():
        return []
    try:
        return list(jax.local_devices(process_index=task, backend=backend))
    except RuntimeError:  # JAX does not have this backend here
        return []


def default_devices() -> list[jax.Device]:
    """Returns all accelerators of this process if there are any, else all its CPU devices."""
    return devices_of_kind(virtual_kind()) if virtual_kind() != "CPU" else list(jax.local_devices())


def _inventory(task: int | None) -> str:
    counts = [(kind, len(devices_of_kind(kind, task=task))) for kind in KINDS]
    return ", ".join(_span(kind, count) for kind, count in counts if count) or "no devices"


def _span(kind: str, count: int) -> str:
    if count == 1:
        return f'"{kind}:0"'
    return f'"{kind}:0" {"..." if count > 2 else "and"} "{kind}:{count - 1}"'


def check_distinct(devices: Sequence[jax.Device], written: Sequence[object], *, called: str) -> None:
    """Refuses a device that is named twice, even in different spellings.

    Raises:
        DeviceError: A device is named twice; the message shows both spellings.
    """
    seen: dict[jax.Device, object] = {}
    for device, spelling in zip(devices, written, strict=True):
        if device in seen:
            raise DeviceError(
                called,
                found=f"{name_device(device)} is named twice: {seen[device]!r} and {spelling!r}",
                rule="the list contains every device at most once",
                remedy=f"for several replicas on one device use num_replicas: "
                f'MirroredStrategy(["{name_device(device)}"], num_replicas={len(devices)})',
            )
        seen[device] = spelling


def check_one_kind(devices: Sequence[jax.Device], *, called: str) -> None:
    """Refuses devices of several kinds.

    Raises:
        DeviceError: The devices are of several kinds; the message lists the devices of each kind.
    """
    kinds = {kind: [device for device in devices if kind_of(device) == kind] for kind in KINDS}
    present = {kind: members for kind, members in kinds.items() if members}
    if len(present) > 1:
        raise DeviceError(
            called,
            found=" and ".join(f"{len(members)} {kind} ({_names(members)})" for kind, members in present.items()),
            rule="all devices of a strategy are of one kind",
            remedy=f"name only the {max(present, key=lambda kind: len(present[kind]))} devices",
        )


def _names(devices: Sequence[jax.Device]) -> str:
    return ", ".join(str(name_device(device)) for device in devices)
