"""Copies a job's newest snapshot to shared memory, from which the processes of an elastic job continue after a restart.

Only a job whose processes restart after a failure writes copies (``MIRRORED_ELASTIC_RECOVERY=restart``, or collectives
that cannot be aborted); its worker of rank 0 writes them. Otherwise the surviving workers' own snapshots suffice.

The launcher creates the memory (`os.memfd_create`), so that it outlives the workers and is freed with the job, however
that ends. There are two places. A copy replaces the older one of the two: its header is cleared first and written last,
so that a process that is killed at any moment leaves the previous copy or the new one. The header has a checksum of
itself, not of the arrays: memory is trusted, and a copy that is not complete has no header.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from mirrored._jax import recovery
from mirrored.checkpoint.manifest import Manifest
from mirrored.elastic.snapshots import packed, unpacked
from mirrored.settings import COPY_FDS, ELASTIC_RECOVERY

PLACES: Final = 2
_MAGIC: Final = b"mirrored"
_HEADER: Final = struct.Struct("<8sqqq")  # the magic, the step, the bytes of the description and of the arrays
_CHECK: Final = struct.Struct("<I")
_BEGIN: Final = 4096
_MOST_BYTES_PER_CALL: Final = 1 << 30


def create() -> tuple[int, ...]:
    """Creates shared memory for snapshots; returns its file descriptors, or () if Python lacks `os.memfd_create`."""
    if not hasattr(os, "memfd_create"):
        return ()
    return tuple(os.memfd_create("mirrored-copy") for _ in range(PLACES))


def why_restart(num_workers: int) -> str | None:
    """Returns why the processes of a job must restart after a failure; None if they can continue without a restart.

    Context: after the backend was made.
    """
    if ELASTIC_RECOVERY.read() == "restart":
        return f"{ELASTIC_RECOVERY.name}=restart"
    return recovery.why_processes_must_restart() if num_workers > 1 else None


class SharedCopies:
    """Copies of a job's two newest snapshots, in the machine's shared memory; only one process at a time writes.

    Args:
        descriptors: The file descriptors of the memory.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = tuple(descriptors)
        for one in self._descriptors:
            os.set_inheritable(one, False)

    @classmethod
    def of_job(cls) -> SharedCopies:
        """Returns the `SharedCopies` of this process's job; without shared memory, the object stores nothing."""
        return cls(COPY_FDS.read())

    def write(self, step: int, manifest: Manifest) -> None:
        """Overwrites the older of the two copies with a step's snapshot; the newer copy stays complete meanwhile."""
        steps = [self._header(one)[0] for one in self._descriptors]
        if not steps:
            return
        descriptor = self._descriptors[steps.index(min(steps))]
        _write(descriptor, bytes(_HEADER.size + _CHECK.size), 0)
        head, parts = packed(manifest)
        described = head.encode()
        at = _BEGIN
        for part in (described, *(one.data for one in parts)):
            _write(descriptor, part, at)
            at += len(part)
        header = _HEADER.pack(_MAGIC, step, len(described), at - _BEGIN - len(described))
        _write(descriptor, header + _CHECK.pack(zlib.crc32(header)), 0)

    def newest(self) -> tuple[int, Manifest] | None:
        """Returns the newest complete copy as a pair (step, snapshot); None if no copy is complete."""
        found = max(((self._header(one), one) for one in self._descriptors), default=None)
        if found is None or found[0][0] < 0:
            return None
        (step, described, size), descriptor = found
        head = os.pread(descriptor, described, _BEGIN)
        data = np.zeros(size, np.uint8)
        view, at = memoryview(data), 0
        while at < size:
            at += os.preadv(descriptor, [view[at : at + _MOST_BYTES_PER_CALL]], _BEGIN + described + at)
        return step, unpacked(head.decode(), data)

    def _header(self, descriptor: int) -> tuple[int, int, int]:
        """Returns the step and the sizes of a copy; the step is negative if the copy is not complete."""
        raw = os.pread(descriptor, _HEADER.size + _CHECK.size, 0)
        header, check = raw[: _HEADER.size], raw[_HEADER.size :]
        if len(check) < _CHECK.size or _CHECK.unpack(check)[0] != zlib.crc32(header):
            return -1, 0, 0
        magic, step, described, size = _HEADER.unpack(header)
        return (step, described, size) if magic == _MAGIC else (-1, 0, 0)


def _write(descriptor: int, data: Any, at: int) -> None:
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done : done + _MOST_BYTES_PER_CALL], at + done)
