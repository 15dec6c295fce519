"""Options of the benchmarks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
        quick: Fewer rounds, devices and contenders: three minutes instead of thirty.
        workloads: The workloads to run.
        devices: Numbers of devices.
        rounds: Timings per contender, in turn.
        peers: Whether contenders other than hand-written JAX and mirrored take part.
        replicas: Numbers of replicas for the first step; empty for the default ones, three times each.
        keep: Called with the figures so far, so that an interrupted run keeps its measurements.
    """

    quick: bool
    workloads: tuple[str, ...]
    devices: tuple[int, ...]
    rounds: int
    peers: bool = True
    replicas: tuple[int, ...] = ()
    keep: Callable[[dict[str, Any]], None] = lambda figures: None


def say(text: str) -> None:
    """Prints progress with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


Figures = dict[str, Any]
