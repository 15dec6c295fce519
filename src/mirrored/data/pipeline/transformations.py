"""Dataset operations with a random-access and a sequential form: map, take, repeat, zip, batch, ...

If the elements of all input datasets can be computed by index, so can those of the operation: a chain such as
``from_tensor_slices(...).shuffle(...).repeat().batch(512)`` becomes index arithmetic and one gather per batch,
regardless of its length. Otherwise the elements are computed one after the other, by Grain where it has the operation
with the order of `tf.data`.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mirrored._jax.trees import tree_flatten
from mirrored._typing import PyTree
from mirrored.data import specs
from mirrored.data.calling import transformed
from mirrored.data.cursors import Cursor, SequenceCursor
from mirrored.data.elements import Element, joined, pad_and_stack, stack
from mirrored.data.extra import engine
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.data.padded_shapes import check_rank, padded_shapes_of
from mirrored.data.pipeline.ignoring_errors import BatchCursor, mapped
from mirrored.data.pipeline.left_out import left_out_in
from mirrored.data.pipeline.nodes import (
    ENDLESS,
    CursorNode,
    IndexedNode,
    ItemRows,
    LikeParent,
    Members,
    Node,
    Rows,
    Run,
    first_element,
    length_as_cardinality,
    rows_of,
)
from mirrored.data.pipeline.seeds import Passes
from mirrored.data.pipeline.slicing import LimitCursor, StrideCursor

_EPOCHS_KEPT = 64


class Transformation(IndexedNode):
    """Base class of operations that are random-access if their input datasets are, and sequential otherwise."""

    @property
    def name(self) -> str:
        """The operation's name in read positions; its random-access and its sequential form have different names."""
        return super().name if self.is_indexed else f"Stream{super().name}"

    @abc.abstractmethod
    def in_sequence(self, run: Run) -> Any:
        """Returns a Grain `IterDataset` that computes the elements of one pass over the dataset one by one."""

    def stream(self, run: Run) -> Any:
        """Returns a Grain `IterDataset` that yields the elements of one pass over the dataset."""
        return super().stream(run) if self.is_indexed else self.in_sequence(run)


class CursorTransformation(Transformation, CursorNode):
    """Base class of transformations that process sequential datasets without Grain.

    Grain lacks their sequential form, so an iterator of this package computes the elements.
    """

    def in_sequence(self, run: Run) -> Any:
        return CursorNode.stream(self, run)


@dataclasses.dataclass(frozen=True, eq=False)
class OneParent(LikeParent, Transformation):
    """Base class of transformations that have one input dataset."""

    parent: Node


class Mapping(OneParent):
    """Base class of transformations that compute each element from the input element with the same index."""

    draws: ClassVar[bool] = True

    @abc.abstractmethod
    def function_of(self, run: Run) -> Callable[[int, Element], Element]:
        """Returns the function ``(i, input element i) -> output element i`` for one pass over the dataset."""

    @property
    def spec(self) -> Any:
        return specs.after_map(self.parent.spec, first_element(self.parent), first_element(self))

    def open(self, run: Run) -> Rows:
        parent, function = rows_of(self.parent, run), self.function_of(run)
        return ItemRows(parent.length, lambda index: function(index, parent.item(index)))

    def in_sequence(self, run: Run) -> Any:
        return mapped(self.parent, run, self.function_of(run), self.name)


@dataclasses.dataclass(frozen=True, eq=False)
class Mapped(Mapping):
    """The operation `map`: applies `function` to every element."""

    function: Callable[..., Any]
    num_parallel_calls: int = 0
    called: str = "Dataset.map"

    @property
    def spec(self) -> Any:
        sample = first_element(self.parent)
        return specs.after_map(self.parent.spec, sample, self.function_of(Run())(0, sample))

    def function_of(self, run: Run) -> Callable[[int, Element], Element]:
        draws = run.draws_of(self)
        return lambda index, element: transformed(self.function, element, self.called, index, draws)


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapped(Mapping):
    """The operation `random_map`: applies `function(element, rng)` to every element."""

    function: Callable[..., Any]
    seed: int
    passes: Passes = dataclasses.field(default_factory=Passes, kw_only=True)

    def function_of(self, run: Run) -> Callable[[int, Element], Element]:
        key, draws = (run.seeds.get(id(self), self.seed), *run.key), run.draws_of(self)

        def apply(index: int, element: Element) -> Element:
            rng = np.random.default_rng((*key, index))
            return transformed(lambda *parts: self.function(*parts, rng), element, "Dataset.random_map", index, draws)

        return apply


