"""Parses device names, and assigns replicas to devices (`DeviceAssignment`)."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mirrored._jax.axes import REPLICA_AXIS
from mirrored.config import virtual_kind
from mirrored.errors import DeviceError
from mirrored.settings import KINDS
from mirrored.topology.slots import Slots

# Device names: converts TensorFlow's device strings to `jax.Device` objects and back.

# All spellings of TensorFlow: "GPU:0", "/gpu:0", "/device:GPU:0", "/job:worker/replica:0/task:1/device:GPU:0".
_NAME: Final = re.compile(
    rf"""(?:/job:(?P<job>[A-Za-z_]\w*))? (?:/replica:(?P<replica>\d+))? (?:/task:(?P<task>\d+))?
         /? (?:device:)? (?P<kind>{"|".join(KINDS)}) : (?P<index>\d+)""",
    re.IGNORECASE | re.VERBOSE,
)
_SPELLING: Final = 'a device is named like "GPU:0", "/gpu:0" or "/job:worker/replica:0/task:0/device:GPU:0"'


@dataclasses.dataclass(frozen=True)
class DeviceName:
    """A parsed TensorFlow device name, such as ``"/job:worker/task:0/device:GPU:1"`` or ``"GPU:1"``.

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
    """Converts a device name in TensorFlow's format, or a `jax.Device`, to a `jax.Device`.

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
            found=f"the device list contains {device!r} ({type(device).__name__})",
            rule="a device must be a string or a jax.Device",
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
    """Returns the name of a device, including the task index if the device belongs to another process."""
    kind = kind_of(device)
    index = devices_of_kind(kind, task=device.process_index).index(device)
    return DeviceName(kind, index, None if device.process_index == jax.process_index() else device.process_index)


def full_name(device: jax.Device) -> str:
    """Returns TensorFlow's full name of a device: ``"/job:localhost/replica:0/task:0/device:GPU:0"``."""
    job = "localhost" if jax.process_count() == 1 else "worker"
    name = name_device(device)
    return f"/job:{job}/replica:0/task:{device.process_index}/device:{name.kind}:{name.index}"


def kind_of(device: jax.Device) -> str:
    """Returns a device's kind, such as ``"CPU"`` or ``"GPU"``; for a virtual device, the kind that it simulates."""
    kind = device.platform.upper()
    return virtual_kind() if kind == "CPU" else kind


def devices_of_kind(kind: str, *, task: int | None = None) -> list[jax.Device]:
    """Returns the devices of one kind in a process, in TensorFlow's numbering.

    The default process is this one. Returns [] if there are none.
    """
    # CPU devices that simulate GPUs also remain available under the kind CPU.
    backend = "cpu" if kind == virtual_kind() else kind.lower()
    if task is not None and not 0 <= task < jax.process_count():
        return []
    try:
        return list(jax.local_devices(process_index=task, backend=backend))
    except RuntimeError:  # JAX does not have this backend here
        return []


def default_devices() -> list[jax.Device]:
    """Returns all accelerators of this process, or all its CPU devices if it has none.

    `limit_default_devices` restricts them to the first ones of a kind.
    """
    found = devices_of_kind(virtual_kind()) if virtual_kind() != "CPU" else list(jax.local_devices())
    return found[: most_default_devices(kind_of(found[0]))] if found else found


_most_default_devices: dict[str, int] = {}


def limit_default_devices(kind: str, count: int) -> None:
    """Makes `default_devices` return only the first `count` devices of a kind."""
    _most_default_devices[kind] = count


def most_default_devices(kind: str) -> int:
    """Returns the limit on the number of devices of a kind that `default_devices` returns."""
    return _most_default_devices.get(kind, sys.maxsize)


def _inventory(task: int | None) -> str:
    counts = [(kind, len(devices_of_kind(kind, task=task))) for kind in KINDS]
    return ", ".join(_span(kind, count) for kind, count in counts if count) or "no devices"


def _span(kind: str, count: int) -> str:
    if count == 1:
        return f'"{kind}:0"'
    return f'"{kind}:0" {"..." if count > 2 else "and"} "{kind}:{count - 1}"'


