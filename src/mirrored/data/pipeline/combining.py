"""The methods of `Dataset` that combine datasets (zip, interleave), or group elements into batches and windows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from mirrored._jax.trees import tree_flatten
from mirrored._typing import PyTree, StaticInts
from mirrored.data.calling import transformed
from mirrored.data.elements import Element, columns_of
from mirrored.data.options import AUTOTUNE
from mirrored.data.pipeline import forgiving, indexed_sources, shuffling, streams, transformations, zipping
from mirrored.data.pipeline.nodes import Members, Node
from mirrored.data.pipeline.steps import Steps, at_least
from mirrored.errors import ArgumentError, StructureError
from mirrored.runtime.element_draws import FunctionStreamId

# `Dataset` methods that combine datasets.


class Combining(Steps):
    """Mixin of `Dataset`: the methods that combine several datasets (zip, concatenate, interleave, flat_map)."""

    @classmethod
    def zip(cls, *args: PyTree, datasets: PyTree | None = None) -> Self:
        """Zips datasets: element i of the result holds element i of every dataset, nested like the arguments.

        To keep the elements of shuffled datasets together, zip the datasets first, and then shuffle.

        Args:
            *args: Datasets, or one pytree of datasets.
            datasets: The pytree, as a keyword argument.
        """
        structure = datasets if datasets is not None else args[0] if len(args) == 1 else args
        members, treedef = tree_flatten(structure)
        if not members or not all(isinstance(member, Steps) for member in members):
            raise ArgumentError(
                "Dataset.zip",
                found=f"{structure!r}",
                rule="the arguments of zip must be datasets, or one pytree of datasets",
                remedy="write Dataset.zip((a, b)); wrap arrays with Dataset.from_tensor_slices",
            )
        parts = [member._node for member in members]
        shuffling.warn_of_other_orders(parts)
        return cls._combined(zipping.Zipped(Members(parts), treedef), members)

    def concatenate(self, dataset: Steps) -> Self:
        """Appends the elements of another dataset to the elements of this dataset."""
        return self._combined(transformations.Concatenated(Members((self._node, dataset._node))), (self, dataset))

    def interleave(
        self,
        map_func: Callable[..., Steps],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Maps every element to a dataset, and interleaves the elements of these datasets.

        Args:
            map_func: From an element to a dataset.
            cycle_length: Number of datasets read concurrently. None or AUTOTUNE: one per core, at most 10. Pass
                a number if workers, or the machine that restores a position, may have another number of cores.
            block_length: Number of consecutive elements from one dataset; 1 by default.
            num_parallel_calls: Accepted for compatibility with TensorFlow and ignored.
            deterministic: Accepted for compatibility with TensorFlow and ignored.
            name: Accepted for compatibility with TensorFlow and ignored.
        """
        del num_parallel_calls, deterministic, name
        cycle = cycle_length if cycle_length not in (None, AUTOTUNE) else min(os.cpu_count() or 1, 10)
        assert cycle is not None
        at_least(1, cycle, "Dataset.interleave", "cycle_length")
        return self._interleaved(map_func, cycle, block_length or 1, "Dataset.interleave")

    def flat_map(self, map_func: Callable[..., Steps]) -> Self:
        """Maps every element to a dataset, and concatenates these datasets."""
        return self._interleaved(map_func, 1, 1, "Dataset.flat_map")

    def _interleaved(self, map_func: Callable[..., Steps], cycle: int, block: int, called: str) -> Self:
        function = type(self).adapted(map_func)

        def open_input(element: Element, number: int, draws: FunctionStreamId) -> Node:
            made = transformed(function, element, called, number, draws)
            if isinstance(made, Steps):
                return made._node
            raise StructureError(
                called,
                found=f"the function returned {type(made).__name__} for element {number}",
                rule="the function must return a Dataset",
                remedy="wrap the result: Dataset.from_tensor_slices(...), or use .map to return one element",
            )

        return self._then(streams.Interleaved(self._node, open_input, cycle, block))


# `Dataset` methods for batches and windows.


