"""The base classes of dataset operations, which form a tree, and the state of one pass over a dataset.

Every step is a `Node`. If it `is_indexed`, its element i can be computed without the preceding ones: it becomes a Grain
`MapDataset` over positions. Any other step becomes a Grain `IterDataset`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import numpy as np

from mirrored.data import specs
from mirrored.data.cursors import Cursor, PositionCursor
from mirrored.data.elements import Element, stack
from mirrored.data.extra import engine
from mirrored.data.options import INFINITE_CARDINALITY
from mirrored.data.pipeline.seeds import FunctionPasses
from mirrored.data.specs import NoElementError
from mirrored.runtime.element_draws import INNER_PASSES, FunctionStreamId

if TYPE_CHECKING:
    from mirrored.data.pipeline.inner_datasets import InnerDatasets

ENDLESS: Final = 2**62
"""The length of an infinite indexed dataset. Grain and `len` accept it, and the sum of two fits into 64 bits."""

_CACHED: Final = 2**62  # no pass has this number

KEYS: Final = 2
"""The version of `Run.key`, which saved positions contain."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The state of one pass over a dataset: the pass's number, the epoch of each `repeat`, and the random seeds.

    Attributes:
        path: The number of the iteration. In a dataset that a function of another one makes, also the `key` of the pass
            over the other one, and the number of the inner dataset.
        epochs: The epoch of each `repeat`, the last step's at the end, up to the last one that is not 0.
        seeds: Seeds by the `id` of their node, if they differ from the node's own (after restoring a position).
        continues: Whether the seeds are those of a restored position or of another worker, so that other ones would
            lose or repeat elements.
        ignores_errors: Whether a later `ignore_errors` leaves out the elements that raise an exception.
        keys: The version of `key`; 1 after restoring a position of earlier versions, which had their epochs in `path`.
        draws: The numbers of the pipeline's random stream and of the pass, for user functions; (0, 0) to infer a spec.
        places: The positions in the pipeline of the steps whose functions may draw, by the `id` of the step.
        uses: For each later operation with several inputs, the index of the input with this operation, if not 0.
        fills_caches: Whether caches keep the elements. False for a pass that infers a spec, with seeds of its own.
        makers: In a dataset that a function of another one makes, the `id` of each outer step.
        used_makers: The makers on whose seeds elements depend, added during the pass; None if they are not needed.
        inner: The datasets that functions make; None for a pass that has no saved positions.
    """

    path: tuple[int, ...] = (0,)
    epochs: tuple[int, ...] = ()
    seeds: Mapping[int, int] = dataclasses.field(default_factory=dict)
    continues: bool = False
    ignores_errors: bool = False
    keys: int = KEYS
    draws: tuple[int, int] = (0, 0)
    places: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    uses: tuple[int, ...] = ()
    fills_caches: bool = True
    makers: tuple[int, ...] = ()
    used_makers: set[int] | None = None
    inner: InnerDatasets | None = None

    def forget_left_out(self) -> None:
        """Notes that a cache has elements of another pass, of which `ignore_errors` has left out unknown ones."""
        if self.inner is not None:
            self.inner.left_out.forget()

    def draws_of(self, step: Node) -> FunctionStreamId:
        """Returns the id of the random stream for an operation's user function in this iteration."""
        number, count = self.draws
        return FunctionStreamId(number, (*self.places.get(id(step), (0,)), *self.uses), (count, *self.key))

    @property
    def key(self) -> tuple[int, ...]:
        """The numbers from which random operations derive their order in this pass.

        A later `repeat` leaves the key of its first epoch as it is, so that the order does not depend on it. The zero
        without `repeat` keeps the epoch apart from a number that a step appends.
        """
        if self.keys < KEYS:
            return self.path
        return (*self.path, *(self.epochs or (0,) * (len(self.path) == 1)))

    def epoch(self, number: int) -> Run:
        """Returns a copy of this `Run` for epoch `number` of a `repeat`; each epoch has its own shuffle order."""
        if self.keys < KEYS:
            return dataclasses.replace(self, path=(*self.path, number))
        return dataclasses.replace(self, epochs=(number, *self.epochs) if number or self.epochs else ())