def check_distinct(devices: Sequence[jax.Device], written: Sequence[object], *, called: str) -> None:
    """Raises an error if a device occurs twice in a list, even under different names.

    Raises:
        DeviceError: A device is named twice; the message shows both spellings.
    """
    seen: dict[jax.Device, object] = {}
    for device, spelling in zip(devices, written, strict=True):
        if device in seen:
            raise DeviceError(
                called,
                found=f"{name_device(device)} is named twice: {seen[device]!r} and {spelling!r}",
                rule="the list can contain every device only once",
                remedy=f"for several replicas on one device use num_replicas: "
                f'MirroredStrategy(["{name_device(device)}"], num_replicas={len(devices)})',
            )
        seen[device] = spelling


def check_one_kind(devices: Sequence[jax.Device], *, called: str) -> None:
    """Raises an error if devices of several kinds, such as CPU and GPU, are mixed.

    Raises:
        DeviceError: The devices are of several kinds; the message lists the devices of each kind.
    """
    kinds = {kind: [device for device in devices if kind_of(device) == kind] for kind in KINDS}
    present = {kind: members for kind, members in kinds.items() if members}
    if len(present) > 1:
        raise DeviceError(
            called,
            found=" and ".join(f"{len(members)} {kind} ({_names(members)})" for kind, members in present.items()),
            rule="all devices of a strategy must be of one kind",
            remedy=f"name only the {max(present, key=lambda kind: len(present[kind]))} devices",
        )


def _names(devices: Sequence[jax.Device]) -> str:
    return ", ".join(str(name_device(device)) for device in devices)


# `DeviceAssignment`: assigns R replicas to D devices, R / D to each device, rounded up or down.
#
# Devices hold consecutive replicas (`Slots`). A device that holds several has *virtual replicas*; this is called
# *folding* in the code.

AXIS: Final = REPLICA_AXIS

DECLARED_AXIS: Final = "replica"
"""The axis that stands for the replicas in `out_specs`. No mesh has it."""


