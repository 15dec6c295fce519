"""Where a worker stands among the operations that all workers make together: what it posts for the others to read."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class CallSpan:
    """Calls of one operation at one line, with no other operation in between.

    Attributes:
        first: The number of the first one among all operations.
        time: How often the operation had been called then, that call included.
        label: Which operation.
        line: Of the program; empty where it is not known.
    """

    first: int
    time: int
    label: str
    line: str = ""


@dataclasses.dataclass(frozen=True)
class CallSite:
    """A line of the program that calls an operation.

    Attributes:
        label: Which operation.
        line: Where.
        first: The number of its first call among all operations.
        times: How often it was called from there.
    """

    label: str
    line: str
    first: int
    times: int


@dataclasses.dataclass(frozen=True)
class WorkerProgress:
    """Where a worker stands.

    Attributes:
        count: How many operations it has come to.
        inside: Whether it is inside the newest of them.
        stretches: The newest ones, oldest first.
        places: Where calls were made, the newest first.
        has_more_places: Whether there are others.
        marks: By number of an operation, a digest of all up to there.
        has_ended: Whether its program has ended.
        beat: Grows as long as the worker is alive.
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
        """As plain data."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "stretches": [dataclasses.astuple(one) for one in self.stretches],
            "places": [dataclasses.astuple(one) for one in self.places],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> WorkerProgress:
        """From plain data."""
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
        """The number of the oldest operation that is remembered; one more than there are, if none is."""
        return self.stretches[0].first if self.stretches else self.count + 1

    def stretch_of(self, number: int) -> CallSpan | None:
        """Where an operation belongs; None if it has not come, or is forgotten."""
        if not self.oldest <= number <= self.count:
            return None
        return self.stretches[bisect.bisect_right([one.first for one in self.stretches], number) - 1]

    def called(self, number: int) -> str | None:
        """An operation and how often it had been called; None if it has not come, or is forgotten."""
        stretch = self.stretch_of(number)
        return None if stretch is None else f"{stretch.label} (time {stretch.time + number - stretch.first})"

    def described(self, number: int) -> str:
        """The same in words, with the line that has called it."""
        stretch = self.stretch_of(number)
        if stretch is None:
            return "the start" if number == 0 else "one that is forgotten"
        return f"{self.called(number)}{f' at {stretch.line}' if stretch.line else ''}"

    @property
    def newest(self) -> str:
        """The newest operation in words."""
        return self.described(self.count)
