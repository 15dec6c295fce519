"""How much to measure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
        quick: Fewer rounds, devices and contenders: three minutes in place of thirty.
        workloads: Which.
        devices: Numbers of devices.
        rounds: Timings of each contender, in turn.
        peers: Whether contenders other than JAX by hand and mirrored take part.
        replicas: Numbers of replicas for the first step; empty for the usual ones, three times each.
        keep: Called with the figures so far, so that a run that is cut off leaves what it has measured.
    """

    quick: bool
    workloads: tuple[str, ...]
    devices: tuple[int, ...]
    rounds: int
    peers: bool = True
    replicas: tuple[int, ...] = ()
    keep: Callable[[dict[str, Any]], None] = lambda figures: None


def say(text: str) -> None:
    """Progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


Figures = dict[str, Any]
