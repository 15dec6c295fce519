"""TensorFlow's canonical device names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def canonicalize(name: object, default: object = None) -> str:
    """The full name of a device, such as `/job:localhost/replica:0/task:0/device:GPU:0`.

    Args:
        name: A name as TensorFlow or JAX writes it.
        default: Ignored: every part has a default.
    """
    if name is None:
        return ""
    parts = {"job": "localhost", "replica": "0", "task": "0"}
    device = None
    for part in str(name).strip("/").split("/"):
        fields = part.split(":")
        if fields[0] == "device":
            device = f"{fields[1].upper()}:{fields[2]}"
        elif fields[0].upper() in ("CPU", "GPU", "TPU") and len(fields) == 2:
            device = f"{fields[0].upper()}:{fields[1]}"
        elif len(fields) == 2:
            parts[fields[0]] = fields[1]
    if device is None:
        return str(name)
    return f"/job:{parts['job']}/replica:{parts['replica']}/task:{parts['task']}/device:{device}"


def simulated(devices: Any) -> Any:
    """Devices of a strategy; where GPUs and CPUs are mixed, further simulated GPUs stand for the CPUs.

    Args:
        devices: Device names, or anything else, which stays as it is.
    """
    if not isinstance(devices, Sequence) or isinstance(devices, str):
        return devices
    names = [canonicalize(one) if _is_kind(one) else one for one in devices]
    if not any("GPU" in str(name) for name in names):
        return names
    return [str(name).replace("CPU:0", "GPU:3").replace("CPU:1", "GPU:2") for name in names]


def _is_kind(device: object) -> bool:
    return "cpu" in str(device).lower() or "gpu" in str(device).lower()