@dataclasses.dataclass(frozen=True, eq=False)
class Sliced(OneParent, CursorTransformation):
    """The operations take, skip and shard, which select elements like a Python slice.

    A slice with a `stop` begins at 0 in steps of 1.
    """

    start: int
    stop: int | None
    step: int = 1

    @property
    def name(self) -> str:
        return "Sliced" if self.is_indexed else "Strided" if self.stop is None else "Limited"

    @property
    def settings(self) -> str:
        # `take` has none: with another `stop`, the elements before a position are the same.
        return f"elements {self.start}, {self.start + self.step}, ..." if self.start or self.step != 1 else ""

    @property
    def cardinality(self) -> int:
        known = self.parent.cardinality
        if known == UNKNOWN_CARDINALITY or (known == INFINITE_CARDINALITY and self.stop is None):
            return known
        stops = [stop for stop in (self.stop, known) if stop is not None and stop >= 0]
        return len(range(self.start, min(stops), self.step))

    def open(self, run: Run) -> Rows:
        return _SlicedRows(rows_of(self.parent, run), self.start, self.stop, self.step)

    def in_sequence(self, run: Run) -> Any:
        # Before `ignore_errors` an element that raises an exception counts, as it does in an indexed pipeline.
        by_grain = self.stop and not run.ignores_errors  # Grain has no limit of 0
        return engine().limit(self.parent.stream(run), self.stop) if by_grain else super().in_sequence(run)

    def open_cursor(self, run: Run) -> Cursor:
        if self.stop is not None:
            return LimitCursor(self.parent.cursor(run), self.stop)
        left_out = left_out_in(run) if run.ignores_errors else None
        return StrideCursor(self.parent.cursor(run), self.start, self.step, left_out)


class _SlicedRows:
    def __init__(self, parent: Rows, start: int, stop: int | None, step: int) -> None:
        self._parent = parent
        if parent.length >= ENDLESS and stop is None:
            self._numbers = range(start, start + ENDLESS * step, step)
            self.length = ENDLESS
            return
        stop = parent.length if stop is None else min(stop, parent.length)
        self._numbers = range(min(start, stop), stop, step)
        self.length = len(self._numbers)

    def item(self, index: int) -> Element:
        return self._parent.item(self._numbers[index])

    def rows(self, positions: range | np.ndarray) -> Element:
        if isinstance(positions, range):
            return self._parent.rows(self._numbers[positions.start : positions.stop : positions.step])
        return self._parent.rows(positions * self._numbers.step + self._numbers.start)


@dataclasses.dataclass(frozen=True, eq=False)
class Repeated(OneParent, CursorTransformation):
    """The operation `repeat`: `count` epochs of a dataset (-1: infinitely many), each in a different shuffle order."""

    count: int

    @property
    def cardinality(self) -> int:
        known = self.parent.cardinality
        if self.count <= 0 or known == 0:
            return 0 if self.count == 0 or known == 0 else INFINITE_CARDINALITY
        return length_as_cardinality(known * self.count) if known >= 0 else known

    def open(self, run: Run) -> Rows:
        return _RepeatedRows(self.parent, run, self.count)

    def open_cursor(self, run: Run) -> Cursor:
        # Grain's repeat sets the first position again, so that all epochs would be shuffled alike.
        def epoch(number: int) -> Cursor | None:
            return None if 0 <= self.count <= number else self.parent.cursor(run.epoch(number))

        return SequenceCursor(epoch, needs_elements=self.count < 0)  # as in TensorFlow


class _RepeatedRows:
    """Random access to the elements of a repeated dataset; caches the few epochs that were used last."""

    def __init__(self, parent: Node, run: Run, count: int) -> None:
        self._parent, self._run = parent, run
        self._epochs: dict[int, Rows] = {}
        self._lock = threading.Lock()
        self._keep = min(count, _EPOCHS_KEPT) if count > 1 else 2
        self._each = self._epoch(0).length if count else 0
        self.length = 0 if self._each == 0 else ENDLESS if count < 0 else min(self._each * count, ENDLESS)

    def _epoch(self, number: int) -> Rows:
        with self._lock:
            if number not in self._epochs:
                while len(self._epochs) >= self._keep:
                    self._epochs.pop(next(iter(self._epochs)))
                self._epochs[number] = rows_of(self._parent, self._run.epoch(number))
            return self._epochs[number]

    def item(self, index: int) -> Element:
        epoch, place = divmod(index, self._each)
        return self._epoch(epoch).item(place)

    def rows(self, positions: range | np.ndarray) -> Element:
        if isinstance(positions, range) and positions.step == 1 and len(positions):
            return self._contiguous(positions)
        epochs, places = np.divmod(np.asarray(positions, np.int64), self._each)
        if len(epochs) and np.all(epochs[1:] >= epochs[:-1]):
            parts = [self._epoch(int(number)).rows(places[epochs == number]) for number in np.unique(epochs)]
            return joined(parts, "Dataset.batch")
        return stack([self._epoch(int(e)).item(int(p)) for e, p in zip(epochs, places, strict=True)])

    def _contiguous(self, positions: range) -> Element:
        parts = []
        for number in range(positions.start // self._each, (positions.stop - 1) // self._each + 1):
            first = number * self._each
            inside = range(max(positions.start, first) - first, min(positions.stop - first, self._each))
            parts.append(self._epoch(number).rows(inside))
        return joined(parts, "Dataset.batch")


@dataclasses.dataclass(frozen=True, eq=False)
class Several(Transformation):
    """Base class of transformations that have several input datasets."""

    members: Members

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.members


@dataclasses.dataclass(frozen=True, eq=False)
class Concatenated(Several, CursorTransformation):
    """The operation `concatenate`: the elements of one dataset after those of another."""

    @property
    def cardinality(self) -> int:
        known = [member.cardinality for member in self.members]
        for special in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY):
            if special in known:
                return special
        return length_as_cardinality(sum(known))

    @property
    def spec(self) -> Any:
        return specs.merged_of(self.members)

    def open(self, run: Run) -> Rows:
        return _ConcatenatedRows([rows_of(member, own) for member, own in self.members.with_runs(run)])

    def open_cursor(self, run: Run) -> Cursor:
        members = self.members.with_runs(run)

        def part(number: int) -> Cursor | None:
            if number >= len(members):
                return None
            member, own = members[number]
            return member.cursor(own)

        return SequenceCursor(part)