def pinned(run: Run) -> Run:
    """Returns a copy of `run` with constant iteration and epoch numbers.

    The operations before a cache use it, because the cache keeps their elements for all iterations.
    """
    number, count = run.draws
    # A dataset that a function makes has a cache of its own, which belongs to the element.
    kept = count if count >= INNER_PASSES else _CACHED
    return dataclasses.replace(run, path=(0,), epochs=(), uses=(), draws=(number, kept))


class Rows(Protocol):
    """Protocol of random access to the elements of one iteration over a dataset."""

    @property
    def length(self) -> int:
        """The number of elements, which is 2**62 or more for an infinite dataset."""
        ...

    def item(self, index: int) -> Element:
        """Returns the dataset element with the given index."""
        ...

    def rows(self, positions: range | np.ndarray) -> Element:
        """Returns the elements at the given indices, stacked into one batch."""
        ...


@dataclasses.dataclass(frozen=True)
class ItemRows:
    """A random-access sequence whose elements are computed one by one by `item`, and stacked for a batch."""

    length: int
    item: Callable[[int], Element]

    def rows(self, positions: range | np.ndarray) -> Element:
        """Returns the elements at the given indices, stacked into one batch."""
        return stack([self.item(int(index)) for index in positions])


class Node(abc.ABC):
    """Base class of dataset operations: a source of elements, or a transformation of other operations' elements."""

    makes_datasets: ClassVar[bool] = False
    """Whether a function of the step makes datasets whose elements it returns."""
    keeps_elements: ClassVar[bool] = False
    """Whether the step is a cache: it keeps the elements of its parent for later passes."""
    replays: ClassVar[bool] = False
    """Whether a restored position lets the step read again, or skip, what its parents returned before."""
    draws: ClassVar[bool] = False
    """Whether the step has a function of the user, which may draw random numbers."""

    @functools.cached_property
    def function_passes(self) -> FunctionPasses:
        """The iteration counter from which the operation's user function derives random numbers."""
        return FunctionPasses()

    @property
    def varies(self) -> bool:
        """Whether the order or the values of the elements differ between passes over the dataset, as with `shuffle`."""
        return False

    @property
    def name(self) -> str:
        """The operation's name, which is stored in saved read positions."""
        return type(self).__name__

    @property
    def settings(self) -> str:
        """The arguments, as text, that must be unchanged when a saved read position is restored.

        The elements before the position depend on them. They do not include `size`. Empty if there are none.
        """
        return ""

    @property
    def arguments(self) -> str:
        """Further arguments, as text, that must be unchanged when a saved read position is restored."""
        return ""  # unlike `settings`, they are not in the positions of earlier versions

    @property
    def order(self) -> str:
        """The arguments, as text, that change only the order of the elements still to be read."""
        return ""

    @property
    def grouping(self) -> str:
        """The arguments, apart from `size`, that decide how the examples are divided into elements.

        They matter where a later step counts or reorders these elements.
        """
        return ""

    @property
    def reads_files(self) -> bool:
        """Whether the operation is an indexed source that decodes its elements from a file, one by one."""
        return False

    @functools.cached_property
    def is_indexed(self) -> bool:
        """Whether element i can be computed without the elements before it."""
        return False

    @property
    def parents(self) -> tuple[Node, ...]:
        """The operations whose elements this operation reads; none for a source."""
        return ()

    @property
    @abc.abstractmethod
    def cardinality(self) -> int:
        """The number of elements, or the constant INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """The shapes and dtypes of the elements, as a pytree of `ArraySpec`."""

    @abc.abstractmethod
    def stream(self, run: Run) -> Any:
        """Returns a Grain `IterDataset` that yields the elements of one pass over the dataset."""

    def kept_seeds(self) -> dict[int, int]:
        """Returns the random seeds that this operation's cache file stores, keyed by `id` of the seeded operation."""
        return {}

    def fields_of_worker(self, worker: int, workers: int) -> dict[str, Any]:
        """Returns the fields that differ in one worker's copy of this operation, such as the folder of a cache."""
        del worker, workers
        return {}

    def cursor(self, run: Run) -> Cursor:
        """Returns a new iterator over the elements, with a read position that can be saved."""
        reading: Cursor = iter(self.stream(run))
        return reading