@dataclasses.dataclass(frozen=True, repr=False)
class DeviceAssignment:
    """The assignment of a strategy's replicas to devices: one or more replicas per device.

    `make_device_assignment` creates and validates it.

    Attributes:
        devices: The D devices, which are distinct and of one kind.
        num_replicas: R, at least D.
    """

    devices: tuple[jax.Device, ...]
    num_replicas: int

    @property
    def num_devices(self) -> int:
        """The number of devices (D)."""
        return len(self.devices)

    @functools.cached_property
    def slots(self) -> Slots:
        """The `Slots` of a compiled program, which assign every replica to a position on a device."""
        return Slots(len(self.devices), self.num_replicas)

    @functools.cached_property
    def local(self) -> int:
        """The number of replica slots on each device (K), i.e. the largest number of replicas on one device."""
        return self.slots.local

    @property
    def is_folded(self) -> bool:
        """Whether several virtual replicas share a device."""
        return self.local > 1

    @property
    def is_uneven(self) -> bool:
        """Whether some devices have one replica fewer than others.

        This is so if D does not divide R.
        """
        return self.slots.padded > 0

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The `jax.sharding.Mesh` of the replicas' devices, with the single axis `AXIS`."""
        # Explicit axes, the default of jax.make_mesh, would make shardings a part of the array types in user code.
        return Mesh(np.array(self.devices), (AXIS,), axis_types=(AxisType.Auto,))

    @functools.cached_property
    def replicated(self) -> NamedSharding:
        """The `NamedSharding` of an array that is replicated to every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @functools.cached_property
    def sharded(self) -> NamedSharding:
        """The `NamedSharding` of an array whose axis 0 is sharded over the devices in replica order.

        The length of axis 0 is the number of slots (R, unless `is_uneven`) or another multiple of D.
        """
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    @functools.cached_property
    def addressable_devices(self) -> tuple[jax.Device, ...]:
        """The devices that belong to this process, in replica order."""
        here = jax.process_index()
        return tuple(device for device in self.devices if device.process_index == here)

    @functools.cached_property
    def addressable_replicas(self) -> tuple[int, ...]:
        """The indices of the replicas on devices of this process, in ascending order."""
        addressable = frozenset(self.addressable_devices)
        return tuple(r for r in range(self.num_replicas) if self.device_of(r) in addressable)

    @functools.cached_property
    def spans_processes(self) -> bool:
        """Whether some replicas are on devices of other processes."""
        return len(self.addressable_devices) < len(self.devices)

    @functools.cached_property
    def processes(self) -> tuple[int, ...]:
        """The indices of the processes on whose devices replicas run, in ascending order."""
        return tuple(sorted({device.process_index for device in self.devices}))

    def device_of(self, replica: int) -> jax.Device:
        """Returns the device that holds the given replica.

        Args:
            replica: 0 to R - 1.
        """
        return self.devices[self.slots.device_of(replica)]

    def name_of(self, replica: int) -> str:
        """Returns the full name of a replica's device, in TensorFlow's format.

        Args:
            replica: 0 to R - 1.
        """
        return full_name(self.device_of(replica))

    def replicas_on(self, device: jax.Device) -> range:
        """Returns the indices of the replicas on the given device."""
        position = self.devices.index(device)
        first = self.slots.first_on(position)
        return range(first, first + self.slots.number_on(position))

    def __repr__(self) -> str:
        places = ", ".join(f"{name_device(device)} {_braced(self.replicas_on(device))}" for device in self.devices)
        replicas, devices = _counted(self.num_replicas, "replica"), _counted(self.num_devices, "device")
        return f"DeviceAssignment({replicas} on {devices}: {places})"


def make_device_assignment(
    devices: Sequence[str | jax.Device] | None = None,
    num_replicas: int | None = None,
    *,
    called: str = "MirroredStrategy",
) -> DeviceAssignment:
    """Creates the assignment of replicas to devices, after checking the devices and the number of replicas.

    Args:
        devices: Device names as TensorFlow writes them, or `jax.Device` objects. None or empty: all accelerators of
            this process if there are any, else all its CPU devices.
        num_replicas: R, at least the number of devices. Default: one replica per device. If the number of devices does
            not divide it, the first devices have one replica more than the others.
        called: What the user called, for messages.

    Raises:
        DeviceError: A device is duplicated, unknown or not a device, the devices are of several kinds, or
            `num_replicas` does not fit.

    Example:
        >>> make_device_assignment(["CPU:0"], num_replicas=4)
        DeviceAssignment(4 replicas on 1 device: CPU:0 {0 1 2 3})
        >>> make_device_assignment(["CPU:0", "CPU:1", "CPU:2"], num_replicas=8)
        DeviceAssignment(8 replicas on 3 devices: CPU:0 {0 1 2}, CPU:1 {3 4 5}, CPU:2 {6 7})

    TensorFlow: `MirroredStrategy` does not have `num_replicas`; it has one replica per device.
    """
    if isinstance(devices, (str, jax.Device)):
        raise DeviceError(
            called,
            found=f"devices is the single device {devices!r}",
            rule="devices must be a list of devices",
            remedy=f"write [{devices!r}]" if isinstance(devices, str) else "put it into a list",
        )
    if devices is not None and not isinstance(devices, Sequence | np.ndarray):
        raise DeviceError(
            called,
            found=f"devices={devices!r} ({type(devices).__name__})",
            rule="devices must be a list of device names or jax.Device objects",
            remedy='write ["GPU:0", "GPU:1"], or omit it to use all devices',
        )
    written = list(devices) if devices is not None and len(devices) else default_devices()
    resolved = tuple(resolve_device(device, called=called) for device in written)
    check_distinct(resolved, written, called=called)
    check_one_kind(resolved, called=called)
    count = len(resolved) if num_replicas is None else num_replicas
    _check_count(count, len(resolved), called=called)
    return DeviceAssignment(resolved, count)


def _check_count(num_replicas: int, num_devices: int, *, called: str) -> None:
    if isinstance(num_replicas, bool) or not isinstance(num_replicas, int) or num_replicas < 1:
        raise DeviceError(
            called,
            found=f"num_replicas={num_replicas!r} ({type(num_replicas).__name__})",
            rule="num_replicas must be an int, at least the number of devices",
            remedy=f"pass num_replicas={num_devices} for one replica per device, or omit it",
        )
    if num_replicas < num_devices:
        raise DeviceError(
            called,
            found=f"num_replicas={num_replicas} on {num_devices} devices",
            rule="every device must hold at least one replica: a device without one would only wait for the others",
            remedy=f"pass {num_replicas} device{'s' * (num_replicas > 1)}, or num_replicas={num_devices} or more",
        )


def _braced(replicas: Sequence[int]) -> str:
    return "{" + " ".join(map(str, replicas)) + "}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
