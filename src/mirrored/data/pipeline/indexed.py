"""Random-access dataset operations, which compute element i without computing the elements before it.

A chain such as ``from_tensor_slices(...).shuffle(...).repeat().batch(512)`` therefore becomes index arithmetic and one
gather per batch, regardless of its length.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mirrored._typing import PyTree
from mirrored.data import specs
from mirrored.data.calling import transformed
from mirrored.data.elements import Element, concatenated, pad_and_stack, stack
from mirrored.data.extra import engine
from mirrored.data.pipeline.nodes import (
    ENDLESS,
    CountedRows,
    IndexedNode,
    LikeParent,
    Node,
    Rows,
    Run,
    first_element,
    merged_spec,
)

_EPOCHS_KEPT = 64


class ItemRows(abc.ABC):
    """Base class of random-access sequences that compute elements one by one, and stack them to form a batch."""

    length: int

    @abc.abstractmethod
    def item(self, index: int) -> Element:
        """Computes the dataset element with the given index; subclasses implement this method."""

    def rows(self, positions: range | np.ndarray) -> Element:
        """Returns the elements at the given indices, stacked into one batch."""
        return stack([self.item(int(index)) for index in positions])


@dataclasses.dataclass(frozen=True, eq=False)
class OneParent(LikeParent, IndexedNode):
    """Base class of random-access operations that have one input dataset."""

    parent: IndexedNode


@dataclasses.dataclass(frozen=True, eq=False)
class Mapped(OneParent):
    """The operation `map` on a random-access dataset: applies `function` to every element."""

    function: Callable[..., Any]
    num_parallel_calls: int = 0
    called: str = "Dataset.map"

    @property
    def spec(self) -> Any:
        sample = first_element(self.parent)
        return specs.after_map(self.parent.spec, sample, transformed(self.function, sample, self.called, 0))

    def open(self, run: Run) -> Rows:
        return _MappedRows(self.parent.open(run), self.function, self.called)


class _MappedRows(ItemRows):
    def __init__(self, parent: Rows, function: Callable[..., Any], called: str) -> None:
        self.length, self._parent, self._function, self._called = parent.length, parent, function, called

    def item(self, index: int) -> Element:
        return transformed(self._function, self._parent.item(index), self._called, index)


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapped(OneParent):
    """The operation `random_map` on a random-access dataset: applies `function(element, rng)` to every element."""

    function: Callable[..., Any]
    seed: int
    num_parallel_calls: int = 0

    @property
    def spec(self) -> Any:
        sample = first_element(self.parent)
        return specs.after_map(self.parent.spec, sample, self.open(Run()).item(0))

    def open(self, run: Run) -> Rows:
        return _RandomMappedRows(self.parent.open(run), self.function, (run.seeds.get(id(self), self.seed), *run.path))


class _RandomMappedRows(ItemRows):
    def __init__(self, parent: Rows, function: Callable[..., Any], key: tuple[int, ...]) -> None:
        self.length, self._parent, self._function, self._key = parent.length, parent, function, key

    def item(self, index: int) -> Element:
        function, rng = self._function, np.random.default_rng((*self._key, index))

        def with_rng(*parts: Element) -> Any:
            return function(*parts, rng)

        return transformed(with_rng, self._parent.item(index), "Dataset.random_map", index)


@dataclasses.dataclass(frozen=True, eq=False)
class Sliced(CountedRows, OneParent):
    """The operations take, skip and shard on a random-access dataset: select elements like a Python slice."""

    start: int
    stop: int | None
    step: int = 1

    def open(self, run: Run) -> Rows:
        return _SlicedRows(self.parent.open(run), self.start, self.stop, self.step)


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
class Repeated(CountedRows, OneParent):
    """The operation `repeat` on a random-access dataset; each repetition is shuffled differently."""

    count: int

    def open(self, run: Run) -> Rows:
        return _RepeatedRows(self.parent, run, self.count)


class _RepeatedRows:
    """Elements of a repeated parent, which opens each epoch once and keeps the few that were used last."""

    def __init__(self, parent: IndexedNode, run: Run, count: int) -> None:
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
                self._epochs[number] = self._parent.open(self._run.epoch(number))
            return self._epochs[number]

    def item(self, index: int) -> Element:
        epoch, place = divmod(index, self._each)
        return self._epoch(epoch).item(place)

    def rows(self, positions: range | np.ndarray) -> Element:
        if isinstance(positions, range) and positions.step == 1 and len(positions):
            return self._contiguous(positions)
        epochs, places = np.divmod(np.asarray(positions, np.int64), self._each)
        if len(epochs) and np.all(epochs[1:] >= epochs[:-1]):
            return joined([self._epoch(int(number)).rows(places[epochs == number]) for number in np.unique(epochs)])
        return stack([self._epoch(int(e)).item(int(p)) for e, p in zip(epochs, places, strict=True)])

    def _contiguous(self, positions: range) -> Element:
        parts = []
        for number in range(positions.start // self._each, (positions.stop - 1) // self._each + 1):
            first = number * self._each
            inside = range(max(positions.start, first) - first, min(positions.stop - first, self._each))
            parts.append(self._epoch(number).rows(inside))
        return joined(parts)


def joined(parts: list[Element]) -> Element:
    """Concatenates batches along their first dim into one batch."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: concatenated(leaves), *parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Zipped(CountedRows, IndexedNode):
    """The operation `zip` on random-access datasets: combines elements at the same index into a pytree."""

    members: tuple[IndexedNode, ...]
    treedef: Any

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.members

    @property
    def spec(self) -> Any:
        return self.treedef.unflatten([member.spec for member in self.members])

    def open(self, run: Run) -> Rows:
        return _ZippedRows([member.open(run) for member in self.members], self.treedef)


