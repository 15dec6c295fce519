"""Ratios of two contenders' times, round by round."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, with a 95 % interval by ranks (no assumption about the distribution)."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"

    def met(self, target: float) -> str:
        """Says whether the median is at most `target`, and whether the interval is narrow enough to decide that."""
        if self.high <= target:
            return "yes"
        if self.low > target:
            return "no"
        return "yes, within the spread" if self.median <= target else "no, within the spread"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Returns the ratio of our times to theirs."""
    ordered = sorted(a / b for a, b in zip(ours, theirs, strict=False))
    count = len(ordered)
    half = 0.98 * count**0.5
    low, high = max(0, round(count / 2 - half)), min(count - 1, round(count / 2 + half))
    return Ratio(statistics.median(ordered), ordered[low], ordered[high])
