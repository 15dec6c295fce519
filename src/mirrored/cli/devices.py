"""The command `mirrored devices`: shows the devices, and which replicas run on each."""

from __future__ import annotations

import json

import jax
from rich.console import Console
from rich.table import Table

from mirrored.config import set_virtual_devices, virtual_kind
from mirrored.settings import KINDS
from mirrored.topology.device_assignment import (
    DeviceAssignment,
    devices_of_kind,
    kind_of,
    make_device_assignment,
    name_device,
)

_GIB = 2**30


def show_devices(
    names: list[str], *, num_replicas: int | None, virtual: int | None, kind: str, as_json: bool = False
) -> None:
    """Prints a table of the devices, with the replicas that run on each.

    Args:
        names: Devices of the strategy; empty for the default ones.
        num_replicas: The number of replicas to assign; None for one per device.
        virtual: The number of CPU devices to simulate; None for the existing devices.
        kind: The kind of device that they simulate.
        as_json: Whether to print JSON.

    Raises:
        DeviceError: A device does not exist, or the replicas do not fit.
    """
    if virtual is not None:
        set_virtual_devices(virtual, kind=kind)
    device_assignment = make_device_assignment(names, num_replicas, called="mirrored devices")
    if as_json:
        print(json.dumps(as_data(device_assignment), indent=1))
        return
    console = Console()
    console.print(device_table(device_assignment))
    console.print(layout_sentence(device_assignment), soft_wrap=True)


def as_data(device_assignment: DeviceAssignment) -> dict[str, object]:
    """Converts the devices and the replicas that run on each to JSON-serializable data."""
    return {
        "jax": jax.__version__,
        "replicas": device_assignment.num_replicas,
        "strategy": layout_sentence(device_assignment).partition(": ")[2],
        "devices": [
            {
                "device": str(name_device(device)),
                "kind": kind_of(device),
                "hardware": device.device_kind,
                "memory_bytes": (device.memory_stats() or {}).get("bytes_limit"),
                "replicas": list(device_assignment.replicas_on(device)) if device in device_assignment.devices else [],
            }
            for device in _all_devices()
        ],
    }


def device_table(device_assignment: DeviceAssignment) -> Table:
    """Returns a table of this process's devices, with the replicas that run on each."""
    table = Table(title=f"Devices (JAX {jax.__version__}, process {jax.process_index()} of {jax.process_count()})")
    for column in ("device", "kind", "hardware", "memory", "replicas"):
        table.add_column(column, no_wrap=True)
    for device in _all_devices():
        taken = device in device_assignment.devices
        replicas = " ".join(map(str, device_assignment.replicas_on(device))) if taken else "-"
        style = None if taken else "dim"
        name = str(name_device(device))
        table.add_row(name, _kind(device), device.device_kind, _memory(device), replicas, style=style)
    return table


def layout_sentence(device_assignment: DeviceAssignment) -> str:
    """Returns a line with the number of replicas per device, and the matching `MirroredStrategy(...)` call."""
    names = ", ".join(f'"{name_device(device)}"' for device in device_assignment.devices)
    most = device_assignment.local
    each = f"{most - 1} or {most} on each" if device_assignment.is_uneven else f"{most} on each"
    each = each if device_assignment.is_folded else "one on each"
    devices = f"{device_assignment.num_devices} device{'s' * (device_assignment.num_devices != 1)}"
    folded = f", num_replicas={device_assignment.num_replicas}" if device_assignment.is_folded else ""
    replicas = f"{device_assignment.num_replicas} replica{'s' * (device_assignment.num_replicas != 1)}"
    return f"{replicas} on {devices}, {each}: MirroredStrategy([{names}]{folded})"


def _all_devices() -> list[jax.Device]:
    found = [device for kind in KINDS for device in devices_of_kind(kind)]
    return list(dict.fromkeys(found))


def _kind(device: jax.Device) -> str:
    kind = kind_of(device)
    return kind if device.platform != "cpu" or virtual_kind() == "CPU" else f"{kind} (virtual)"


def _memory(device: jax.Device) -> str:
    statistics = device.memory_stats()
    if not statistics or "bytes_limit" not in statistics:
        return "-"
    return f"{statistics.get('bytes_in_use', 0) / _GIB:.1f} of {statistics['bytes_limit'] / _GIB:.1f} GiB"
