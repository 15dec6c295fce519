"""Detects a worker that runs much more slowly than the others, and thus delays every step of the job."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Hashable, Mapping
from typing import Final

# A worker is slow if a probe takes 3 times the median of the others, in 3 reports in a row.
_FACTOR: Final = 3.0
_REPORTS: Final = 3
# Shorter probes say nothing: a thread that wakes up a millisecond late, a cache miss.
_LEAST_SECONDS: Final = 0.005


@dataclasses.dataclass
class _Worker:
    probes: tuple[float, ...]
    slow_reports: int = 0
    is_named: bool = False


class SlowWorkers:
    """Finds slow workers by comparing the times that all workers take for the same short sleeps and computation."""

    def __init__(self) -> None:
        self._workers: dict[Hashable, _Worker] = {}

    def report(self, worker: Hashable, probes: Mapping[str, float]) -> float | None:
        """Records a worker's probe times; returns the slowdown factor if the worker is now found slow, else None.

        Args:
            worker: The worker.
            probes: The seconds of each probe; the same probes for all workers.

        Returns:
            How many times slower than the others the worker is, at the last of several slow reports in a row; otherwise
            None.
        """
        mine = self._workers.setdefault(worker, _Worker(()))
        mine.probes = tuple(probes[name] for name in sorted(probes))
        factor = self._factor(worker)
        if factor < _FACTOR:
            mine.slow_reports, mine.is_named = 0, False
            return None
        mine.slow_reports += 1
        if mine.is_named or mine.slow_reports < _REPORTS:
            return None
        mine.is_named = True
        return factor

    def forget(self, worker: Hashable) -> None:
        """Forgets a worker that is not part of the job any more."""
        self._workers.pop(worker, None)

    def _factor(self, worker: Hashable) -> float:
        mine = self._workers[worker].probes
        others = [one.probes for key, one in self._workers.items() if key != worker and len(one.probes) == len(mine)]
        if not others:
            return 1.0
        pairs = zip(mine, zip(*others, strict=True), strict=True)
        return max((own / max(_LEAST_SECONDS, statistics.median(theirs)) for own, theirs in pairs), default=1.0)
