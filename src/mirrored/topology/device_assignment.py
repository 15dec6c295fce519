"""`DeviceAssignment`: assigns R replicas to D devices, K = R / D to each device.

Replica r is local replica ``r % K`` of device ``r // K``. With K > 1 a device holds several *virtual replicas*; this
is called *folding* in the code.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mirrored.errors import DeviceError
from mirrored.topology.devices import (
    check_distinct,
    check_one_kind,
    default_devices,
    full_name,
    name_device,
    resolve_device,
)

AXIS: Final = "replica"
"""The mesh axis of the replicas."""


@dataclasses.dataclass(frozen=True, repr=False)
class DeviceAssignment:
    """The assignment of replicas to devices. `make_device_assignment` creates and validates it.

    Attributes:
        devices: The D devices, which are distinct and of one kind.
        num_replicas: R, a multiple of D.
    """

    devices: tuple[jax.Device, ...]
    num_replicas: int

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return len(self.devices)

    @property
    def local(self) -> int:
        """K, the number of replicas per device."""
        return self.num_replicas // len(self.devices)

    @property
    def is_folded(self) -> bool:
        """Whether several (virtual) replicas share a device."""
        return self.local > 1

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The mesh of the devices, along the axis `AXIS`."""
        # Explicit axes, the default of jax.make_mesh, would make shardings a part of the array types in user code.
        return Mesh(np.array(self.devices), (AXIS,), axis_types=(AxisType.Auto,))

    @functools.cached_property
    def replicated(self) -> NamedSharding:
        """The sharding of an array that is replicated to every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @functools.cached_property
    def sharded(self) -> NamedSharding:
        """The sharding of an array along axis 0, whose length is R or a multiple, over the devices in replica order."""
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    @functools.cached_property
    def addressable_devices(self) -> tuple[jax.Device, ...]:
        """The devices of this process, in order."""
        here = jax.process_index()
        return tuple(device for device in self.devices if device.process_index == here)

    @functools.cached_property
    def addressable_replicas(self) -> tuple[int, ...]:
        """The replicas on devices of this process, in order."""
        addressable = frozenset(self.addressable_devices)
        return tuple(r for r in range(self.num_replicas) if self.device_of(r) in addressable)

    @functools.cached_property
    def spans_processes(self) -> bool:
        """Whether some replicas are on devices of other processes."""
        return len(self.addressable_devices) < len(self.devices)

    @functools.cached_property
    def processes(self) -> tuple[int, ...]:
        """The indices of the processes whose devices hold replicas, in ascending order."""
        return tuple(sorted({device.process_index for device in self.devices}))

    def device_of(self, replica: int) -> jax.Device:
        """Returns the device of a replica.

        Args:
            replica: 0 to R - 1.
        """
        return self.devices[replica // self.local]

    def name_of(self, replica: int) -> str:
        """Returns the name of a replica's device, as TensorFlow writes it.

        Args:
            replica: 0 to R - 1.
        """
        return full_name(self.device_of(replica))

    def replicas_on(self, device: jax.Device) -> range:
        """Returns the replicas on a device of this device assignment."""
        first = self.devices.index(device) * self.local
        return range(first, first + self.local)

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
    """Assigns replicas to devices.

    Args:
        devices: Device names as TensorFlow writes them, or `jax.Device` objects. None or empty: all accelerators of
            this process if there are any, else all its CPU devices.
        num_replicas: R, a multiple of the number of devices. Default: one replica per device.
        called: What the user called, for messages.

    Raises:
        DeviceError: A device is duplicated, unknown or not a device, the devices are of several kinds, or
            `num_replicas` does not fit.

    Example:
        >>> make_device_assignment(["CPU:0"], num_replicas=4)
        DeviceAssignment(4 replicas on 1 device: CPU:0 {0 1 2 3})

    TensorFlow: `MirroredStrategy` does not have `num_replicas`; it has one replica per device.
    """
    if isinstance(devices, (str, jax.Device)):
        raise DeviceError(
            called,
            found=f"the single device {devices!r}",
            rule="devices is a list of devices",
            remedy=f"write [{devices!r}]" if isinstance(devices, str) else "put it into a list",
        )
    if devices is not None and not isinstance(devices, Sequence | np.ndarray):
        raise DeviceError(
            called,
            found=f"devices={devices!r} ({type(devices).__name__})",
            rule="devices is a list of device names or jax.Device objects",
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
            rule="num_replicas is an int, 1 or more, and a multiple of the number of devices",
            remedy=f"pass num_replicas={num_devices} for one replica per device, or omit it",
        )
    if num_replicas % num_devices:
        below = num_replicas // num_devices * num_devices
        nearest = [count for count in (below, below + num_devices) if count]
        raise DeviceError(
            called,
            found=f"num_replicas={num_replicas} on {num_devices} devices",
            rule=f"every device holds the same number of replicas: {num_replicas} fit on "
            f"{_listed(_divisors(num_replicas))} device{'s' * (num_replicas > 1)}",
            remedy=f"pass num_replicas={_listed(nearest)}, or a number of devices that divides num_replicas",
        )


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _braced(replicas: Sequence[int]) -> str:
    return "{" + " ".join(map(str, replicas)) + "}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
