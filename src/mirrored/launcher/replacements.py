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
    """Decides in which worker slots the launcher starts a new process after a worker was lost.

    A slot whose processes end `STILLBORN_LIMIT` times in a row before they reach the training function gets no more.
    """

    def __init__(self) -> None:
        self._stillborn: dict[int, int] = {}  # by slot: how many processes in a row did not reach the function
        self._recovering_since: float | None = None

    def arrived(self, slot: int) -> None:
        """Notes that the process in a worker slot has reached the training function."""
        self._stillborn[slot] = 0

    def is_hopeless(self, slot: int) -> bool:
        """Counts a process that ended before reaching the training function; returns whether to give up its slot."""
        self._stillborn[slot] = self._stillborn.get(slot, 0) + 1
        return self._stillborn[slot] >= STILLBORN_LIMIT

    def give_up(self, slot: int) -> None:
        """Marks a worker slot, so that no more processes are started in the slot."""
        self._stillborn[slot] = STILLBORN_LIMIT

    def slots(self, members: dict[int, Member], fewest: int, most: int) -> list[int]:
        """Returns the worker slots in which a process must be started now.

        While the other workers recover, there is none, unless the job needs more workers: starting a process takes the
        processor time that they need.

        Args:
            members: The workers, by slot.
            fewest: The number of workers without which the job cannot continue.
            most: The number of slots.
        """
        is_needed = len(members) < fewest
        if not is_needed and self._must_wait(members.values()):
            return []
        return [slot for slot in range(most) if slot not in members and self._stillborn.get(slot, 0) < STILLBORN_LIMIT]

    def _must_wait(self, members: Collection[Member]) -> bool:
        if not any(one.has_arrived and not one.has_stepped for one in members):
            self._recovering_since = None
            return False
        self._recovering_since = self._recovering_since or time.monotonic()
        return time.monotonic() - self._recovering_since < _RECOVERING_SECONDS
