"""`Dataset` methods that combine datasets."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import jax

from mirrored.data import indexed, streams
from mirrored.data.calling import transformed
from mirrored.data.dataset_steps import Steps, at_least
from mirrored.data.elements import Element
from mirrored.data.options import AUTOTUNE
from mirrored.data.pipeline import IndexedNode, Node
from mirrored.errors import ArgumentError, StructureError


class Combining(Steps):
    """The methods of `Dataset` that combine several datasets."""

    @classmethod
    def zip(cls, *args: Any, datasets: Any = None) -> Self:
        """Zips datasets: combines the elements at the same position in the structure of the arguments.

        Args:
            *args: Datasets, or one pytree of datasets.
            datasets: The pytree, as a keyword argument.
        """
        structure = datasets if datasets is not None else args[0] if len(args) == 1 else args
        members, treedef = jax.tree.flatten(structure)
        if not members or not all(isinstance(member, Steps) for member in members):
            raise ArgumentError(
                "Dataset.zip",
                found=f"{structure!r}",
                rule="zip takes datasets, or one pytree of datasets",
                remedy="write Dataset.zip((a, b)); wrap arrays with Dataset.from_tensor_slices",
            )
        parts = [member._node for member in members]
        if all(isinstance(part, IndexedNode) for part in parts):
            return cls(indexed.Zipped(tuple(parts), treedef))
        return cls(streams.StreamZipped(tuple(parts), treedef))

    def concatenate(self, dataset: Steps) -> Self:
        """Appends the elements of `dataset`."""
        first, second = self._node, dataset._node
        if isinstance(first, IndexedNode) and isinstance(second, IndexedNode):
            return self._then(indexed.Concatenated((first, second)))
        return self._then(streams.StreamConcatenated((first, second)))

    def interleave(
        self,
        map_func: Callable[..., Steps],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        **_: Any,
    ) -> Self:
        """Maps every element to a dataset, and interleaves the elements of these datasets.

        Args:
            map_func: From an element to a dataset.
            cycle_length: Number of datasets read concurrently. None or AUTOTUNE: one per core, at most 10.
            block_length: Number of consecutive elements from one dataset; 1 by default.
            num_parallel_calls: Accepted for compatibility with TensorFlow and ignored.
            **_: TensorFlow's `deterministic` and `name`, which have no effect.
        """
        cycle = cycle_length if cycle_length not in (None, AUTOTUNE) else min(os.cpu_count() or 1, 10)
        assert cycle is not None
        at_least(1, cycle, "Dataset.interleave", "cycle_length")
        return self._interleaved(map_func, cycle, block_length or 1, "Dataset.interleave")

    def flat_map(self, map_func: Callable[..., Steps]) -> Self:
        """Maps every element to a dataset, and concatenates these datasets."""
        return self._interleaved(map_func, 1, 1, "Dataset.flat_map")

    def _interleaved(self, map_func: Callable[..., Steps], cycle: int, block: int, called: str) -> Self:
        def open_input(element: Element, number: int) -> Node:
            made = transformed(map_func, element, called, number)
            if isinstance(made, Steps):
                return made._node
            raise StructureError(
                called,
                found=f"the function returned {type(made).__name__} for element {number}",
                rule="the function returns a Dataset",
                remedy="wrap the result: Dataset.from_tensor_slices(...), or use .map to return one element",
            )

        return self._then(streams.Interleaved(self._node, open_input, cycle, block))
