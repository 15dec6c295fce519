"""What this worker has come to: every operation that all workers make together, numbered."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from mirrored.watchdog.worker_progress import CallSite, CallSpan, WorkerProgress

_STRETCHES: Final = 32
_MARKS: Final = 32
_MARK_EVERY: Final = 64
# Labels with numbers in them could fill the memory of a long training.
_PLACES: Final = 1000
_FACTOR: Final = 0x100000001B3
_BITS: Final = (1 << 64) - 1


@dataclasses.dataclass(eq=False)
class _Place:
    label: str
    line: str
    first: int
    times: int = 0


class CollectiveLog:
    """The operations of this process, in order. Written by the main thread, read by the watching one.

    A million calls of one step are one stretch. What is remembered: the newest stretches, every line of the program
    that has made a call, with their number, and at every 64th operation a digest of all labels up to there, so that
    two workers that differ anywhere are known to differ for as long as they run.
    """

    def __init__(self) -> None:
        self.count = 0
        self.inside = False
        self._token: Any = None
        self._here: _Place | None = None
        self._digest = 0
        self._times: dict[str, int] = {}
        self._places: dict[tuple[str, str], _Place] = {}
        self._forgets = False
        self._stretches: collections.deque[tuple[int, int, _Place]] = collections.deque(maxlen=_STRETCHES)
        self._marks: collections.deque[tuple[int, int]] = collections.deque(maxlen=_MARKS)

    def arrive(self, label: str, line: str = "") -> None:
        """Notes that this worker has come to an operation of all.

        Args:
            label: Which one; the same on all workers.
            line: Of the program, that has called it.
        """
        number = self.count + 1
        place = self._places.get((label, line))
        if place is None:
            place = self._new_place(label, line, number)
        place.times += 1
        time = self._times[label] = self._times.get(label, 0) + 1
        if place is not self._here:
            self._stretches.append((number, time, place))
            self._here = place
        self._digest = (self._digest * _FACTOR + zlib.crc32(label.encode()) + 1) & _BITS
        if not number % _MARK_EVERY:
            self._marks.append((number, self._digest))
        self.count = number
        self.inside = True

    def _new_place(self, label: str, line: str, number: int) -> _Place:
        if len(self._places) >= _PLACES:
            self._forgets = True
            oldest = next(iter(self._places))
            self._times.pop(oldest[0], None)
            del self._places[oldest]
        place = self._places[label, line] = _Place(label, line, number)
        return place

    def depart(self, token: Any = None) -> None:
        """Notes that it is through, as far as this host can tell.

        Args:
            token: An array that the devices have yet to compute: until then it is not through.
        """
        self._token = token
        self.inside = False

    @contextmanager
    def at(self, label: str, line: str = "") -> Iterator[None]:
        """The block is an operation of all."""
        self.arrive(label, line)
        try:
            yield
        finally:
            self.depart()

    def standing(self, *, beat: int, has_ended: bool, name: str) -> WorkerProgress:
        """Where this worker stands now."""
        count = self.count
        inside = self.inside or self._is_computing()
        stretches = tuple(CallSpan(first, time, one.label, one.line) for first, time, one in list(self._stretches))
        places = list(self._places.values())
        newest = itertools.islice(reversed(places), _STRETCHES)
        return WorkerProgress(
            count,
            inside,
            stretches,
            tuple(CallSite(one.label, one.line, one.first, one.times) for one in newest),
            self._forgets or len(places) > _STRETCHES,
            dict(list(self._marks)),
            has_ended,
            beat,
            name,
        )

    def _is_computing(self) -> bool:
        token = self._token
        return token is not None and not token.is_deleted() and not token.is_ready()


collective_log = CollectiveLog()
"""The one of this process."""
