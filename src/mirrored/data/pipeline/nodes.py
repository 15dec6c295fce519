"""The steps of a pipeline, as a tree, and the data of one iteration over it (`Run`).

Every step is a `Node`. An `IndexedNode` can compute its element i without the preceding ones; it becomes a Grain
`MapDataset` over positions. Any other step is a `StreamNode` and becomes a Grain `IterDataset`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from mirrored.data import specs
from mirrored.data.cursors import Cursor, beyond_end
from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.options import INFINITE_CARDINALITY
from mirrored.data.specs import NoElementError

ENDLESS: Final = 2**62
"""The length of an infinite indexed dataset. Grain and `len` accept it, and the sum of two fits into 64 bits."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The numbers and seeds that belong to one iteration over a dataset.

    Attributes:
        path: The number of the iteration, followed by the epoch inside each `repeat`. Shuffles derive their order from
            it.
        seeds: Seeds by the `id` of their node, if they differ from the node's own (after restoring a position).
        continues: Whether the seeds are those of a restored position or of another worker, so that other ones would
            lose or repeat elements.
    """

    path: tuple[int, ...] = (0,)
    seeds: Mapping[int, int] = dataclasses.field(default_factory=dict)
    continues: bool = False

    def epoch(self, number: int) -> Run:
        """Returns the data of the same iteration for repetition `number` of a `repeat`."""
        return Run((*self.path, number), self.seeds, self.continues)


def pinned(run: Run) -> Run:
    """Returns the run without iteration and epoch numbers, for the steps before a cache, which run once."""
    return Run(seeds=run.seeds, continues=run.continues)


class Rows(Protocol):
    """The elements of an indexed step in one iteration."""

    @property
    def length(self) -> int:
        """The number of elements; ENDLESS or more if infinite."""
        ...

    def item(self, index: int) -> Element:
        """Returns element `index`."""
        ...

    def rows(self, positions: range | np.ndarray) -> Element:
        """Returns the elements at `positions`, stacked into one batch."""
        ...


class Node(abc.ABC):
    """One step of a pipeline: a source of elements, or a transformation of the elements of its parents."""

    makes_datasets: ClassVar[bool] = False
    """Whether a function of the step makes datasets whose elements it returns."""

    @property
    @abc.abstractmethod
    def parents(self) -> tuple[Node, ...]:
        """The steps that this step reads from."""

    @property
    @abc.abstractmethod
    def cardinality(self) -> int:
        """The number of elements, or INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """The spec of the elements."""

    @abc.abstractmethod
    def stream(self, run: Run) -> Any:
        """Returns the elements of one iteration as a Grain `IterDataset`."""

    def kept_seeds(self) -> dict[int, int]:
        """Returns the seeds with which a file of cached elements was written, by the `id` of the step using each."""
        return {}

    def cursor(self, run: Run) -> Cursor:
        """Returns a new iterator over the elements, which can save its position."""
        reading: Cursor = iter(self.stream(run))
        return reading


class IndexedNode(Node):
    """A step that can compute its element i without computing the elements before it."""

    @abc.abstractmethod
    def open(self, run: Run) -> Rows:
        """Returns the elements of one iteration, for access by index."""

    def stream(self, run: Run) -> Any:
        """Returns the elements of one iteration as a Grain `IterDataset`."""
        rows = self.open(run)
        return engine().by_position(rows.item, rows.length, parallel_calls(self))

    def cursor(self, run: Run) -> Cursor:
        """Returns a new iterator over the elements: Grain's if threads are requested, else a `PositionCursor`.

        The statistics of Grain's iterator take 25 us per element, as long as placing a batch on its devices.
        """
        return super().cursor(run) if self.wants_threads else PositionCursor(self.open(run))

    @property
    def wants_threads(self) -> bool:
        """Whether a map in the pipeline requests threads, so that Grain's threads read the elements."""
        return parallel_calls(self) > 0


