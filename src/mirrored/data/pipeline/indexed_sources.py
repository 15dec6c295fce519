"""Random-access datasets of data in memory (ranges, arrays, lists), and the mixing of several datasets."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrored._jax.arrays import aligned_empty, frozen
from mirrored._jax.trees import tree_map, with_new_containers
from mirrored._typing import PyTree
from mirrored.data.calling import close_each
from mirrored.data.cursors import Cursor
from mirrored.data.elements import Element, as_element, native, snapshot, stack, take
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.data.pipeline.nodes import (
    CursorNode,
    IndexedNode,
    Members,
    Node,
    Rows,
    Run,
    length_as_cardinality,
)
from mirrored.data.placement import batch_size
from mirrored.data.specs import map_specs, merged, merged_of, spec_of
from mirrored.errors import ArgumentError

# Sources of indexed pipelines: ranges, arrays and lists of elements.


class MemorySource(IndexedNode):
    """Base class of datasets in memory, with random access to the elements."""

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """The number of elements, which is 2**62 or more for an infinite dataset."""

    @property
    def cardinality(self) -> int:
        """The number of elements, or the constant INFINITE_CARDINALITY."""
        return length_as_cardinality(self.length)

    @abc.abstractmethod
    def item(self, index: int) -> Element:
        """Returns the element at an index."""

    @abc.abstractmethod
    def rows(self, positions: range | np.ndarray) -> Element:
        """Returns the elements at the given indices, stacked into one batch."""

    def open(self, run: Run) -> Rows:
        """Returns the dataset itself, because its elements are the same in each pass."""
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class RangeSource(MemorySource):
    """A dataset of the integers of a `range`, as scalars of a dtype."""

    numbers: range
    dtype: np.dtype[Any]

    @property
    def spec(self) -> Any:
        return spec_of(self.dtype.type(0))

    @property
    def length(self) -> int:
        """The number of integers in the range."""
        return len(self.numbers)

    def item(self, index: int) -> Element:
        """Returns the integer at an index of the range."""
        return self.dtype.type(self.numbers[index])

    def rows(self, positions: range | np.ndarray) -> Element:
        """Returns the integers at the given indices of the range, as a vector."""
        start, step = self.numbers.start, self.numbers.step
        is_unsigned = self.dtype == np.uint64
        out = aligned_empty((len(positions),), np.uint64 if is_unsigned else np.int64)
        out[...] = positions
        out *= step % 2**64 if is_unsigned else step  # modulo 2**64, so that a range can descend
        out += start
        return out.astype(self.dtype, copy=False)


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySource(MemorySource):
    """A dataset of the slices ``array[i]`` along the first dim of arrays ``[examples, ...]``."""

    arrays: Any
    examples: int

    @classmethod
    def of(cls, tensors: PyTree, called: str) -> ArraySource:
        """Creates the dataset from a copy of the arrays, so that later changes of the arrays have no effect.

        Raises:
            StructureError: A leaf has no leading dim, or the leading dims differ.
        """
        arrays = tree_map(lambda leaf: snapshot(np.asarray(leaf)), as_element(tensors, called))
        return cls(arrays, batch_size(arrays, called))

    @property
    def spec(self) -> Any:
        return map_specs(lambda leaf: leaf.unbatched(), spec_of(self.arrays))

    @property
    def length(self) -> int:
        """The leading dim of the arrays."""
        return self.examples

    def item(self, index: int) -> Element:
        """Returns the slice ``array[index]`` of every array."""
        return tree_map(lambda leaf: native(leaf[index]), self.arrays)

    def rows(self, positions: range | np.ndarray) -> Element:
        """Returns the slices at the given indices as one batch; for a `range` of indices, a view of the arrays."""
        return tree_map(lambda leaf: take(leaf, positions), self.arrays)


@dataclasses.dataclass(frozen=True, eq=False)
class ListSource(MemorySource):
    """A dataset of the elements in a list in memory."""

    elements: tuple[Element, ...]

    @classmethod
    def of(cls, elements: Iterable[Element]) -> ListSource:
        """Creates a dataset of the given elements with read-only arrays, because each pass returns the same arrays."""
        return cls(tuple(tree_map(frozen, element) for element in elements))

    @property
    def spec(self) -> Any:
        found = spec_of(self.elements[0])
        for element in self.elements[1:]:
            found = merged(found, spec_of(element))
        return found

    @property
    def length(self) -> int:
        """The number of elements in the list."""
        return len(self.elements)

    def item(self, index: int) -> Element:
        """Returns the element at an index of the list, with new dicts and lists that the caller may change."""
        return with_new_containers(self.elements[index])

    def rows(self, positions: range | np.ndarray) -> Element:
        """Returns the elements at the given indices of the list, stacked into one batch."""
        return stack([self.elements[index] for index in positions])


# Mixes several datasets: another dataset chooses which one supplies the next element.


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen(CursorNode):
    """A mix of several datasets; a dataset of indices determines from which dataset each element is taken.

    Attributes:
        choices: A dataset of member indices.
        members: The datasets to choose from.
        stop_on_empty: Whether to end when the first member ends. If False, choices of a member that has ended are
            skipped.
        called: The function that the user called, for messages.
    """

    choices: Node
    members: tuple[Node, ...]
    stop_on_empty: bool
    called: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return self._inputs

    @property
    def order(self) -> str:
        function = getattr(self.choices, "function", None)
        return f"sample_from_datasets(weights={function.weights})" if isinstance(function, ByWeight) else ""

    @functools.cached_property
    def _inputs(self) -> Members:
        return Members((self.choices, *self.members))

    @property
    def cardinality(self) -> int:
        counts = [member.cardinality for member in self.members]
        some = all if self.stop_on_empty else any
        endless = some(count == INFINITE_CARDINALITY for count in counts)
        return INFINITE_CARDINALITY if endless and self._choices_are_endless else UNKNOWN_CARDINALITY

    @property
    def _choices_are_endless(self) -> bool:
        return self.choices.cardinality == INFINITE_CARDINALITY

    @property
    def spec(self) -> Any:
        return merged_of(self.members)

    def open_cursor(self, run: Run) -> Cursor:
        choices, *readings = [node.cursor(own) for node, own in self._inputs.with_runs(run)]
        return _ChoiceCursor(choices, readings, self.stop_on_empty, self.called)


class _ChoiceCursor:
    """The iterator of `Chosen`, which saves the position of each dataset that it mixes.

    Source: the order of TensorFlow's DirectedInterleaveDataset.
    """

    def __init__(self, choices: Cursor, members: Sequence[Cursor], stop_on_empty: bool, called: str) -> None:
        self._choices, self._members = choices, members
        self._stop_on_empty, self._called = stop_on_empty, called
        self._ended = [False] * len(members)

    def __next__(self) -> Element:
        while not all(self._ended):
            chosen = self._checked(next(self._choices))
            if self._ended[chosen]:
                continue
            try:
                return next(self._members[chosen])
            except StopIteration:
                self._ended = [self._stop_on_empty or n == chosen or ended for n, ended in enumerate(self._ended)]
        raise StopIteration

    def _checked(self, choice: Element) -> int:
        if np.shape(choice) != () or np.asarray(choice).dtype.kind not in "iu" or not 0 <= choice < len(self._members):
            raise ArgumentError(
                self._called,
                found=f"the choice {choice!r} is not an index of the {len(self._members)} datasets",
                rule="a choice must be a scalar integer: the index of a dataset, counted from 0",
                remedy="map the elements of choice_dataset to indices of the datasets",
            )
        return int(choice)

    def get_state(self) -> Any:
        """Returns the positions in the dataset of indices and in all mixed datasets."""
        members = [member.get_state() for member in self._members]
        return {"choices": self._choices.get_state(), "members": members, "ended": list(self._ended)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the positions in the dataset of indices and in all mixed datasets."""
        self._choices.set_state(state["choices"])
        for member, position in zip(self._members, state["members"], strict=True):
            member.set_state(position)
        self._ended = list(state["ended"])

    def close(self) -> None:
        """Closes the iterators over the dataset of indices and over all mixed datasets."""
        close_each((self._choices, *self._members))


