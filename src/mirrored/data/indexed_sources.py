"""Sources of indexed pipelines: ranges, arrays and lists of elements."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from mirrored._jax.host_memory import aligned_empty
from mirrored.data.elements import Element, as_element, snapshot, stack, take
from mirrored.data.pipeline import IndexedNode, Node, Rows, Run
from mirrored.data.specs import map_specs, merged, spec_of
from mirrored.data.splitting import batch_size


@dataclasses.dataclass(frozen=True, eq=False)
class RangeSource(IndexedNode):
    """The integers of a range, as int64 scalars."""

    numbers: range

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def cardinality(self) -> int:
        return len(self.numbers)

    @property
    def spec(self) -> Any:
        return spec_of(np.int64(0))

    @property
    def length(self) -> int:
        """Implements `Rows`."""
        return len(self.numbers)

    def item(self, index: int) -> Element:
        """Implements `Rows`."""
        return np.int64(self.numbers[index])

    def rows(self, positions: range | np.ndarray) -> Element:
        """Implements `Rows`."""
        out = aligned_empty((len(positions),), np.int64)
        out[...] = positions
        out *= self.numbers.step
        out += self.numbers.start
        return out

    def open(self, run: Run) -> Rows:
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySource(IndexedNode):
    """The rows of a pytree of arrays ``[examples, ...]``."""

    arrays: Any
    length: int

    @classmethod
    def of(cls, tensors: Any, called: str) -> ArraySource:
        """Creates a source from a snapshot of `tensors`.

        Raises:
            StructureError: A leaf has no leading dim, or the leading dims differ.
        """
        arrays = jax.tree.map(lambda leaf: snapshot(np.asarray(leaf)), as_element(tensors, called))
        return cls(arrays, batch_size(arrays, called))

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def cardinality(self) -> int:
        return self.length

    @property
    def spec(self) -> Any:
        return map_specs(lambda leaf: leaf.unbatched(), spec_of(self.arrays))

    def item(self, index: int) -> Element:
        """Implements `Rows`."""
        return jax.tree.map(lambda leaf: leaf[index], self.arrays)

    def rows(self, positions: range | np.ndarray) -> Element:
        """Implements `Rows`; returns a view of the source for a range."""
        return jax.tree.map(lambda leaf: take(leaf, positions), self.arrays)

    def open(self, run: Run) -> Rows:
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class ListSource(IndexedNode):
    """A list of elements in memory."""

    elements: tuple[Element, ...]

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    @property
    def cardinality(self) -> int:
        return len(self.elements)

    @property
    def spec(self) -> Any:
        found = spec_of(self.elements[0])
        for element in self.elements[1:]:
            found = merged(found, spec_of(element))
        return found

    @property
    def length(self) -> int:
        """Implements `Rows`."""
        return len(self.elements)

    def item(self, index: int) -> Element:
        """Implements `Rows`."""
        return self.elements[index]

    def rows(self, positions: range | np.ndarray) -> Element:
        """Implements `Rows`."""
        return stack([self.elements[index] for index in positions])

    def open(self, run: Run) -> Rows:
        return self