class CursorNode(Node):
    """Base class of sequential operations that Grain lacks; an iterator of this package computes the elements."""

    @abc.abstractmethod
    def open_cursor(self, run: Run) -> Cursor:
        """Returns a new `Cursor` over the elements of one pass, which `stream` wraps in a Grain dataset."""

    def stream(self, run: Run) -> Any:
        """Returns a Grain `IterDataset` that yields the elements of one pass over the dataset."""
        return engine().by_cursor(lambda: self.open_cursor(run), self.name)


class IndexedNode(Node):
    """Base class of operations that can compute element i without earlier elements, if their input datasets can."""

    @functools.cached_property
    def is_indexed(self) -> bool:
        """Whether element i can be computed without the elements before it; True for a source."""
        return all(parent.is_indexed for parent in self.parents)

    @abc.abstractmethod
    def open(self, run: Run) -> Rows:
        """Returns the elements of one pass over the dataset as a random-access sequence; requires `is_indexed`."""

    def stream(self, run: Run) -> Any:
        """Returns a Grain `IterDataset` that yields the elements of one pass over the dataset."""
        rows, threads = self.open(run), parallel_calls(self)
        if threads:
            return engine().by_position(rows.item, rows.length, threads)
        return engine().by_cursor(lambda: PositionCursor(rows.item, rows.length), self.name)

    def cursor(self, run: Run) -> Cursor:
        """Returns a new iterator over the elements, with a read position that can be saved.

        It is a `PositionCursor` if elements have random access and no operation requests threads, else Grain's.
        Grain's iterator takes 8 us more per element (0.2.18, statistics), a third of the time of placing a batch on its
        devices.
        """
        by_position = self.is_indexed and not self.wants_threads
        if not by_position:
            return super().cursor(run)
        rows = self.open(run)
        return PositionCursor(rows.item, rows.length)

    @property
    def wants_threads(self) -> bool:
        """Whether this or an earlier operation requests that elements are computed in Grain's threads."""
        return parallel_calls(self) > 0


def rows_of(node: Node, run: Run) -> Rows:
    """Returns random access to the elements of one iteration over an indexed dataset."""
    assert isinstance(node, IndexedNode)
    return node.open(run)


def nodes(node: Node) -> Iterator[Node]:
    """Yields an operation and all operations that it depends on, depth first; yields shared operations repeatedly."""
    yield node
    for parent in node.parents:
        yield from nodes(parent)


def seeded(node: Node) -> list[Any]:
    """Returns all operations of a dataset that have a random seed, each once."""
    return list({id(step): step for step in nodes(node) if hasattr(step, "seed")}.values())


def seeds_of(node: Node, run: Run) -> dict[int, int]:
    """Returns the random seeds of a dataset's operations in one pass, as a dict keyed by `id(operation)`."""
    return {id(step): run.seeds.get(id(step), step.seed) for step in seeded(node)}


