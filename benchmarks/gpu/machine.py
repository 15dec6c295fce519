"""What the machine is: asked of other processes, since a GPU's memory belongs to those that measure."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

_PACKAGES: Final = (
    *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "torch", "triton", "numpy", "optax", "flax", "keras"),
    *("nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvidia-cublas"),
)
PEAKS: Final = (("H200", 989e12), ("H100", 989e12), ("A100", 312e12), ("L40S", 362e12), ("B200", 2250e12))
"""Dense bfloat16 operations per second by part of the device's name (SXM parts), of the vendor's data sheets."""
_KIND = "import jax; d = jax.devices()[0]; print(d.platform, d.device_kind, sep='|', end='')"


def machine_facts(environment: Mapping[str, str]) -> dict[str, Any]:
    """The device, its driver, versions."""
    kind = _output([sys.executable, "-c", _KIND], environment).split("|")
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return {
        "platform": kind[0].splitlines()[-1] if kind[0] else "unknown",
        "device": kind[-1],
        "nvidia_smi": _output(asked, environment).strip(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def peak_of(device: str) -> float | None:
    """Operations per second in bfloat16; None for a device that the table lacks."""
    return next((peak for part, peak in PEAKS if part in device), None)


def _output(command: list[str], environment: Mapping[str, str]) -> str:
    try:
        return subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
