"""Timing a call that devices answer."""

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
    """Many calls, each waited for.

    Attributes:
        seconds: The median until the result was there.
        dispatch_seconds: What the calling thread itself had to do until the call returned: the lower quartile of its
            processor time. (On CPUs some calls compute before they return, and the devices that are started first
            take the core from the thread that starts the others: neither is the starting itself.)
    """

    seconds: float
    dispatch_seconds: float


def timed(call: Callable[[], Any]) -> Timing:
    """Times calls for about half a second, at least five, after three that compile and warm up."""
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
    """The value that a quarter of them do not exceed."""
    return sorted(values)[(len(values) - 1) // 4]
