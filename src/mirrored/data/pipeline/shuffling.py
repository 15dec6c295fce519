"""Implements shuffling with and without random access, and infinite datasets of random numbers."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from mirrored.data.cursors import Cursor, read_again
from mirrored.data.elements import Element
from mirrored.data.feed import log
from mirrored.data.options import INFINITE_CARDINALITY
from mirrored.data.pipeline.indexed_sources import RangeSource
from mirrored.data.pipeline.nodes import ENDLESS, IndexedNode, ItemRows, Node, Rows, Run, nodes, rows_of
from mirrored.data.pipeline.positions import sizes_of
from mirrored.data.pipeline.seeds import Passes
from mirrored.data.pipeline.transformations import CursorTransformation, OneParent
from mirrored.data.specs import spec_of

# The shuffle buffer of stream pipelines.

DRAWS: Final = 1024
"""Block size of random numbers. Each block has its own generator, so any position can be reached without the others."""


def draws(key: tuple[int, ...]) -> Callable[[int], np.float64]:
    """Returns a function that maps i to the i-th random number in [0, 1) of the sequence with seed `key`."""

    @functools.lru_cache(maxsize=1)
    def block(number: int) -> np.ndarray:
        return np.random.default_rng((*key, number)).random(DRAWS)

    return lambda index: block(index // DRAWS)[index % DRAWS]


class BufferCursor:
    """An iterator that shuffles a stream with a buffer, like `tf.data.Dataset.shuffle`; its position can be saved.

    A saved position contains no elements, only the number of elements returned so far. Restoring it replays the random
    numbers to find which elements the buffer held, and reads these again from the last stream position before the
    oldest of them.

    Args:
        parent: The stream, at its start.
        size: Number of elements in the buffer.
        draw: From an index to a random number in [0, 1).

    Source: the algorithm of `tf.data.Dataset.shuffle` (its random numbers differ).
    """

    def __init__(self, parent: Cursor, size: int, draw: Callable[[int], np.float64]) -> None:
        self._parent, self._size, self._draw = parent, size, draw
        self._buffer: list[tuple[int, Element]] = []
        self._given = self._read = 0
        self._ended = False
        # Positions of the stream, one per `size` elements, starting before the oldest element in the buffer.
        self._marks: collections.deque[tuple[int, Any]] = collections.deque([(0, parent.get_state())])

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

    def get_state(self) -> Any:
        number, position = self._marks[0]
        return {"given": self._given, "read": self._read, "ended": self._ended, "from": number, "position": position}

    def set_state(self, state: dict[str, Any]) -> None:
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
            element = read_again(self._parent)
            if (number + 1) % self._size == 0:
                self._marks.append((number + 1, self._parent.get_state()))
            if number in wanted:
                yield number, element

    def close(self) -> None:
        self._parent.close()


def _leave(buffer: list[Any], draw: np.float64) -> Any:
    """Removes and returns the buffer element at the relative position `draw`, a number in [0, 1).

    The last element of the buffer takes its position.
    """
    slot = int(draw * len(buffer))
    buffer[slot], buffer[-1] = buffer[-1], buffer[slot]
    return buffer.pop()


# Random numbers as an indexed dataset: the number at a position does not depend on the preceding numbers.

_LIMIT: Final = 2**31


@dataclasses.dataclass(frozen=True, eq=False)
class Uniform(IndexedNode):
    """An infinite dataset of uniform random numbers in [0, 1), as float64 scalars.

    Attributes:
        seed: The random seed.
        rerandomize: Whether every iteration draws new numbers. If False, all iterations are equal, as in TensorFlow.
        passes: Counts the passes.
    """

    seed: int
    rerandomize: bool
    passes: Passes = dataclasses.field(default_factory=Passes, kw_only=True)

    @property
    def varies(self) -> bool:
        return self.rerandomize

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY

    @property
    def spec(self) -> Any:
        return spec_of(np.float64(0))

    def open(self, run: Run) -> Rows:
        return ItemRows(ENDLESS, draws(_key(run.seeds.get(id(self), self.seed), run, self.rerandomize)))


def as_integer(uniform: float | np.floating[Any]) -> np.int64:
    """Scales a random number in [0, 1) to an integer in [0, 2**31)."""
    return np.int64(uniform * _LIMIT)


@dataclasses.dataclass(frozen=True, eq=False)
class Endless(RangeSource):
    """An infinite dataset of the integers 0, 1, 2, ..., as int64 scalars."""

    numbers: range = range(ENDLESS)
    dtype: np.dtype[Any] = np.dtype(np.int64)


# Shuffle steps: by a permutation of positions for indexed pipelines, by a buffer for streams.


def _key(seed: int, run: Run, reshuffle: bool) -> tuple[int, ...]:
    return (seed, *(run.key if reshuffle else ()))


def buffered_order(size: int, buffer_size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the order in which a shuffle buffer with `buffer_size` slots yields the indices 0 to size - 1.

    The buffer holds `buffer_size` positions. Each draw removes a random one and puts the next position in its slot. If
    the buffer is as large as the data, the order is a uniform permutation.

    Example:
        >>> sorted(buffered_order(10, 3, np.random.default_rng(0)).tolist()) == list(range(10))
        True

    Source: the algorithm of `tf.data.Dataset.shuffle` (its random numbers differ).
    """
    if buffer_size >= size:
        return rng.permutation(size)
    buffer = list(range(buffer_size))
    order = np.empty(size, np.int64)
    slots = rng.integers(buffer_size, size=size - buffer_size).tolist()
    for place, slot in enumerate(slots):
        order[place] = buffer[slot]
        buffer[slot] = place + buffer_size
    order[size - buffer_size :] = rng.permutation(np.array(buffer))
    return order


