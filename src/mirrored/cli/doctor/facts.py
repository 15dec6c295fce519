"""The facts about a worker's machine that `mirrored doctor` compares: versions, settings, devices, disk speed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any, Final

import jax

from mirrored.cli.doctor.gpus import GpuFacts, gpu_facts
from mirrored.cluster.joining import fingerprint
from mirrored.topology.device_assignment import kind_of

_PROBE_BYTES: Final = 32 * 2**20


@dataclasses.dataclass(frozen=True)
class Facts:
    """The versions, devices, disk speed and clock time of one worker's machine, for `mirrored doctor`.

    Attributes:
        host: The name of its machine.
        versions: Versions and settings, by name.
        kind: The kind of its devices.
        devices: The number of its devices.
        cores: The number of CPU cores of its machine.
        free_bytes: The free space on the disk for checkpoints; None without a folder.
        write_bytes_per_second: The write speed of that disk; None without a folder.
        trouble: The problem with the folder; None without one.
        clock: Its time, in seconds since 1970, read by all workers at the same moment.
        gpus: Its GPUs and their software; None without GPUs.
    """

    host: str
    versions: dict[str, str]
    kind: str
    devices: int
    cores: int
    free_bytes: int | None = None
    write_bytes_per_second: float | None = None
    trouble: str | None = None
    clock: float = 0.0
    gpus: GpuFacts | None = None

    def to_json(self) -> dict[str, Any]:
        """Converts the object to JSON-serializable data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Facts:
        """Creates a `Facts` object from the JSON data that `Facts.to_json` returned."""
        gpus = data.get("gpus")
        return cls(**{**data, "gpus": None if gpus is None else GpuFacts.from_json(gpus)})


def local_facts(folder: Path | None, token: str) -> Facts:
    """Collects the versions, settings, devices and disk speed of this worker's machine.

    Args:
        folder: The folder for checkpoints, in which worker 0 has created a file named `token`; None for no check.
        token: The name of that file.
    """
    devices = jax.local_devices()
    gpus = gpu_facts(sum(device.platform == "gpu" for device in devices))
    kind, cores = kind_of(devices[0]), os.cpu_count() or 1
    found = Facts(socket.gethostname(), fingerprint(), kind, len(devices), cores, gpus=gpus)
    return found if folder is None else dataclasses.replace(found, **_disk(folder, token))


def _disk(folder: Path, token: str) -> dict[str, Any]:
    probe = folder / f"{token}-{os.getpid()}"
    try:
        if not (folder / token).exists():
            return {"trouble": f"{folder} is not the same folder as on worker 0: it is not shared"}
        start = time.perf_counter()
        with open(probe, "wb") as file:
            file.write(os.urandom(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - start
        return {
            "free_bytes": shutil.disk_usage(folder).free,
            "write_bytes_per_second": _PROBE_BYTES / seconds,
        }
    except OSError as error:
        return {"trouble": f"{folder} cannot be written: {error.strerror or error}"}
    finally:
        with contextlib.suppress(OSError):  # the folder cannot be written, or is no folder
            probe.unlink(missing_ok=True)
