"""Shuffle steps: by a permutation of positions for indexed pipelines, by a buffer for streams."""

from __future__ import annotations

import dataclasses
import secrets
import threading
from typing import Any

import numpy as np

from mirrored.data.buffering import DRAWS, BufferCursor
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.indexed import OneParent
from mirrored.data.pipeline import Rows, Run
from mirrored.data.streams import StreamStep


def new_seed() -> int:
    """Returns a random seed for a shuffle without a given one. Positions contain it, so restored runs shuffle alike."""
    return secrets.randbits(31)


def generator(seed: int, run: Run, reshuffle: bool) -> np.random.Generator:
    """Returns the random generator for one epoch of a shuffle."""
    return np.random.default_rng(_key(seed, run, reshuffle))


def _key(seed: int, run: Run, reshuffle: bool) -> tuple[int, ...]:
    return (seed, *(run.path if reshuffle else ()))


def buffered_order(size: int, buffer_size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the order in which a shuffle buffer returns the positions 0..size-1.

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
class Shuffled(OneParent):
    """Shuffles an indexed parent, with a different order in every epoch if `reshuffle` is set."""

    buffer_size: int
    seed: int
    reshuffle: bool

    def open(self, run: Run) -> Rows:
        rng = generator(run.seeds.get(id(self), self.seed), run, self.reshuffle)
        return _ShuffledRows(self.parent.open(run), self.buffer_size, rng)


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


@dataclasses.dataclass(frozen=True, eq=False)
class StreamShuffled(StreamStep):
    """Shuffles a stream with a buffer of `buffer_size` elements."""

    buffer_size: int
    seed: int
    reshuffle: bool

    def stream(self, run: Run) -> Any:
        key = _key(run.seeds.get(id(self), self.seed), run, self.reshuffle)

        def draws(block: int) -> np.ndarray:
            return np.random.default_rng((*key, block)).random(DRAWS)

        return engine().by_cursor(lambda: BufferCursor(self.parent.cursor(run), self.buffer_size, draws), "shuffle")
