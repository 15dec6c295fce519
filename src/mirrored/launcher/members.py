"""What the launcher of an elastic job knows about a worker process, and messages about lost and joined workers."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterable
from typing import Final

from mirrored.elastic.membership import Epoch
from mirrored.launcher.worker import Worker

_CAUSE_SECONDS: Final = 0.5


@dataclasses.dataclass
class Member:
    """The state of a worker process in an elastic job, as its launcher knows it.

    Attributes:
        worker: The process.
        beat_at: When it sent its last message.
        port: The port of its collectives in the current epoch.
        has_arrived: Whether it has reached the training function.
        has_stepped: Whether it has ended a step in the current epoch.
        left_early_at: When it ended with status 0 before the training function had returned everywhere.
        description: What must be equal on all workers; None before it has arrived.
        holds: The epochs that it has left and whose coordination services it still uses, in work that it has abandoned.
        is_ended: Whether the launcher has ended it, to restart it.
    """

    worker: Worker
    beat_at: float
    port: int | None = None
    has_arrived: bool = False
    has_stepped: bool = False
    left_early_at: float | None = None
    description: dict[str, str] | None = None
    holds: frozenset[int] = frozenset()
    is_ended: bool = False

    def end(self) -> None:
        """Ends the process of a worker that did not fail; does nothing if the process has ended."""
        if self.worker.code is None:
            self.is_ended = True
            self.worker.signal(signal.SIGKILL)
            self.worker.process.wait()


def wait_for_end(workers: Iterable[Worker]) -> None:
    """Waits briefly until a worker has an exit status, as the kernel closes an ending process's sockets first."""
    waiting, end = list(workers), time.monotonic() + _CAUSE_SECONDS
    while time.monotonic() < end and all(one.code is None for one in waiting):
        time.sleep(0.005)


def words_for_change(cause: str, epoch: Epoch, seconds: float, restart_reason: str | None) -> str:
    """Describes in one sentence how training continues after a worker has left or joined.

    Args:
        cause: What has happened.
        epoch: The epoch that begins.
        seconds: How long the change has taken.
        restart_reason: Why all processes have restarted; None if they live.
    """
    count = len(epoch.members)
    slots = ", ".join(str(slot) for slot, _ in epoch.members)
    where = "from the beginning" if epoch.step is None else f"after step {epoch.step}"
    verb, why = f"continue{'s' * (count == 1)}", ""
    if restart_reason is not None:
        why = f"; {restart_reason}"
        copy = "" if epoch.step is None else " from the copy in shared memory"
        verb = f"{'have' if count > 1 else 'has'} restarted and {verb}{copy}"
    return f"{cause}: worker{'s' * (count > 1)} {slots} {verb} {where} (epoch {epoch.number}, {seconds:.2f} s{why})"