class Grouping(Steps):
    """Mixin of `Dataset`: the methods that group elements into batches or windows, and split batches."""

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Combines every `batch_size` consecutive elements into one batch, stacked along a new first dim.

        Args:
            batch_size: Number of elements per batch.
            drop_remainder: Whether to drop a last batch that is not full.
            num_parallel_calls: Accepted for compatibility with TensorFlow and ignored.
            deterministic: Accepted for compatibility with TensorFlow and ignored.
            name: Accepted for compatibility with TensorFlow and ignored.

        Raises:
            StructureError: While reading: elements of a batch differ in shape (use `padded_batch`).
        """
        del num_parallel_calls, deterministic, name
        size = at_least(1, int(batch_size), "Dataset.batch", "batch_size")
        return self._then(transformations.Batched(self._node, size, bool(drop_remainder)))

    def padded_batch(
        self, batch_size: int, padded_shapes: PyTree = None, padding_values: PyTree = None, drop_remainder: bool = False
    ) -> Self:
        """Combines consecutive elements of different shapes into batches: pads them to one shape and stacks them.

        Args:
            batch_size: Number of elements per batch.
            padded_shapes: A pytree of shapes; None or -1 in a shape stands for the largest dim in the batch. None: this
                applies to all dims.
            padding_values: A pytree of values, or one value for all leaves; zeros and empty strings by default.
            drop_remainder: Whether to drop a last batch that is not full.

        Example:
            >>> import numpy as np
            >>> from mirrored.data import Dataset
            >>> ragged = Dataset.range(1, 4).map(lambda n: np.full(n, n))
            >>> next(iter(ragged.padded_batch(3))).tolist()
            [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
        """
        size = at_least(1, int(batch_size), "Dataset.padded_batch", "batch_size")
        padding = padded_shapes, padding_values
        return self._then(transformations.Batched(self._node, size, bool(drop_remainder), padding))

    def unbatch(self) -> Self:
        """Splits every batch into its examples, each of which becomes an element."""
        return self._then(streams.Unbatched(self._node))

    def rebatch(self, batch_size: StaticInts, drop_remainder: bool = False) -> Self:
        """Regroups the examples of a dataset of batches into batches of another size, or cycles through several sizes.

        If a batch of the dataset raises an exception, the examples before it that were to be returned with its own are
        dropped, as in TensorFlow.

        Args:
            batch_size: The number of examples per batch; or a sequence of sizes, through which the batches cycle. A
                size of 0 gives an empty batch.
            drop_remainder: Whether to drop the last batch if it is not full.

        Raises:
            ArgumentError: A number is negative, a single one is 0, or the sequence has no number above 0.
        """
        sizes = tuple(int(size) for size in np.ravel(np.asarray(batch_size)))
        if np.ndim(batch_size) and max(sizes, default=0) > 0:
            sizes = tuple(at_least(0, size, "Dataset.rebatch", "batch_size") for size in sizes)
        else:
            sizes = (at_least(1, max(sizes, default=0), "Dataset.rebatch", "batch_size"),)
        return self._then(streams.Rebatched(self._node, sizes, bool(drop_remainder)))

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> Self:
        """Drops the elements that raise an exception because of their data, such as a damaged image.

        Exceptions that show a fault of the program are raised: TypeError, NameError, AttributeError, AssertionError.
        A generator ends at an exception, which is then raised. If a generator is read through another iterator (`map`,
        `zip`, a class), the data ends there, with a warning in the log.
        While a position is restored, an exception is raised if no such one was left out before the position.
        Earlier steps count elements that raise: the places of the others stay the same in `take`, `skip`, `shard` and
        `cache`, in the batches of `batch` and `padded_batch`, of which those with such an element are left out, and in
        the random numbers of `random_map`.

        Args:
            log_warning: Whether to log each exception that is ignored.
            name: Accepted for compatibility with TensorFlow and ignored.

        TensorFlow: The same, except that `take` does not count elements that raise, and the next batch begins right
        after such an element; it finds most faults of functions before it reads the first element.

        Example:
            >>> import numpy as np
            >>> from mirrored.data import Dataset
            >>> def parsed(x):
            ...     return np.frombuffer(x, np.int16)
            >>> dataset = Dataset.from_generator(lambda: iter([b"ab", b"abc", b"cd"]))
            >>> [x.tolist() for x in dataset.map(parsed).ignore_errors().as_numpy_iterator()]
            [[25185], [25699]]
        """
        del name
        return self._then(forgiving.Forgiving(self._node, bool(log_warning)))

    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Self:
        """Groups consecutive elements into windows; each window is a dataset (or a pytree of datasets).

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
        columns, treedef = columns_of(elements, "Dataset.window", "element", "window")
        return treedef.unflatten([cls(indexed_sources.ListSource.of(column)) for column in columns])
