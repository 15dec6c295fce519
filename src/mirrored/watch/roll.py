"""What this worker has come to: every operation that all workers make together, numbered."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_REMEMBERED: Final = 32


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where a worker stands.

    Attributes:
        count: How many operations it has come to.
        inside: Whether it is inside the newest of them.
        recent: The newest ones by number, in words.
        has_ended: Whether its program has ended.
        beat: Grows as long as the worker is alive.
        name: Its host and process.
    """

    count: int = 0
    inside: bool = False
    recent: dict[int, str] = dataclasses.field(default_factory=dict)
    has_ended: bool = False
    beat: int = 0
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Standing:
        """From plain data."""
        recent = {int(number): label for number, label in data["recent"].items()}
        return Standing(**{**data, "recent": recent})

    @property
    def newest(self) -> str:
        """The newest operation in words."""
        return self.recent.get(self.count, "the start")


class Roll:
    """The operations of this process, in order. Written by the main thread, read by the watching one."""

    def __init__(self) -> None:
        self.count = 0
        self.inside = False
        self._token: Any = None
        self._recent: collections.deque[tuple[int, str]] = collections.deque(maxlen=_REMEMBERED)
        self._calls: collections.Counter[str] = collections.Counter()

    def arrive(self, label: str) -> None:
        """Notes that this worker has come to an operation of all."""
        self._calls[label] += 1
        self._recent.append((self.count + 1, f"{label} (time {self._calls[label]})"))
        self.count += 1
        self.inside = True

    def depart(self, token: Any = None) -> None:
        """Notes that it is through, as far as this host can tell.

        Args:
            token: An array that the devices have yet to compute: until then it is not through.
        """
        self._token = token
        self.inside = False

    @contextmanager
    def at(self, label: str) -> Iterator[None]:
        """The block is an operation of all."""
        self.arrive(label)
        try:
            yield
        finally:
            self.depart()

    def standing(self, *, beat: int, has_ended: bool, name: str) -> Standing:
        """Where this worker stands now."""
        return Standing(
            self.count, self.inside or self._is_computing(), dict(list(self._recent)), has_ended, beat, name
        )

    def _is_computing(self) -> bool:
        token = self._token
        return token is not None and not token.is_deleted() and not token.is_ready()


roll = Roll()
"""The one of this process."""