class ByWeight:
    """A callable that maps a uniform random number to an index i, with probability proportional to ``weights[i]``.

    Raises:
        ArgumentError: The weights are invalid, see `check_weights`.
    """

    def __init__(self, weights: npt.ArrayLike) -> None:
        self._edges = np.cumsum(check_weights(weights, "weights", "Dataset.sample_from_datasets"))

    @property
    def weights(self) -> list[float]:
        """The sampling probability of each index, rounded to 6 decimal places."""
        return [round(float(weight), 6) for weight in np.diff(self._edges, prepend=0.0) / self._edges[-1]]

    def __call__(self, uniform: float | np.floating[Any]) -> np.int64:
        place = np.searchsorted(self._edges, uniform * self._edges[-1], side="right")
        return np.int64(min(place, len(self._edges) - 1))


def check_weights(weights: npt.ArrayLike, name: str, called: str) -> np.ndarray:
    """Validates sampling weights (relative frequencies) and returns them as a float64 vector.

    Raises:
        ArgumentError: A weight is negative or not finite, all weights are zero, or `weights` is not a vector.
    """
    vector = np.asarray(weights, np.float64)
    if vector.ndim != 1 or not np.isfinite(vector).all() or (vector < 0).any() or not vector.sum() > 0:
        raise ArgumentError(
            called,
            found=f"{name}={np.asarray(weights).tolist()}",
            rule=f"{name} must be a vector of finite numbers that are at least 0 and not all zero",
            remedy="pass one relative frequency for each dataset or class",
        )
    return vector