class Members(tuple[Node, ...]):
    """The input datasets of an operation that combines several, such as `zip`.

    Every use of a reshuffled dataset is an iteration of its own, as in TensorFlow: ``zip((d, d))`` combines two orders.
    """

    @functools.cached_property
    def _reuse_numbers(self) -> list[int]:
        """One number per input, which differs between inputs that share a random operation."""
        seen: set[int] = set()
        found, number = [], 0
        for member in self:
            varying = [id(step) for step in nodes(member) if step.varies]
            found.append(0 if seen.isdisjoint(varying) else number)
            # A member with several uses numbers them itself, with numbers below that of its sources.
            several = len(set(varying)) < len(varying)
            number += sum(not step.parents for step in nodes(member)) if several else 1
            seen.update(varying)
        return found

    def with_runs(self, run: Run) -> list[tuple[Node, Run]]:
        """Pairs each input dataset with a `Run`, with different random seeds for inputs that share a shuffle."""
        places = enumerate(zip(self, self._reuse_numbers, strict=True))
        return [
            (
                member,
                _run_of_input(run.epoch(_FURTHER_USES + (use if run.keys == KEYS else place)) if use else run, place),
            )
            for place, (member, use) in places
        ]


_FURTHER_USES: Final = 2**40  # no `repeat` gets that far


def _run_of_input(run: Run, place: int) -> Run:
    """Returns a `Run` in which the input at index `place` draws its own random numbers."""
    return dataclasses.replace(run, uses=(*run.uses, place)) if place else run


def random_steps(node: Node) -> list[Node]:
    """Returns the operations that may draw random numbers in a user function, in the order in which they run."""
    return list({id(step): step for step in nodes(node) if step.draws}.values())[::-1]


def random_step_ids(node: Node, outer: tuple[int, ...] = ()) -> dict[int, tuple[int, ...]]:
    """Returns an id (a tuple of ints) for each operation that may draw random numbers, keyed by `id(operation)`.

    Steps that are added at the end, or that have no function, do not change the indices.

    Args:
        node: The pipeline.
        outer: The tuple of the operation whose function has made the pipeline, with which all tuples begin.
    """
    return {id(step): (*outer, place) for place, step in enumerate(random_steps(node))}


def parallel_calls(node: Node) -> int:
    """Returns the largest `num_parallel_calls` (number of threads) among a dataset's operations."""
    return max(getattr(step, "num_parallel_calls", 0) for step in nodes(node))


def length_as_cardinality(length: int) -> int:
    """Returns INFINITE_CARDINALITY for a length of ENDLESS or more, and any other length unchanged."""
    return INFINITE_CARDINALITY if length >= ENDLESS else length


def first_element(node: Node, run: Run | None = None) -> Element:
    """Computes the first element of a dataset in a separate pass, which fills no cache.

    The pass repeats `run`, if given. By default it only serves to infer shapes and dtypes.

    Raises:
        NoElementError: The dataset is empty.
    """
    cursor = node.cursor(dataclasses.replace(run or Run(), fills_caches=False))
    try:
        return next(cursor)
    except StopIteration:
        raise NoElementError from None
    finally:
        cursor.close()


def elements_of(node: Node, run: Run) -> Generator[Element, None, None]:
    """Yields the elements of one pass over a dataset; closes the iterator at the end."""
    cursor = node.cursor(run)
    try:
        while True:
            try:
                element = next(cursor)
            except StopIteration:
                return
            yield element
    finally:
        cursor.close()


def spec_of_first(node: Node) -> Any:
    """Infers the dtypes and ranks of a dataset's elements from the first one; all dims are None (varying).

    Raises:
        NoElementError: The dataset is empty.
    """
    return with_open_dims(first_element(node))


def with_open_dims(element: Element) -> Any:
    """Returns the dtypes and ranks of an element as `ArraySpec`; all dims are None (varying)."""
    return specs.map_specs(lambda leaf: specs.ArraySpec((None,) * len(leaf.shape), leaf.dtype), specs.spec_of(element))


class LikeParent:
    """A mixin for operations that keep the number, shapes and dtypes of the elements of their single input dataset."""

    parent: Any

    @property
    def parents(self) -> tuple[Node, ...]:
        """The single operation whose elements this operation reads."""
        return (self.parent,)

    @property
    def cardinality(self) -> int:
        """The number of elements, which is that of the input dataset."""
        return int(self.parent.cardinality)

    @property
    def spec(self) -> Any:
        """The shapes and dtypes of the elements, which are those of the input dataset."""
        return self.parent.spec
