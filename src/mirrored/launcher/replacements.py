"""Decides which lost workers of an elastic job are replaced, and when."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from mirrored.launcher.members import Member

STILLBORN_LIMIT: Final = 3
# The longest time that the replacement of lost workers waits for the next step of the other workers.
_RECOVERING_SECONDS: Final = 10.0


class Replacements:
    """Decides which lost workers the launcher replaces by new processes.

    A worker whose processes end `STILLBORN_LIMIT` times in a row before they reach the training function is given up.
    """

    def __init__(self) -> None:
        self._stillborn: dict[int, int] = {}  # by index: how many processes in a row did not reach the function
        self._recovering_since: float | None = None

    def arrived(self, index: int) -> None:
        """Notes that the process of a worker has reached the training function."""
        self._stillborn[index] = 0

    def count_failed_start(self, index: int) -> bool:
        """Counts a failed start of a worker, and returns whether to stop replacing the worker.

        A start has failed if the process ended before reaching the training function.
        """
        self._stillborn[index] = self._stillborn.get(index, 0) + 1
        return self._stillborn[index] >= STILLBORN_LIMIT

    def give_up(self, index: int) -> None:
        """Marks a worker, so that no more processes are started to replace it."""
        self._stillborn[index] = STILLBORN_LIMIT

    def to_start(self, members: dict[int, Member], fewest: int, most: int) -> list[int]:
        """Returns the indices of the workers for which a process must be started now.

        While the other workers recover, there is none, unless the job needs more workers: starting a process takes the
        processor time that they need.

        Args:
            members: The workers, by index.
            fewest: The number of workers without which the job cannot continue.
            most: The maximum number of workers.
        """
        is_needed = len(members) < fewest
        if not is_needed and self._must_wait(members.values()):
            return []
        return [
            index for index in range(most) if index not in members and self._stillborn.get(index, 0) < STILLBORN_LIMIT
        ]

    def _must_wait(self, members: Collection[Member]) -> bool:
        if not any(one.has_arrived and not one.has_stepped for one in members):
            self._recovering_since = None
            return False
        self._recovering_since = self._recovering_since or time.monotonic()
        return time.monotonic() - self._recovering_since < _RECOVERING_SECONDS
