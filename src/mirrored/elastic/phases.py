"""Measures how long each phase of a membership change takes on one worker, for the launcher's log of events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from mirrored._jax.durations import durations

PHASES: Final = (
    "interrupting",
    "quiescing",
    "settling",
    "clearing",
    "waiting",
    "connecting",
    "making backends",
    "meeting",
    "receiving",
    "creating",
    "restoring",
    "first step",
)
"""The names in their order. A worker that has just started begins with "waiting"; few workers have "receiving"."""


class Phases:
    """Measures how long each phase of a membership change (connecting, restoring, ...) takes on this worker.

    A phase ends when the next one begins.

    Args:
        clock: Returns the time in seconds since 1970, which all processes of the machine share.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun: list[tuple[str, float]] = []
        self._before = durations()

    def begin(self, name: str) -> None:
        """Begins a phase, and ends the previous one.

        A phase that comes before the current one in `PHASES`, or is the same, begins another change of the workers; the
        phases of the interrupted change are dropped.

        Context: any thread.
        """
        with self._lock:
            if self._begun and PHASES.index(name) <= PHASES.index(self._begun[-1][0]):
                self._begun.clear()
            if not self._begun:
                self._before = durations()
            self._begun.append((name, self._clock()))

    def end(self) -> tuple[list[tuple[str, float, float]], dict[str, float]]:
        """Ends the last phase, and returns the times of all phases.

        Returns:
            The phases as name, begin (in seconds since 1970) and duration in seconds; and the seconds that they have
            spent on tracing, lowering, compiling and loading programs.
        """
        with self._lock:
            begun, self._begun = self._begun, []
            ends = [at for _, at in begun[1:]] + [self._clock()]
            now = durations()
            spent = {kind: round(now[kind] - before, 4) for kind, before in self._before.items()}
        pairs = zip(begun, ends, strict=True) if begun else ()
        return [(name, round(at, 4), round(end - at, 4)) for (name, at), end in pairs], spent
