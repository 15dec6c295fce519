"""What to say of a worker that is lost."""

from __future__ import annotations

from typing import Final

from mirrored.errors import AbsentWorkerError
from mirrored.watchdog.worker_progress import WorkerProgress

FOLLOWS: Final = "(follows)"
"""Begins the last words of a worker that leaves for a reason which the others find out for themselves."""


def lost_worker(worker: int, standing: WorkerProgress | None, words: str, silent_seconds: float) -> AbsentWorkerError:
    """The error that names it.

    Args:
        worker: Which one.
        standing: Where it was when it was last heard of.
        words: Its last ones, of why it leaves; empty if it had none.
        silent_seconds: How long ago it was last heard of.
    """
    name = "" if standing is None else f" ({standing.name})"
    where = "" if standing is None else f", at operation {standing.count}: {standing.newest}"
    how = words or (
        "has gone without a word (killed, out of memory, stopped, crashed, or its machine or network is gone); it was "
        f"last seen {silent_seconds:.1f} s ago{where}"
    )
    return AbsentWorkerError(
        "training on several workers",
        found=f"worker {worker}{name} {how}",
        rule="the workers of a job make every step together; none can go on without another",
        remedy=f"look at the output of worker {worker} and at its machine's log, and start all workers again: they go "
        "on from the newest checkpoint (mirrored run --max-restarts 3 does so by itself)",
    )