class _ZippedRows:
    def __init__(self, members: list[Rows], treedef: jax.tree_util.PyTreeDef) -> None:
        self._members, self._treedef = members, treedef
        self.length = min(member.length for member in members)

    def item(self, index: int) -> Element:
        return self._treedef.unflatten([member.item(index) for member in self._members])

    def rows(self, positions: range | np.ndarray) -> Element:
        return self._treedef.unflatten([member.rows(positions) for member in self._members])


@dataclasses.dataclass(frozen=True, eq=False)
class Concatenated(CountedRows, IndexedNode):
    """The operation `concatenate` on random-access datasets."""

    members: tuple[IndexedNode, ...]

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.members

    @property
    def spec(self) -> Any:
        return merged_spec(self.members)

    def open(self, run: Run) -> Rows:
        return _ConcatenatedRows([member.open(run) for member in self.members])


class _ConcatenatedRows(ItemRows):
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
        return super().rows(positions)


@dataclasses.dataclass(frozen=True, eq=False)
class Batched(CountedRows, OneParent):
    """The operation `batch` on a random-access dataset: stacks every `size` consecutive elements."""

    size: int
    drop_remainder: bool

    @property
    def spec(self) -> Any:
        # As in TensorFlow, the batch dim is known only if every batch is full.
        size = self.size if self.drop_remainder else None
        return specs.map_specs(lambda leaf: leaf.batched(size), self.parent.spec)

    def open(self, run: Run) -> Rows:
        return _BatchedRows(self.parent.open(run), self.size, self.drop_remainder)


class _BatchedRows(ItemRows):
    def __init__(self, parent: Rows, size: int, drop_remainder: bool) -> None:
        self._parent, self._size = parent, size
        batches = parent.length // size if drop_remainder else -(-parent.length // size)
        self.length = ENDLESS if parent.length >= ENDLESS else batches

    def item(self, index: int) -> Element:
        return self._parent.rows(self.positions(index))

    def positions(self, index: int) -> range:
        """Returns the indices of the parent's elements that form batch `index`."""
        return range(index * self._size, min((index + 1) * self._size, self._parent.length))


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedBatched(CountedRows, OneParent):
    """The operation `padded_batch` on a random-access dataset: pads and stacks every `size` consecutive elements."""

    size: int
    drop_remainder: bool
    shapes: Any
    values: Any

    @property
    def spec(self) -> Any:
        return padded_spec(self.parent.spec, self.size if self.drop_remainder else None, self.shapes)

    def open(self, run: Run) -> Rows:
        return _PaddedRows(self.parent.open(run), self)


class _PaddedRows(_BatchedRows):
    def __init__(self, parent: Rows, node: PaddedBatched) -> None:
        super().__init__(parent, node.size, node.drop_remainder)
        self._shapes, self._values = node.shapes, node.values

    def item(self, index: int) -> Element:
        elements = [self._parent.item(place) for place in self.positions(index)]
        return pad_and_stack(elements, self._shapes, self._values, "Dataset.padded_batch")


def padded_spec(parent: PyTree, size: int | None, shapes: PyTree) -> Any:
    """Returns the shapes and dtypes of padded batches, with None for dims that the caller has not fixed."""
    if shapes is not None:
        given = jax.tree.leaves(shapes, is_leaf=lambda part: isinstance(part, list | tuple))
        leaves = jax.tree.leaves(parent, is_leaf=lambda part: isinstance(part, specs.ArraySpec))
        if len(given) == len(leaves) == 1:
            shape = tuple(None if n in (None, -1) else n for n in given[0])
            return specs.map_specs(lambda leaf: specs.ArraySpec((size, *shape), leaf.dtype), parent)
    return specs.map_specs(lambda leaf: specs.ArraySpec((size, *(None for _ in leaf.shape)), leaf.dtype), parent)


@dataclasses.dataclass(frozen=True, eq=False)
class Prefetched(OneParent):
    """The operation `prefetch` on a random-access dataset; has no effect unless it is the dataset's last operation.

    Elsewhere it has no effect.
    """

    size: int

    def open(self, run: Run) -> Rows:
        return self.parent.open(run)

    @property
    def wants_threads(self) -> bool:
        return True

    def stream(self, run: Run) -> Any:
        return engine().thread_prefetch(self.parent.stream(run), self.size)
