"""`Dataset`: the subset of tf.data that training loops use, over Grain."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self, TypeVar

from mirrored.data import caching, indexed, shuffling, storing, streams
from mirrored.data.calling import transformed
from mirrored.data.combining import Combining
from mirrored.data.dataset_steps import at_least
from mirrored.data.elements import Element, handed_out, own_element
from mirrored.data.grouping import Grouping
from mirrored.data.iterators import DatasetIterator
from mirrored.data.making import Making
from mirrored.data.options import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Options
from mirrored.data.pipeline import IndexedNode
from mirrored.data.sampling import Sampling
from mirrored.data.tables import Tables
from mirrored.errors import ArgumentError, EndOfDataError, StructureError
from mirrored.runtime.driving import note_iteration

S = TypeVar("S")


class Dataset(Making, Combining, Grouping, Sampling, Tables):
    """A sequence of elements (pytrees of NumPy arrays), read once per iteration, transformed step by step.

    Made by `Dataset.range`, `Dataset.from_tensor_slices` and the other class methods. Datasets are immutable: each
    transformation gives a new one. Elements come in the order of tf.data, always the same for the same seeds.

    Pipelines over arrays (`range`, `from_tensors`, `from_tensor_slices`, `list_files`, and what follows, but not
    `filter`, `interleave`, `flat_map`, `window`, `unbatch`, `rebatch`) work by position: a batch is one gather, and
    going to a restored position costs nothing.

    Example:
        >>> dataset = Dataset.range(5).map(lambda x: x * x).batch(2)
        >>> [batch.tolist() for batch in dataset]
        [[0, 1], [4, 9], [16]]

    TensorFlow: `tf.data.Dataset`. Functions get NumPy arrays and run as Python, not as a graph. A `map` with random
    numbers draws them per element (use `random_map`), not per replica.
    """

    is_dataset: ClassVar[bool] = True
    hand_out: ClassVar[Callable[[Element], Any]] = staticmethod(handed_out)
    """Applied to every element that iteration gives out. A facade sets it; functions of a pipeline see NumPy arrays."""
    end_error: ClassVar[Callable[..., EndOfDataError]] = EndOfDataError
    """Makes the error for an element that is asked for after the last one."""
    number_out: ClassVar[Callable[[int], Any]] = int
    """Applied to the cardinality that is given out."""

    # --- element by element ------------------------------------------------------

    def map(self, map_func: Callable[..., Any], num_parallel_calls: int | None = None, **_: Any) -> Self:
        """`map_func` of every element.

        Args:
            map_func: Takes an element, a tuple as its parts; returns an element.
            num_parallel_calls: Threads that call it, where the pipeline works by position; AUTOTUNE: one per core.
                The order stays.
            **_: TensorFlow's `deterministic` and `name`, which change nothing here.
        """
        if isinstance(self._node, IndexedNode):
            threads = (os.cpu_count() or 1) if num_parallel_calls == AUTOTUNE else (num_parallel_calls or 0)
            return self._then(indexed.Mapped(self._node, map_func, threads))
        return self._then(streams.StreamMapped(self._node, map_func))

    def random_map(self, map_func: Callable[..., Any], seed: int | None = None) -> Self:
        """`map_func(element, rng)` of every element, with random numbers of its own for each element and epoch.

        They depend on the seed, the epoch and the element's number only: not on replicas, threads or resuming.

        Args:
            map_func: Takes an element (a tuple as its parts) and a `numpy.random.Generator`.
            seed: An int; drawn if None, and then kept in positions.
        """
        known = shuffling.new_seed() if seed is None else seed
        if isinstance(self._node, IndexedNode):
            return self._then(indexed.RandomMapped(self._node, map_func, known))
        return self._then(streams.StreamRandomMapped(self._node, map_func, known))

    def filter(self, predicate: Callable[..., Any]) -> Self:
        """The elements for which `predicate` holds."""
        return self._then(streams.Filtered(self._node, predicate))

    def enumerate(self, start: int = 0) -> Self:
        """Tuples (number, element)."""
        known = self._node.cardinality
        numbers = type(self).range(start, start + (2**62 if known < 0 else known))
        return self._with(type(self).zip((numbers, self)))

    # --- which elements, in which order ------------------------------------------

    def shuffle(
        self, buffer_size: int | None, seed: int | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Self:
        """The elements in random order.

        Args:
            buffer_size: How far elements move; None or the dataset's length: a uniform permutation.
            seed: An int; drawn if None, and then kept in positions.
            reshuffle_each_iteration: Whether every epoch has another order; True by default.

        TensorFlow: The same buffer, with other random numbers.
        """
        known = shuffling.new_seed() if seed is None else int(seed)
        again = reshuffle_each_iteration is not False
        size = self._buffer_size(buffer_size)
        if isinstance(self._node, IndexedNode) and self._node.cardinality != INFINITE_CARDINALITY:
            return self._then(shuffling.Shuffled(self._node, size, known, again))
        return self._then(shuffling.StreamShuffled(self._node, size, known, again))

    def _buffer_size(self, buffer_size: int | None) -> int:
        if buffer_size is None:
            buffer_size = max(self._node.cardinality, 1)
        return at_least(1, int(buffer_size), "Dataset.shuffle", "buffer_size")

    def repeat(self, count: int | None = None) -> Self:
        """The dataset `count` times; for ever if None or -1."""
        times = -1 if count is None else int(count)
        if isinstance(self._node, IndexedNode):
            return self._then(indexed.Repeated(self._node, times))
        return self._then(streams.StreamRepeated(self._node, times))

    def take(self, count: int) -> Self:
        """The first `count` elements; all if -1."""
        if count < 0:
            return self._then(self._node)
        if isinstance(self._node, IndexedNode):
            return self._then(indexed.Sliced(self._node, 0, int(count)))
        return self._then(streams.Limited(self._node, int(count)))

    def skip(self, count: int) -> Self:
        """All but the first `count` elements; none if -1."""
        if count < 0:
            return self.take(0)
        if isinstance(self._node, IndexedNode):
            return self._then(indexed.Sliced(self._node, int(count), None))
        return self._then(streams.Strided(self._node, int(count)))

    def shard(self, num_shards: int, index: int) -> Self:
        """Every `num_shards`-th element, from number `index` on."""
        at_least(1, int(num_shards), "Dataset.shard", "num_shards")
        if not 0 <= index < num_shards:
            raise ArgumentError(
                "Dataset.shard",
                found=f"index={index} of {num_shards} shards",
                rule="0 <= index < num_shards",
                remedy="pass the number of this worker or input pipeline, counted from 0",
            )
        if isinstance(self._node, IndexedNode):
            return self._then(indexed.Sliced(self._node, int(index), None, int(num_shards)))
        return self._then(streams.Strided(self._node, int(index), int(num_shards)))

    # --- how it is read -----------------------------------------------------------------

    def cache(self, filename: str | os.PathLike[str] = "") -> Self:
        """Keeps the elements after the first reading. What is before it is read once and never reshuffles.

        Args:
            filename: "": in memory. Else in a folder of this name, which the first reading writes before it gives the
                first element; if it is there, also from another run of the program, what is before it is not read.

        TensorFlow: There `filename` is the beginning of several files' names, written while the elements are given.
        """
        if filename:
            return self._then(storing.Kept(self._node, os.path.abspath(filename), "Dataset.cache"))
        if isinstance(self._node, IndexedNode):
            return self._then(caching.Cached(self._node))
        return self._then(caching.StreamCached(self._node))

    def snapshot(self, path: str | os.PathLike[str], compression: str = "AUTO") -> Self:
        """As `cache(path)`.

        Args:
            path: A folder.
            compression: Ignored: nothing is packed.

        TensorFlow: `tf.data.Dataset.snapshot`, without functions for shards.
        """
        del compression
        return self._then(storing.Kept(self._node, os.path.abspath(path), "Dataset.snapshot"))

    def save(self, path: str | os.PathLike[str], compression: str | None = None) -> None:
        """Writes the elements to a folder, in place of those that are there, once they are all written.

        Args:
            path: The folder, which is made.
            compression: Ignored: nothing is packed.

        Raises:
            ArgumentError: The dataset is endless.
            StructureError: Elements differ in structure, dtype or number of dims, or are more than dictionaries with
                text for keys and tuples of arrays and bytes.

        Example:
            >>> import tempfile
            >>> from mirrored.data import Dataset
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Dataset.range(3).map(lambda n: {"n": n, "square": n * n}).save(folder)
            ...     [int(element["square"]) for element in Dataset.load(folder)]
            [0, 1, 4]

        TensorFlow: `tf.data.Dataset.save`, with a format of its own and without functions for shards.
        """
        del compression
        storing.store(self._node, path, "Dataset.save")

    def prefetch(self, buffer_size: int = AUTOTUNE, **_: Any) -> Self:
        """Reads up to `buffer_size` elements ahead, by a thread; AUTOTUNE: 2."""
        size = 2 if buffer_size == AUTOTUNE else int(buffer_size)
        if size == 0:
            return self._then(self._node)
        if isinstance(self._node, IndexedNode):
            return self._then(indexed.Prefetched(self._node, size))
        return self._then(streams.StreamPrefetched(self._node, size))

    def with_options(self, options: Options) -> Self:
        """The same dataset with `options`."""
        return type(self)(self._node, dataclasses.replace(options))

    def options(self) -> Options:
        """The dataset's options."""
        return self._options

    def apply(self, transformation_func: Callable[[Self], S]) -> S:
        """`transformation_func(self)`."""
        return transformation_func(self)

    # --- what it is ------------------------------------------------------------------------

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of the elements, as a pytree of `ArraySpec`; None for dims that vary.

        Where a function decides about them (`map`), the function is called with the first element.
        """
        try:
            return self._node.spec
        except StopIteration:
            raise StructureError(
                "Dataset.element_spec",
                found="the dataset has no element",
                rule="the spec of a mapped or generated dataset is that of its first element",
                remedy="give output_signature to from_generator, or check why the dataset is empty",
            ) from None

    def cardinality(self) -> Any:
        """How many elements; INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return type(self).number_out(self._node.cardinality)

    def __len__(self) -> int:
        known = self._node.cardinality
        if known in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY):
            what = "infinite" if known == INFINITE_CARDINALITY else "unknown"
            raise TypeError(f"The dataset length is {what}.")
        return known

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> DatasetIterator:
        return self.iterator(type(self).hand_out)

    def iterator(self, hand_out: Callable[[Element], Any]) -> DatasetIterator:
        """A new reading of the dataset, whose elements pass through `hand_out`."""
        note_iteration()
        return DatasetIterator(self._node, self._epochs, hand_out, type(self).end_error)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """A new reading that gives NumPy arrays, also where iteration gives something else."""
        return self.iterator(handed_out)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`state = reduce_func(state, element)` over all elements.

        Args:
            initial_state: A pytree of arrays.
            reduce_func: Returns the next state.

        Example:
            >>> import numpy as np
            >>> int(Dataset.range(5).reduce(np.int64(0), lambda total, x: total + x))
            10
        """
        state = own_element(initial_state, "Dataset.reduce")
        with self.iterator(lambda element: element) as elements:
            for index, element in enumerate(elements):
                state = transformed(_WithState(reduce_func, state), element, "Dataset.reduce", index)
        return type(self).hand_out(state)

    def __repr__(self) -> str:
        known = {INFINITE_CARDINALITY: "infinite", UNKNOWN_CARDINALITY: "unknown"}
        count = self._node.cardinality
        return f"<Dataset {type(self._node).__name__}, {known.get(count, count)} elements>"


@dataclasses.dataclass(frozen=True)
class _WithState:
    function: Callable[[Any, Any], Any]
    state: Any

    def __call__(self, *parts: Any) -> Any:
        return self.function(self.state, parts[0] if len(parts) == 1 else parts)


TextLineDataset = Dataset.from_text_lines
TFRecordDataset = Dataset.from_tfrecords
