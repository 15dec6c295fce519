"""The items and attributes that nested loops of converted code carry, so that inner loops are not traced too often."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from mirrored._blocks import contextmanager
from mirrored.tf._autograph.places import Place


class _Nest(threading.local):
    """The items and attributes that nested loops carry while the outermost one is traced.

    A loop whose body changes some is traced again. Each trace of an outer loop traces the inner ones, which then know
    from the trace before which of the outer loop's places they change. Otherwise the number of traces of the innermost
    body would double with each level.
    """

    def __init__(self) -> None:
        self._carried: list[AbstractSet[Place]] = []
        self._changed: dict[str, dict[Place, None]] = {}  # by the line of the loop

    def expected(self, line: str, known: AbstractSet[Place]) -> list[Place]:
        """Returns which places of the loops around a loop its body has changed before, except known ones."""
        return [
            place
            for place in self._changed.get(line, ())
            if place not in known and any(place in carried for carried in self._carried)
        ]

    def note(self, line: str, changed: Sequence[Place]) -> None:
        """Records that the body of the loop in a line changes places, if another loop is around it."""
        if self._carried:
            self._changed.setdefault(line, {}).update(dict.fromkeys(changed))

    @contextmanager
    def inside(self, carried: AbstractSet[Place]) -> Iterator[None]:
        """A context manager in which the body of a loop that carries some places is traced."""
        outer = self._carried
        try:
            self._carried = [*outer, carried]
            yield
        finally:
            self._carried = outer
            if not outer:
                self._changed.clear()


nest: Final = _Nest()
