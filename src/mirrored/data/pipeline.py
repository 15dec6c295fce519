"""A dataset before it is read: a tree of steps, bound to an epoch when somebody iterates.

Every step is a `Node`. An `IndexedNode` can give its element i without the ones before it; it becomes a Grain
`MapDataset` over positions. Any other is a `StreamNode` and becomes a Grain `IterDataset`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np

from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.options import INFINITE_CARDINALITY

ENDLESS: Final = 2**62
"""The length of an endless indexed dataset: Grain and `len` take it, and sums of two do not overflow 64 bits."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One reading of a dataset.

    Attributes:
        path: Which iteration this is, and inside each `repeat` which epoch: what shuffles reshuffle by.
        seeds: Seeds by `id` of their node, where they differ from the node's own (a restored position).
    """

    path: tuple[int, ...] = (0,)
    seeds: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def epoch(self, number: int) -> Run:
        """The same reading inside epoch `number` of a `repeat`."""
        return Run((*self.path, number), self.seeds)


class Rows(Protocol):
    """An indexed node, bound to a run."""

    @property
    def length(self) -> int:
        """How many elements; ENDLESS or more stands for no end."""
        ...

    def item(self, index: int) -> Element:
        """Element `index`."""
        ...

    def rows(self, positions: range | np.ndarray) -> Element:
        """The elements at `positions`, stacked."""
        ...


class Cursor(Protocol):
    """A position in a stream. Grain's iterators are cursors."""

    def __next__(self) -> Element: ...

    def get_state(self) -> Any:
        """The position, as JSON-like data."""
        ...

    def set_state(self, state: Any) -> None:
        """Goes to a position."""
        ...

    def close(self) -> None:
        """Gives up threads and files."""
        ...


class Node(abc.ABC):
    """One step of a pipeline."""

    @property
    @abc.abstractmethod
    def parents(self) -> tuple[Node, ...]:
        """The steps it reads from."""

    @property
    @abc.abstractmethod
    def cardinality(self) -> int:
        """How many elements; INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """The spec of its elements."""

    @abc.abstractmethod
    def stream(self, run: Run) -> Any:
        """A Grain `IterDataset` that reads it."""

    def cursor(self, run: Run) -> Cursor:
        """A reading of it."""
        reading: Cursor = iter(self.stream(run))
        return reading


class IndexedNode(Node):
    """A step whose elements are found by position."""

    @abc.abstractmethod
    def open(self, run: Run) -> Rows:
        """Binds it to a run."""

    def stream(self, run: Run) -> Any:
        """A Grain `IterDataset` over positions."""
        rows = self.open(run)
        return engine().by_position(rows.item, rows.length, parallel_calls(self))

    def cursor(self, run: Run) -> Cursor:
        """A reading of it: by itself where no threads are asked for.

        Grain's iterator takes 25 us per element for its statistics, as long as placing a batch on its devices.
        """
        return super().cursor(run) if self.wants_threads else PositionCursor(self.open(run))

    @property
    def wants_threads(self) -> bool:
        """Whether reading it takes Grain's threads."""
        return parallel_calls(self) > 0


class PositionCursor:
    """Reads rows one by one. Its state is that of Grain's iterator over positions."""

    def __init__(self, rows: Rows) -> None:
        self._item, self._length, self._next = rows.item, rows.length, 0

    def __next__(self) -> Element:
        if self._next >= self._length:
            raise StopIteration
        element = self._item(self._next)
        self._next += 1
        return element

    def get_state(self) -> Any:
        """The next position."""
        return {"next_index": self._next}

    def set_state(self, state: Any) -> None:
        """Goes there."""
        self._next = state["next_index"]

    def close(self) -> None:
        """There is nothing to give up."""


class StreamNode(Node):
    """A step whose elements come one after the other."""


class Parallel(Protocol):
    """A node that asks for threads."""

    num_parallel_calls: int


def nodes(node: Node) -> Iterator[Node]:
    """The node and all below it, parents first come first."""
    yield node
    for parent in node.parents:
        yield from nodes(parent)


def parallel_calls(node: Node) -> int:
    """How many threads the maps of an indexed pipeline ask for."""
    return max(getattr(step, "num_parallel_calls", 0) for step in nodes(node))


def length_as_cardinality(length: int) -> int:
    """`INFINITE_CARDINALITY` for an endless length."""
    return INFINITE_CARDINALITY if length >= ENDLESS else length


def cardinality_as_length(cardinality: int) -> int:
    """The length of an indexed node."""
    return ENDLESS if cardinality == INFINITE_CARDINALITY else cardinality


def first_element(node: Node) -> Element:
    """The first element of a run of its own, for specs that cannot be known without one.

    Raises:
        StopIteration: There is none.
    """
    cursor = node.cursor(Run())
    try:
        return next(cursor)
    finally:
        cursor.close()


class LikeParent:
    """What a step over one other has from it, unless it says otherwise."""

    parent: Any

    @property
    def parents(self) -> tuple[Node, ...]:
        """The step before."""
        return (self.parent,)

    @property
    def cardinality(self) -> int:
        """As many as there come."""
        return int(self.parent.cardinality)

    @property
    def spec(self) -> Any:
        """Like those that come."""
        return self.parent.spec


class CountedRows:
    """An indexed step that has as many elements as its rows say."""

    @property
    def cardinality(self: Any) -> int:
        """The number of rows."""
        return length_as_cardinality(self.open(Run()).length)
