"""The schedule of snapshots: after a given number of steps, or such that snapshots take about 1 % of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

_SHARE: Final = 0.01
_FIRST: Final = 10
_MOST: Final = 1000
# How many snapshots of an epoch are taken between two choices, after those at 2, 4, 8, ...
_CHOICES: Final = 64


def steps_between_snapshots(snapshot_seconds: float, step_seconds: float) -> int:
    """Returns how many steps to make between two snapshots, so that snapshots take about 1 % of the training time.

    Args:
        snapshot_seconds: How long a snapshot delays training.
        step_seconds: The time of a step.
    """
    return min(_MOST, max(_FIRST, math.ceil(snapshot_seconds / (_SHARE * max(1e-9, step_seconds)))))


class Pace:
    """The schedule of snapshots in one membership epoch; all workers have the same schedule.

    Args:
        fixed: The number of steps between two snapshots. None: chosen such that snapshots take about 1 % of the time.
        step: The step with which the epoch begins.
        agree: Takes the number of steps that this worker proposes, and returns the proposals of all workers.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        fixed: int | None,
        step: int,
        agree: Callable[[int], list[int]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._fixed, self._agree, self._clock = fixed, agree, clock
        self.every = _FIRST if fixed is None else fixed
        self._next = step + self.every
        self._count = 0
        self._began = clock()

    def is_due(self, step: int) -> bool:
        """Returns whether a snapshot must be taken after step number `step`."""
        return step >= self._next

    def taken(self, step: int, seconds: float) -> None:
        """Notes that a snapshot was taken, and plans the next one.

        Unless the interval between snapshots is fixed, the workers agree on a new interval after snapshots 2, 4, 8, ...
        of the epoch, and after every 64th.

        Args:
            step: The step of the snapshot that was taken.
            seconds: How long a snapshot delays training, as far as it is known.
        """
        self._count += 1
        now = self._clock()
        if self._fixed is None and self._is_time_to_choose():
            self.every = max(self._agree(steps_between_snapshots(seconds, (now - self._began) / self.every)))
        self._began = now
        self._next = step + self.every

    def _is_time_to_choose(self) -> bool:
        count = self._count
        return count > 1 and (count & (count - 1) == 0 or count % _CHOICES == 0)
