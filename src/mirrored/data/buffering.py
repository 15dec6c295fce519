"""The shuffle buffer of stream pipelines."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from mirrored.data.elements import Element
from mirrored.data.pipeline import Cursor

DRAWS: Final = 1024
"""Block size of random numbers. Each block has its own generator, so any position can be reached without the others."""


class BufferCursor:
    """Shuffles a stream with a buffer: returns a random element of the buffer and replaces it with the next one.

    A saved position contains no elements, only the number of elements returned so far. Restoring it replays the random
    numbers to find which elements the buffer held, and reads these again from the last stream position before the
    oldest of them.

    Args:
        parent: The stream, at its start.
        size: Number of elements in the buffer.
        draws: From the index of a block to its `DRAWS` random numbers in [0, 1).

    Source: the algorithm of `tf.data.Dataset.shuffle` (its random numbers differ).
    """

    def __init__(self, parent: Cursor, size: int, draws: Callable[[int], np.ndarray]) -> None:
        self._parent, self._size, self._draws = parent, size, draws
        self._buffer: list[tuple[int, Element]] = []
        self._given = self._read = 0
        self._ended = False
        # Positions of the stream, one per `size` elements, starting before the oldest element in the buffer.
        self._marks: collections.deque[tuple[int, Any]] = collections.deque([(0, parent.get_state())])
        self._block: tuple[int, np.ndarray] = (-1, np.empty(0))

    def __next__(self) -> Element:
        while len(self._buffer) < self._size and not self._ended:
            self._fill()
        if not self._buffer:
            raise StopIteration
        _, element = _leave(self._buffer, self._draw(self._given))
        self._given += 1
        return element

    def _fill(self) -> None:
        try:
            element = next(self._parent)
        except StopIteration:
            self._ended = True
            return
        self._buffer.append((self._read, element))
        self._read += 1
        if self._read % self._size == 0:
            self._forget_marks()
            self._marks.append((self._read, self._parent.get_state()))

    def _forget_marks(self) -> None:
        oldest = min((number for number, _ in self._buffer), default=self._read)
        while len(self._marks) > 1 and self._marks[1][0] <= oldest:
            self._marks.popleft()

    def _draw(self, number: int) -> float:
        block, place = divmod(number, DRAWS)
        if self._block[0] != block:
            self._block = (block, self._draws(block))
        return float(self._block[1][place])

    def get_state(self) -> Any:
        self._forget_marks()
        number, position = self._marks[0]
        return {"given": self._given, "read": self._read, "ended": self._ended, "from": number, "position": position}

    def set_state(self, state: Any) -> None:
        self._given, self._read, self._ended = state["given"], state["read"], state["ended"]
        numbers = self._numbers_in_buffer()
        self._parent.set_state(state["position"])
        self._marks = collections.deque([(state["from"], state["position"])])
        found = dict(self._elements(set(numbers), state["from"]))
        self._buffer = [(number, found[number]) for number in numbers]

    def _numbers_in_buffer(self) -> list[int]:
        buffer: list[tuple[int, None]] = []
        arriving = iter(range(self._read))
        for given in range(self._given):
            buffer.extend((number, None) for _, number in zip(range(self._size - len(buffer)), arriving, strict=False))
            _leave(buffer, self._draw(given))
        buffer.extend((number, None) for number in arriving)
        return [number for number, _ in buffer]

    def _elements(self, wanted: set[int], first: int) -> Iterator[tuple[int, Element]]:
        for number in range(first, self._read):
            element = next(self._parent)
            if (number + 1) % self._size == 0:
                self._marks.append((number + 1, self._parent.get_state()))
            if number in wanted:
                yield number, element

    def close(self) -> None:
        self._parent.close()


def _leave(buffer: list[Any], draw: float) -> Any:
    """Removes and returns the element that `draw` selects. The last element moves into its slot."""
    slot = int(draw * len(buffer))
    buffer[slot], buffer[-1] = buffer[-1], buffer[slot]
    return buffer.pop()
