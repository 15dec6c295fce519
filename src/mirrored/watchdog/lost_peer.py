"""The error that reports a lost peer."""

from __future__ import annotations

from typing import Final

from mirrored.errors import AbsentWorkerError
from mirrored.watchdog.worker_progress import WorkerProgress

FOLLOWS: Final = "(follows)"
"""Prefix of the exit report of a worker that ends for a cause that the other workers detect themselves."""


def lost_worker(worker: int, standing: WorkerProgress | None, words: str, silent_seconds: float) -> AbsentWorkerError:
    """Returns the error that names a lost worker.

    Args:
        worker: The index of the lost worker.
        standing: Its last known progress; None if it has posted none.
        words: Its exit report; empty if it sent none.
        silent_seconds: How long ago its last heartbeat was.
    """
    name = "" if standing is None else f" ({standing.name})"
    where = "" if standing is None else f", at operation {standing.count}: {standing.newest}"
    how = words or (
        "was lost without an exit report (killed, out of memory, stopped, crashed, or its machine or network is down); "
        f"it was last seen {silent_seconds:.1f} s ago{where}"
    )
    return AbsentWorkerError(
        "training on several workers",
        found=f"worker {worker}{name} {how}",
        rule="the workers of a job execute every step together; none can continue without the others",
        remedy=f"check the output of worker {worker} and its machine's log, then restart all workers: they resume "
        "from the newest checkpoint (mirrored run --max-restarts 3 does so automatically)",
    )
