"""Times contenders next to each other: interleaved rounds in one process, medians of ratios with their spread."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class Paired:
    """The times of two contenders for the same work.

    Attributes:
        ours_seconds: One time per round, per call.
        theirs_seconds: Times of the same rounds.
    """

    ours_seconds: Sequence[float]
    theirs_seconds: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """Our time over theirs, round by round."""
        return [a / b for a, b in zip(self.ours_seconds, self.theirs_seconds, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """A 95 % interval of the median ratio, see `rank_interval`."""
        return rank_interval(self.ratios)


def rank_interval(figures: Sequence[float]) -> tuple[float, float]:
    """Returns a 95 % interval of the median, from its rank bounds (no assumption about the distribution)."""
    ordered = sorted(figures)
    n = len(ordered)
    half = 0.98 * n**0.5
    low, high = max(0, round(n / 2 - half)), min(n - 1, round(n / 2 + half))
    return ordered[low], ordered[high]


def pair(ours: Callable[[], None], theirs: Callable[[], None], *, rounds: int, calls: int, warm_up: int = 3) -> Paired:
    """Times two functions in turn.

    Args:
        ours: Does one unit of work and waits for it.
        theirs: Does the same.
        rounds: Number of rounds; each times both, in alternating order.
        calls: Number of calls per timing.
        warm_up: Number of initial calls that are not counted.
    """
    for _ in range(warm_up):
        ours()
        theirs()
    ours_seconds: list[float] = []
    theirs_seconds: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for round_ in range(rounds):
            order = [(ours, ours_seconds), (theirs, theirs_seconds)]
            for work, into in order if round_ % 2 == 0 else reversed(order):
                start = time.perf_counter()
                for _ in range(calls):
                    work()
                into.append((time.perf_counter() - start) / calls)
    finally:
        gc.enable()
    return Paired(ours_seconds, theirs_seconds)
