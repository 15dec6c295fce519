"""Times calls that run on devices."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

_WARM_UP, _FEWEST, _MOST, _ENOUGH_SECONDS = 3, 5, 200, 0.5


@dataclasses.dataclass(frozen=True)
class Timing:
    """The timing of a series of synchronous calls.

    Attributes:
        seconds: The median time until the result is ready.
        dispatch_seconds: The lower quartile of the calling thread's CPU time until the call returns. (The lower
            quartile excludes two effects on CPUs that are not dispatch: some calls compute before they return, and the
            devices that start first preempt the thread that starts the others.)
    """

    seconds: float
    dispatch_seconds: float


def timed(call: Callable[[], Any]) -> Timing:
    """Times calls for about half a second, but at least five calls, after three calls that compile and warm up."""
    for _ in range(_WARM_UP):
        jax.block_until_ready(call())
    seconds: list[float] = []
    dispatch: list[float] = []
    end = time.perf_counter() + _ENOUGH_SECONDS
    while len(seconds) < _FEWEST or (len(seconds) < _MOST and time.perf_counter() < end):
        start, busy = time.perf_counter(), time.thread_time()
        result = call()
        dispatch.append(time.thread_time() - busy)
        jax.block_until_ready(result)
        seconds.append(time.perf_counter() - start)
    return Timing(statistics.median(seconds), lower_quartile(dispatch))


def lower_quartile(values: list[float]) -> float:
    """Returns the lower quartile of the values."""
    return sorted(values)[(len(values) - 1) // 4]