class PositionCursor:
    """An iterator over indexed elements, in the caller's thread; it saves its position in Grain's format."""

    def __init__(self, rows: Rows) -> None:
        self._item, self._length, self._next = rows.item, rows.length, 0

    def __next__(self) -> Element:
        if self._next >= self._length:
            raise StopIteration
        element = self._item(self._next)
        self._next += 1
        return element

    def get_state(self) -> Any:
        """Returns the index of the next element."""
        return {"next_index": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the position of the element to read next.

        Raises:
            InputError: The data has fewer elements.
        """
        if state["next_index"] > self._length:
            raise beyond_end(state["next_index"], self._length)
        self._next = state["next_index"]

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


class StreamNode(Node):
    """A step whose elements can only be computed one after the other."""


class Parallel(Protocol):
    """A step that requests threads."""

    num_parallel_calls: int


def nodes(node: Node) -> Iterator[Node]:
    """Yields a step and all steps before it, depth first; a step that several steps read appears once for each."""
    yield node
    for parent in node.parents:
        yield from nodes(parent)


def seeded(node: Node) -> list[Any]:
    """Returns each step that draws random numbers, once."""
    return list({id(step): step for step in nodes(node) if hasattr(step, "seed")}.values())


def seeds_of(node: Node, run: Run) -> dict[int, int]:
    """Returns the seeds that the steps use in one iteration, by the `id` of the step."""
    return {id(step): run.seeds.get(id(step), step.seed) for step in seeded(node)}


class DrawnSeed(int):
    """A seed that was drawn at random, because the user gave none."""


def new_seed() -> DrawnSeed:
    """Draws a seed for a step without a given one. Saved positions contain it, so restored iterations shuffle alike."""
    return DrawnSeed(secrets.randbits(31))


def inner_run(node: Node, run: Run, number: int, seed: int) -> Run:
    """Returns the iteration over a dataset that a user function has made from an element, with reproducible seeds.

    A position does not contain such a dataset. Where its steps have drawn their seeds, the run replaces them by seeds
    that depend only on those of the outer step: the function is called again when a position is restored.

    Args:
        node: The inner dataset.
        run: The run of the outer step.
        number: The index of the inner dataset.
        seed: The seed of the outer step.
    """
    places = enumerate(seeded(node))
    drawn = {id(step): _derived(seed, number, place) for place, step in places if isinstance(step.seed, DrawnSeed)}
    for step in reversed(list(nodes(node))):
        drawn.update(step.kept_seeds())
    return Run((*run.path, number), {**run.seeds, **drawn}, run.continues)


def _derived(seed: int, number: int, place: int) -> int:
    return int(np.random.default_rng((seed, number, place)).integers(2**31))


def parallel_calls(node: Node) -> int:
    """Returns the largest number of threads that a map of an indexed pipeline requests."""
    return max(getattr(step, "num_parallel_calls", 0) for step in nodes(node))


def length_as_cardinality(length: int) -> int:
    """Converts the length of an indexed step to a cardinality: INFINITE_CARDINALITY for an infinite length."""
    return INFINITE_CARDINALITY if length >= ENDLESS else length


def cardinality_as_length(cardinality: int) -> int:
    """Converts a cardinality to the length of an indexed step."""
    return ENDLESS if cardinality == INFINITE_CARDINALITY else cardinality


def first_element(node: Node) -> Element:
    """Returns the first element from an iteration of its own, for specs that depend on an element.

    Raises:
        NoElementError: The dataset is empty.
    """
    cursor = node.cursor(Run())
    try:
        return next(cursor)
    except StopIteration:
        raise NoElementError from None
    finally:
        cursor.close()


def spec_of_first(node: Node) -> Any:
    """Returns the spec of the first element, with its dims unknown, because other elements may differ in them.

    Raises:
        NoElementError: The dataset is empty.
    """
    return with_open_dims(first_element(node))


def with_open_dims(element: Element) -> Any:
    """Returns the spec of an element with all its dims unknown, because other elements may differ in them."""
    return specs.map_specs(lambda leaf: specs.ArraySpec((None,) * len(leaf.shape), leaf.dtype), specs.spec_of(element))


def merged_spec(members: Sequence[Node]) -> Any:
    """Returns the spec that accepts the elements of all given steps.

    Members without an element are ignored if their spec depends on it.

    Raises:
        NoElementError: No member has an element.
    """
    found = []
    for member in members:
        try:
            found.append(member.spec)
        except NoElementError:
            continue
    if not found:
        raise NoElementError
    return functools.reduce(specs.merged, found)


class LikeParent:
    """A mixin for steps with one parent, whose cardinality and spec they have unless they override them."""

    parent: Any

    @property
    def parents(self) -> tuple[Node, ...]:
        """The one step that this step reads from."""
        return (self.parent,)

    @property
    def cardinality(self) -> int:
        """The cardinality of the parent."""
        return int(self.parent.cardinality)

    @property
    def spec(self) -> Any:
        """The spec of the parent."""
        return self.parent.spec


class _Openable(Protocol):
    def open(self, run: Run) -> Rows: ...


class CountedRows:
    """A mixin for indexed steps that compute their cardinality from the length of their elements."""

    @property
    def cardinality(self: _Openable) -> int:
        """The number of elements, or INFINITE_CARDINALITY."""
        return length_as_cardinality(self.open(Run()).length)