class _ConcatenatedRows:
    def __init__(self, members: list[Rows]) -> None:
        self._members = members
        self._ends = list(itertools.accumulate(member.length for member in members))
        self.length = min(self._ends[-1], ENDLESS)

    def _find(self, index: int) -> tuple[int, int]:
        member = bisect.bisect_right(self._ends, index)
        return member, index - (self._ends[member - 1] if member else 0)

    def item(self, index: int) -> Element:
        member, place = self._find(index)
        return self._members[member].item(place)

    def rows(self, positions: range | np.ndarray) -> Element:
        if isinstance(positions, range) and positions.step == 1 and len(positions):
            (member, first), (last_member, last) = self._find(positions.start), self._find(positions.stop - 1)
            if member == last_member:
                return self._members[member].rows(range(first, last + 1))
        return stack([self.item(int(index)) for index in positions])


@dataclasses.dataclass(frozen=True, eq=False)
class Batched(OneParent):
    """The operations `batch` and `padded_batch`: stack every `size` consecutive elements.

    If `padding` is a pair (shapes, values), the elements are padded to one shape first.
    """

    size: int
    drop_remainder: bool
    padding: tuple[Any, Any] | None = None

    @property
    def name(self) -> str:
        return "PaddedBatched" if self.is_indexed and self.padding is not None else super().name

    @property
    def grouping(self) -> str:
        return "batch(drop_remainder=True)" if self.drop_remainder else ""

    @property
    def cardinality(self) -> int:
        known = self.parent.cardinality
        return known if known < 0 else known // self.size if self.drop_remainder else -(-known // self.size)

    @property
    def spec(self) -> Any:
        # As in TensorFlow, the batch dim is known only if every batch is full.
        size = self.size if self.drop_remainder else None
        if self.padding is not None:
            return _padded_spec(self.parent.spec, size, self.padding[0])
        return specs.map_specs(lambda leaf: leaf.batched(size), self.parent.spec)

    def open(self, run: Run) -> Rows:
        parent = rows_of(self.parent, run)
        full = parent.length if self.drop_remainder else parent.length + self.size - 1

        def batch(index: int) -> Element:
            places = range(index * self.size, min((index + 1) * self.size, parent.length))
            if self.padding is None:
                return parent.rows(places)
            return self._make_batch([parent.item(place) for place in places])

        return ItemRows(ENDLESS if parent.length >= ENDLESS else full // self.size, batch)

    def in_sequence(self, run: Run) -> Any:
        size, drop = self.size, self.drop_remainder
        if run.ignores_errors:
            return engine().by_cursor(
                lambda: BatchCursor(self.parent.cursor(run), size, drop, self._make_batch), self.name
            )
        return engine().batch(self.parent.stream(run), size, drop, self._make_batch)

    def _make_batch(self, elements: Sequence[Element]) -> Element:
        if self.padding is None:
            return stack(elements)
        return pad_and_stack(elements, *self.padding, "Dataset.padded_batch")


def _padded_spec(parent: PyTree, size: int | None, shapes: PyTree) -> Any:
    """Returns the shapes and dtypes of padded batches, with None for dims that the caller has not fixed."""
    leaves, treedef = tree_flatten(parent, is_leaf=lambda part: isinstance(part, specs.ArraySpec))
    given = padded_shapes_of(shapes, treedef, "Dataset.padded_batch")
    padded = [
        specs.ArraySpec((size, *_fixed(shape, len(leaf.shape))), leaf.dtype)
        for leaf, shape in zip(leaves, given, strict=True)
    ]
    return treedef.unflatten(padded)


def _fixed(shape: Sequence[int | None] | None, rank: int) -> list[int | None]:
    """Returns the dims of a padded shape, with None for dims that are padded to the largest size."""
    if shape is None:
        return [None] * rank
    check_rank(shape, rank, "Dataset.padded_batch")
    return [None if size in (None, -1) else size for size in shape]


@dataclasses.dataclass(frozen=True, eq=False)
class Prefetched(LikeParent, IndexedNode):
    """The operation `prefetch`: reads ahead in a thread; has no effect if a random-access operation follows."""

    parent: Node
    size: int

    @property
    def wants_threads(self) -> bool:
        return True

    def open(self, run: Run) -> Rows:
        return rows_of(self.parent, run)

    def stream(self, run: Run) -> Any:
        return engine().thread_prefetch(self.parent.stream(run), self.size)