@dataclasses.dataclass(frozen=True, eq=False)
class Shuffled(OneParent, CursorTransformation):
    """The operation `shuffle`: permutes the indices of a random-access dataset, or shuffles a stream with a buffer.

    The order differs per epoch if `reshuffle` is set.
    """

    replays: ClassVar[bool] = True

    buffer_size: int
    seed: int
    reshuffle: bool
    passes: Passes = dataclasses.field(default_factory=Passes, kw_only=True)

    @functools.cached_property
    def is_indexed(self) -> bool:
        """Whether element i can be computed without the elements before it; False for an infinite dataset."""
        return super().is_indexed and self.cardinality != INFINITE_CARDINALITY

    @property
    def varies(self) -> bool:
        return self.reshuffle

    @property
    def settings(self) -> str:
        count = self.parent.cardinality
        parts = [f"{count} elements" if count >= 0 else "a stream", *sizes_of(self.parent)]
        return f"shuffle({self.buffer_size}, reshuffle_each_iteration={self.reshuffle}) of {', '.join(parts)}"

    @property
    def arguments(self) -> str:
        parts = [step.grouping for step in nodes(self.parent) if step.grouping]
        return f"shuffle of {', '.join(parts)}" if parts else ""

    def _key(self, run: Run) -> tuple[int, ...]:
        return _key(run.seeds.get(id(self), self.seed), run, self.reshuffle)

    def open(self, run: Run) -> Rows:
        return _ShuffledRows(rows_of(self.parent, run), self.buffer_size, np.random.default_rng(self._key(run)))

    def open_cursor(self, run: Run) -> Cursor:
        return BufferCursor(self.parent.cursor(run), self.buffer_size, draws(self._key(run)))


class _ShuffledRows:
    def __init__(self, parent: Rows, buffer_size: int, rng: np.random.Generator) -> None:
        self.length, self._parent = parent.length, parent
        self._buffer_size, self._rng = buffer_size, rng
        self._known: np.ndarray | None = None
        self._lock = threading.Lock()

    @property
    def _order(self) -> np.ndarray:
        # Computed on first use: `cardinality` opens pipelines only to get their length.
        with self._lock:
            if self._known is None:
                self._known = buffered_order(self.length, self._buffer_size, self._rng)
            return self._known

    def item(self, index: int) -> Element:
        return self._parent.item(int(self._order[index]))

    def rows(self, positions: range | np.ndarray) -> Element:
        where = slice(positions.start, positions.stop, positions.step) if isinstance(positions, range) else positions
        return self._parent.rows(self._order[where])


def warn_of_other_orders(members: Sequence[Node]) -> None:
    """Warns if datasets to be zipped are shuffled with one seed, but in different orders.

    In TensorFlow the seed gives them one order, so programs expect their elements to belong together.
    """
    last = [next((step for step in nodes(member) if isinstance(step, Shuffled)), None) for member in members]
    shuffles = [step for step in last if step is not None and step.buffer_size > 1]
    for indexed, stream in itertools.product(shuffles, repeat=2):
        # The buffer holds all elements of a stream if its size is ENDLESS (None in the call).
        alike = indexed.seed == stream.seed and stream.buffer_size in (indexed.buffer_size, ENDLESS)
        if indexed.is_indexed and not stream.is_indexed and alike:
            log.warning(
                "Dataset.zip: shuffle(..., seed=%d) gives a dataset with random access another order than one without, "
                "such as a generator: the elements of the zipped datasets do not belong together. Zip them before the "
                "shuffle: Dataset.zip((a, b)).shuffle(...)",
                stream.seed,
            )
            return
