"""The collective log: the collective operations that this worker has executed, numbered in program order."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import zlib
from collections.abc import Iterator
from typing import Any, Final

from mirrored._blocks import contextmanager
from mirrored._jax import distributed
from mirrored._jax.arrays import is_ready
from mirrored.watchdog.worker_progress import CallSite, CallSpan, WorkerProgress

_STRETCHES: Final = 32
_MARKS: Final = 32
_MARK_EVERY: Final = 64
# An upper bound: labels that contain numbers would otherwise fill the memory in a long training run.
_PLACES: Final = 1000
# The 64-bit FNV prime: the digest is a polynomial hash of all labels so far.
_FACTOR: Final = 0x100000001B3
_BITS: Final = (1 << 64) - 1


@dataclasses.dataclass(eq=False)
class _Place:
    label: str
    line: str
    first: int
    times: int = 0


class CollectiveLog:
    """A log of the newest collective operations of this worker, numbered in program order.

    The main thread writes it; the watchdog's thread reads it. Consecutive calls of one operation at one line form one
    span: a million calls of one step are one span. The log keeps the newest spans, every program line that has made a
    call with its number of calls, and, at every 64th operation, a digest of all labels so far. A digest covers the
    whole history, so that a mismatch stays detectable after the spans around it are forgotten.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Empties the log, for example when this process leaves its job."""
        self.count = 0
        self.inside = False
        self._token: Any = None
        self._here: _Place | None = None
        self._digest = self._former_digest = 0
        self._times: dict[str, int] = {}
        self._places: dict[tuple[str, str], _Place] = {}
        self._forgets = False
        self._stretches: collections.deque[tuple[int, int, _Place]] = collections.deque(maxlen=_STRETCHES)
        self._marks: collections.deque[tuple[int, int]] = collections.deque(maxlen=_MARKS)

    def arrive(self, label: str, line: str = "") -> None:
        """Logs that this worker starts a collective operation.

        Args:
            label: The name of the operation; the same on all workers.
            line: The program line that calls it.
        """
        number = self.count + 1
        place = self._places.get((label, line))
        if place is None:
            place = self._new_place(label, line, number)
        place.times += 1
        time = self._times.get(label, 0) + 1
        if time == 1 and len(self._times) >= _PLACES:
            # Only the labels decide what is forgotten: they are the same on all workers, and the lines need not be.
            del self._times[next(iter(self._times))]
        self._times[label] = time
        if place is not self._here:
            self._stretches.append((number, time, place))
            self._here = place
        self._former_digest = self._digest
        self._digest = (self._digest * _FACTOR + zlib.crc32(label.encode()) + 1) & _BITS
        if not number % _MARK_EVERY:
            self._marks.append((number, self._digest))
        # Written last: the watchdog's thread takes no lock, and must find a span for every number up to `count`.
        self.count = number
        self.inside = True

    def _new_place(self, label: str, line: str, number: int) -> _Place:
        if len(self._places) >= _PLACES:
            self._forgets = True
            del self._places[next(iter(self._places))]
        place = self._places[label, line] = _Place(label, line, number)
        return place

    def depart(self, token: object = None) -> None:
        """Logs that the call of a collective operation has returned on this worker.

        The devices may still execute the operation.

        Args:
            token: An output array of the operation. The operation counts as running until the devices have computed it.
        """
        self._token = token
        self.inside = False

    def cancel(self) -> None:
        """Removes the operation that was logged last, so that another operation can be logged before it."""
        number, place = self.count, self._here
        assert place is not None  # `arrive` was called last
        self.inside = False
        self.count = number - 1  # written first, see `arrive`
        if self._stretches[-1][0] == number:
            self._stretches.pop()
            self._here = self._stretches[-1][2] if self._stretches else None
        if self._marks and self._marks[-1][0] == number:
            self._marks.pop()
        self._digest = self._former_digest
        self._times[place.label] -= 1
        place.times -= 1
        if not place.times:
            del self._places[place.label, place.line]

    @contextmanager
    def at(self, label: str, line: str = "") -> Iterator[None]:
        """A context manager that logs its block as one collective operation of this worker."""
        try:
            self.arrive(label, line)
            yield
        finally:
            self._token, self.inside = None, False

    def progress(self, *, beat: int, has_ended: bool, name: str) -> WorkerProgress:
        """Returns this worker's progress, to be sent to other workers: how many collectives it has reached, and which.

        Args:
            beat: The number of this heartbeat.
            has_ended: Whether the program has ended.
            name: The worker's host and process.
        """
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
        try:
            return token is not None and not is_ready(token)
        except RuntimeError:  # another thread has donated it after the first check, to a later step
            return False


collective_log = CollectiveLog()
"""The collective log of this process."""
distributed.on_leave(collective_log.clear)
