"""The progress of a worker: how many collective operations it has reached, and which ones."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class CallSpan:
    """Consecutive calls of the same collective operation from the same program line.

    Attributes:
        first: The number of the first call among all operations.
        time: How many times the operation had been called then, that call included.
        label: The name of the operation.
        line: The program line; empty if it is not known.
    """

    first: int
    time: int
    label: str
    line: str = ""


@dataclasses.dataclass(frozen=True)
class CallSite:
    """A program line that calls a collective operation, and how many calls this line has made.

    Attributes:
        label: The name of the operation.
        line: The program line.
        first: The number of the first call from there among all operations.
        times: The number of calls from there.
    """

    label: str
    line: str
    first: int
    times: int


@dataclasses.dataclass(frozen=True)
class WorkerProgress:
    """The progress of one worker: how many collective operations it has reached, and the newest operations.

    Attributes:
        count: The number of operations that it has reached.
        inside: Whether it is inside the newest operation.
        stretches: The newest spans of calls, oldest first.
        places: The call sites, newest first.
        has_more_places: Whether there are further call sites.
        marks: Digests of all operations so far, by operation number.
        has_ended: Whether its program has ended.
        beat: The heartbeat counter, which grows as long as the worker is alive.
        name: Its host and process.
    """

    count: int = 0
    inside: bool = False
    stretches: tuple[CallSpan, ...] = ()
    places: tuple[CallSite, ...] = ()
    has_more_places: bool = False
    marks: dict[int, int] = dataclasses.field(default_factory=dict)
    has_ended: bool = False
    beat: int = 0
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """Converts the progress to JSON-serializable data."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "stretches": [dataclasses.astuple(one) for one in self.stretches],
            "places": [dataclasses.astuple(one) for one in self.places],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> WorkerProgress:
        """Converts the result of `to_json` back to a `WorkerProgress`."""
        return WorkerProgress(
            **{
                **data,
                "stretches": tuple(CallSpan(*one) for one in data["stretches"]),
                "places": tuple(CallSite(*one) for one in data["places"]),
                "marks": {int(number): digest for number, digest in data["marks"].items()},
            }
        )

    @property
    def oldest(self) -> int:
        """The number of the oldest collective operation still in the log; `count` + 1 if the log is empty."""
        return self.stretches[0].first if self.stretches else self.count + 1

    def span_of(self, number: int) -> CallSpan | None:
        """Returns the `CallSpan` that contains collective operation `number`; None if the log does not contain it."""
        if not self.oldest <= number <= self.count:
            return None
        return self.stretches[bisect.bisect_right([one.first for one in self.stretches], number) - 1]

    def called(self, number: int) -> str | None:
        """Returns the name and call count of a collective operation as text.

        The text is ``name (time n)`` for the n-th call of ``name``; None if the log lacks operation `number`.
        """
        stretch = self.span_of(number)
        return None if stretch is None else f"{stretch.label} (time {stretch.time + number - stretch.first})"

    def described(self, number: int) -> str:
        """Formats the name, call count and program line of collective operation `number`, for error messages."""
        stretch = self.span_of(number)
        if stretch is None:
            return "the start" if number == 0 else "an operation that is forgotten"
        return f"{self.called(number)}{f' at {stretch.line}' if stretch.line else ''}"

    @property
    def newest(self) -> str:
        """The name, call count and program line of the newest collective operation, for error messages."""
        return self.described(self.count)
