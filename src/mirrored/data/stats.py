"""Timing statistics of an input pipeline."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Final

_WINDOW_SECONDS: Final = 3.0
_WORTH_REPORTING: Final = 0.5
log: Final = logging.getLogger("mirrored.data")


@dataclasses.dataclass
class InputStats:
    """The result of `dataset.stats()`. Seconds are totals over all batches of the latest iteration.

    Attributes:
        batches: Number of batches returned.
        examples: Number of examples returned.
        read_seconds: Time to read the source, without the functions of the pipeline.
        map_seconds: Time in functions passed to `map`, `filter` and similar steps (in the thread that reads).
        transfer_seconds: Time to split batches and place them on devices.
        wait_seconds: Time that the training loop waited for batches.
        elapsed_seconds: Time since the first batch was requested.
        uses_worker: Whether a thread prefetches. It starts when batches take long enough for it to pay off.
    """

    batches: int = 0
    examples: int = 0
    read_seconds: float = 0.0
    map_seconds: float = 0.0
    transfer_seconds: float = 0.0
    wait_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    uses_worker: bool = False

    def breakdown(self, before: InputStats | None = None) -> str:
        """Formats the times, since `before` if given: ``read 0.1 s, map 1.8 s, transfer 0.2 s``."""
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._parts(before).items())

    def longest(self, before: InputStats | None = None) -> str:
        """Returns the part that took longest: ``read``, ``map`` or ``transfer``."""
        parts = self._parts(before)
        return max(parts, key=parts.__getitem__)

    def _parts(self, before: InputStats | None) -> dict[str, float]:
        start = InputStats() if before is None else before
        return {
            "read": self.read_seconds - start.read_seconds,
            "map": self.map_seconds - start.map_seconds,
            "transfer": self.transfer_seconds - start.transfer_seconds,
        }


class StallWatch:
    """Logs a warning, once, if the training loop waits for input most of the time."""

    def __init__(self, stats: InputStats) -> None:
        self._stats = stats
        self._window_start = time.perf_counter()
        self._before = dataclasses.replace(stats)
        self._reported = False

    def after_batch(self, now: float) -> None:
        """Checks the time window that ends now, if it is long enough."""
        length = now - self._window_start
        if length < _WINDOW_SECONDS:
            return
        waited = self._stats.wait_seconds - self._before.wait_seconds
        if waited > _WORTH_REPORTING * length and not self._reported:
            self._reported = True
            log.warning(
                "the step waited %.1f s of the last %.1f s for input, mostly for %s (%s)",
                waited,
                length,
                self._stats.longest(self._before),
                self._stats.breakdown(self._before),
            )
        self._window_start, self._before = now, dataclasses.replace(self._stats)
