"""A worker process of an elastic job from its launcher's view, and messages about lost and joined workers."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from mirrored.elastic.membership import Epoch, WorkerKey
from mirrored.launcher.worker import Worker
from mirrored.settings import RENDEZVOUS_SECONDS

_CAUSE_SECONDS: Final = 0.5
# How long the launcher waits, after the first workers have arrived, before it names the others.
_NAMING_SECONDS: Final = 10.0


@dataclasses.dataclass
class Member:
    """The state of a worker process in an elastic job, as its launcher knows it.

    Attributes:
        worker: The process.
        beat_at: When it sent its last message; when it was started, before its first one.
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
        """Kills a worker's process, and marks its end as intended; does nothing if the process has ended."""
        if self.worker.code is None:
            self.is_ended = True
            self.worker.signal(signal.SIGKILL)
            self.worker.process.wait()


def wait_for_end(workers: Iterable[Worker]) -> None:
    """Waits, for at most half a second, until one of the workers has an exit status.

    The kernel closes the sockets of an ending process before it reports the exit status.
    """
    waiting, end = list(workers), time.monotonic() + _CAUSE_SECONDS
    while time.monotonic() < end and all(one.code is None for one in waiting):
        time.sleep(0.005)


class LateWorkers:
    """Finds the workers that have not reached the training function, while other workers wait for them.

    Args:
        limit_seconds: How long the others wait.
        say: Prints a message.
    """

    def __init__(self, limit_seconds: float, say: Callable[[str], object]) -> None:
        self._limit, self._say = limit_seconds, say
        self._since: float | None = None
        self._is_named = False

    def among(self, members: Mapping[int, Member], *, is_awaited: bool) -> dict[int, str]:
        """Returns a dict from worker index to error text, for the workers that exceed the time limit.

        Prints one warning, before the limit, that names the late workers.

        Args:
            members: The workers, by index.
            is_awaited: Whether others wait for more workers.
        """
        now = time.monotonic()
        self._since = (self._since or now) if is_awaited else None
        if self._since is None:
            self._is_named = False
            return {}
        waited = {index: now - max(self._since, one.beat_at) for index, one in members.items() if not one.has_arrived}
        if not self._is_named and any(seconds > _NAMING_SECONDS for seconds in waited.values()):
            self._is_named = True
            indices = ", ".join(map(str, sorted(waited)))
            self._say(
                f"worker{'s' * (len(waited) > 1)} {indices} did not reach the function with mirrored.elastic.run yet, "
                f"where the others wait ({RENDEZVOUS_SECONDS.name}={self._limit:g} sets the timeout)"
            )
        how = f"did not reach the function with mirrored.elastic.run for {self._limit:g} s ({RENDEZVOUS_SECONDS.name})"
        return {index: how for index, seconds in waited.items() if seconds > self._limit}


def words_for_returned(done: Iterable[WorkerKey], others: Collection[WorkerKey]) -> str:
    """Returns a message that the training function has returned on some workers, but not yet on others.

    Args:
        done: The workers on which it has returned.
        others: The other members of the epoch.
    """
    ours, theirs = (", ".join(str(index) for index, _ in sorted(workers)) for workers in (done, others))
    return (
        f"the training function has returned on worker {ours}, and not yet on worker {theirs}: all workers must "
        "execute the same steps"
    )


def words_for_change(cause: str, epoch: Epoch, seconds: float, restart_reason: str | None) -> str:
    """Returns a one-sentence message on how training continues after a worker has left or joined.

    Args:
        cause: What has happened.
        epoch: The epoch that begins.
        seconds: How long the change has taken.
        restart_reason: Why all processes have restarted; None if they live.
    """
    count = len(epoch.members)
    indices = ", ".join(str(index) for index, _ in epoch.members)
    where = "from the beginning" if epoch.step is None else f"after step {epoch.step}"
    verb, why = f"continue{'s' * (count == 1)}", ""
    if restart_reason is not None:
        why = f"; {restart_reason}"
        copy = "" if epoch.step is None else " from the copy in shared memory"
        verb = f"{'have' if count > 1 else 'has'} restarted and {verb}{copy}"
    return f"{cause}: worker{'s' * (count > 1)} {indices} {verb} {where} (epoch {epoch.number}, {seconds:.2f} s{why})"
