"""`Dataset` methods for batches and windows."""

from __future__ import annotations

from typing import Any, Self

import jax

from mirrored.data import indexed, indexed_sources, streams
from mirrored.data.dataset_steps import Steps, at_least
from mirrored.data.elements import Element
from mirrored.data.pipeline import IndexedNode


class Grouping(Steps):
    """The methods of `Dataset` that group elements into batches or windows, and split batches."""

    def batch(self, batch_size: int, drop_remainder: bool = False, **_: Any) -> Self:
        """Stacks groups of consecutive elements along a new first dim.

        Args:
            batch_size: Number of elements per batch.
            drop_remainder: Whether to drop a last batch that is not full.
            **_: TensorFlow's `num_parallel_calls`, `deterministic` and `name`, which have no effect.

        Raises:
            StructureError: While reading: elements of a batch differ in shape (use `padded_batch`).
        """
        size = at_least(1, int(batch_size), "Dataset.batch", "batch_size")
        if isinstance(self._node, IndexedNode):
            return self._then(indexed.Batched(self._node, size, bool(drop_remainder)))
        return self._then(streams.StreamBatched(self._node, size, bool(drop_remainder)))

    def padded_batch(
        self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: bool = False
    ) -> Self:
        """Pads groups of consecutive elements to one shape and stacks them.

        Args:
            batch_size: Number of elements per batch.
            padded_shapes: A pytree of shapes; None or -1 in a shape stands for the largest dim in the batch. None: pad
                all dims so.
            padding_values: A pytree of values, or one value for all leaves; zeros and empty strings by default.
            drop_remainder: Whether to drop a last batch that is not full.

        Example:
            >>> import numpy as np
            >>> from mirrored.data import Dataset
            >>> ragged = Dataset.range(1, 4).map(lambda n: np.full(n, n))
            >>> next(iter(ragged.padded_batch(3))).tolist()
            [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
        """
        size, drop = at_least(1, int(batch_size), "Dataset.padded_batch", "batch_size"), bool(drop_remainder)
        if isinstance(self._node, IndexedNode):
            return self._then(indexed.PaddedBatched(self._node, size, drop, padded_shapes, padding_values))
        return self._then(streams.StreamBatched(self._node, size, drop, (padded_shapes, padding_values)))

    def unbatch(self) -> Self:
        """Splits every element into its rows, each of which becomes an element."""
        return self._then(streams.Unbatched(self._node))

    def rebatch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Regroups the rows of batches into batches of another size."""
        size = at_least(1, int(batch_size), "Dataset.rebatch", "batch_size")
        return self._then(streams.Rebatched(self._node, size, bool(drop_remainder)))

    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Self:
        """Groups elements into windows. Each window is a dataset, or for structured elements a pytree of datasets.

        Args:
            size: Number of elements per window.
            shift: Distance between the starts of two consecutive windows; `size` by default.
            stride: Distance between consecutive elements of a window.
            drop_remainder: Whether to drop windows that are not full.
        """
        at_least(1, size, "Dataset.window", "size")
        step = at_least(1, size if shift is None else shift, "Dataset.window", "shift")
        at_least(1, stride, "Dataset.window", "stride")
        return self._then(streams.Windowed(self._node, size, step, stride, drop_remainder, type(self)._window))

    @classmethod
    def _window(cls, elements: list[Element]) -> Any:
        treedef = jax.tree.structure(elements[0])
        columns = zip(*(jax.tree.leaves(element) for element in elements), strict=True)
        return jax.tree.unflatten(treedef, [cls(indexed_sources.ListSource(tuple(column))) for column in columns])
