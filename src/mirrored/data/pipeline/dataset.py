"""The class `Dataset`: the subset of `tf.data.Dataset` that training loops use, built on Grain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self, TypeVar

from mirrored._typing import PyTree
from mirrored.data.calling import transformed
from mirrored.data.elements import Element, handed_out, own_element, with_widths_of
from mirrored.data.options import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Options, merged_options
from mirrored.data.pipeline import caching, shuffling, stateful, storing, streams
from mirrored.data.pipeline import transformations as steps
from mirrored.data.pipeline.combining import Combining, Grouping
from mirrored.data.pipeline.iterators import DatasetIterator
from mirrored.data.pipeline.making import Making
from mirrored.data.pipeline.nodes import ENDLESS
from mirrored.data.pipeline.sampling import Sampling
from mirrored.data.pipeline.seeds import seed_of
from mirrored.data.pipeline.steps import at_least
from mirrored.data.pipeline.tables import Tables
from mirrored.data.specs import elements_html
from mirrored.errors import ArgumentError, EndOfDataError
from mirrored.runtime.hooks import IteratedAsPython, note_iteration

S = TypeVar("S")


class Dataset(Making, Combining, Grouping, Sampling, Tables, IteratedAsPython):
    """An immutable input pipeline like `tf.data.Dataset`, whose elements are pytrees of NumPy arrays.

    `Dataset.range`, `Dataset.from_tensor_slices` and the other class methods create a dataset. Each transformation
    returns a new one. Every iteration reads the data again. Elements have the same order as in `tf.data`, and the same
    seeds always give the same order.

    Pipelines over arrays are indexed: they find element i without reading the elements before it. A batch is one
    gather, and restoring a position reads no elements. `range`, `from_tensors`, `from_tensor_slices` and `list_files`
    start an indexed pipeline; `filter`, `interleave`, `flat_map`, `window`, `unbatch` and `rebatch` end it.

    Example:
        >>> dataset = Dataset.range(5).map(lambda x: x * x).batch(2)
        >>> [batch.tolist() for batch in dataset]
        [[0, 1], [4, 9], [16]]

    Elements may contain typed PRNG keys (`jax.random.key`), except those that are stored in files, as `save` does.

    TensorFlow: `tf.data.Dataset`. Functions receive NumPy arrays and run as Python, not as a graph. For random
    augmentation use `random_map`, which draws random numbers per element, not per replica.
    """

    is_dataset: ClassVar[bool] = True
    hand_out: ClassVar[Callable[[Element], Any]] = staticmethod(handed_out)
    """Converts every element that iteration returns. A facade sets it."""
    end_error: ClassVar[Callable[..., EndOfDataError]] = EndOfDataError
    """Creates the error for a request past the last element."""
    number_out: ClassVar[Callable[[int], Any]] = int
    """Converts the cardinality that `cardinality` returns."""

    # --- Element-wise transformations ---------------------------------------------

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        use_unbounded_threadpool: bool = False,
        name: str | None = None,
    ) -> Self:
        """Applies `map_func` to every element.

        Args:
            map_func: Takes an element and returns an element. A tuple is passed as separate arguments. A list that it
                returns becomes a tuple; lists inside of the element, as in a dict, become arrays. A dataset that it
                reads, such as by `next(iter(...))`, needs a seed and `reshuffle_each_iteration=False` to repeat its
                order after a restore: a position does not contain how often functions have read it.
            num_parallel_calls: Number of threads that call it, if the pipeline is indexed; AUTOTUNE: one per core. The
                order of elements does not change.
            deterministic: Accepted for compatibility with TensorFlow and ignored.
            synchronous: Accepted for compatibility with TensorFlow and ignored.
            use_unbounded_threadpool: Accepted for compatibility with TensorFlow and ignored.
            name: Accepted for compatibility with TensorFlow and ignored.
        """
        del deterministic, synchronous, use_unbounded_threadpool, name
        map_func = type(self).adapted(map_func)
        threads = (os.cpu_count() or 1) if num_parallel_calls == AUTOTUNE else (num_parallel_calls or 0)
        return self._then(steps.Mapped(self._node, map_func, threads))

    def random_map(self, map_func: Callable[..., Any], seed: int | None = None) -> Self:
        """Applies `map_func(element, rng)` to every element; `rng` is a new random generator per element and epoch.

        The random numbers depend only on the seed, the epoch and the index of the element. The number of replicas or
        threads, or resuming from a saved position, does not change them.

        Args:
            map_func: Takes an element (a tuple as separate arguments) and a `numpy.random.Generator`. A list that it
                returns becomes a tuple, as in `map`.
            seed: An int. None: drawn, from the seed of `tf.random.set_seed` if there is one, and saved with positions.
        """
        known = seed_of(seed)
        return self._then(steps.RandomMapped(self._node, type(self).adapted(map_func), known))

    def filter(self, predicate: Callable[..., Any]) -> Self:
        """Keeps the elements for which `predicate` returns True."""
        return self._then(streams.Filtered(self._node, type(self).adapted(predicate)))

    def enumerate(self, start: int = 0) -> Self:
        """Replaces every element by the pair ``(index, element)``."""
        # The numbers do not end: `files_of_worker` tells them by that from data.
        numbers = type(self).range(start, min(start + ENDLESS, 2**63))
        return self._with(type(self).zip((numbers, self)))

    # --- Selection and order ------------------------------------------------------

    def shuffle(
        self, buffer_size: int | None, seed: int | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Self:
        """Shuffles the elements with a buffer, like `tf.data.Dataset.shuffle`.

        Args:
            buffer_size: Size of the shuffle buffer. None or the dataset's length: a uniform permutation. With None, the
                buffer holds all elements of a dataset whose length is not known.
            seed: An int. None: drawn, from the seed of `tf.random.set_seed` if there is one, and saved with positions.
            reshuffle_each_iteration: Whether every epoch has a different order; True by default. Every iteration over
                the result, or over a dataset made of it, then has another order: to divide it by `take` and `skip`,
                pass False.

        Raises:
            ArgumentError: `buffer_size` is less than 1, or None for an infinite dataset.

        TensorFlow: The same algorithm, with different random numbers. There one seed gives all datasets of a length the
        same order; here datasets with and without random access have different ones, of which `zip` warns.
        """
        known = seed_of(seed)
        size = self._buffer_size(buffer_size)
        return self._then(shuffling.Shuffled(self._node, size, known, reshuffle_each_iteration is not False))

    def _buffer_size(self, buffer_size: int | None) -> int:
        if buffer_size is None:
            known = self._node.cardinality
            if known == INFINITE_CARDINALITY:
                raise ArgumentError(
                    "Dataset.shuffle",
                    found="buffer_size=None, and an infinite dataset",
                    rule="the buffer then holds all elements of the dataset",
                    remedy="pass a number, or shuffle before .repeat()",
                )
            buffer_size = ENDLESS if known == UNKNOWN_CARDINALITY else max(known, 1)
        return at_least(1, int(buffer_size), "Dataset.shuffle", "buffer_size")

    def repeat(self, count: int | None = None) -> Self:
        """Repeats the dataset `count` times; indefinitely if `count` is None or -1."""
        return self._then(steps.Repeated(self._node, -1 if count is None else int(count)))

    def take(self, count: int) -> Self:
        """Keeps the first `count` elements; all of them if `count` is -1."""
        return self._then(self._node if count < 0 else steps.Sliced(self._node, 0, int(count)))

    def skip(self, count: int) -> Self:
        """Skips the first `count` elements; all of them if `count` is -1."""
        return self.take(0) if count < 0 else self._then(steps.Sliced(self._node, int(count), None))

    def shard(self, num_shards: int, index: int) -> Self:
        """Keeps every `num_shards`-th element, starting with the element at `index`."""
        at_least(1, int(num_shards), "Dataset.shard", "num_shards")
        if not 0 <= index < num_shards:
            raise ArgumentError(
                "Dataset.shard",
                found=f"index={index} is not one of {num_shards} shards",
                rule="index must be at least 0 and less than num_shards",
                remedy="pass the index of this worker or input pipeline, counted from 0",
            )
        return self._then(steps.Sliced(self._node, int(index), None, int(num_shards)))

    # --- Caching, prefetching and options ------------------------------------------

    def cache(self, filename: str | os.PathLike[str] = "") -> Self:
        """Caches the elements of the first pass over the dataset in memory or in a folder, for use in later passes.

        The operations before `cache` run once, so they never reshuffle.

        Args:
            filename: "" caches in memory. Any other value names a cache folder. The first iteration writes it before it
                returns the first element. If the folder exists, for example from an earlier run of the program, the
                steps before `cache` do not run. A position restored where the folder does not exist writes the same
                elements again, with the seeds of the run that saved it. With `AutoShardPolicy.FILE` each worker has a
                folder of its own in it.

        TensorFlow: There `filename` is the prefix of several file names, written while the elements are returned.
        """
        if filename:
            return self._then(caching.Kept(self._node, os.path.abspath(filename), "Dataset.cache"))
        return self._then(caching.Cached(self._node))

    def snapshot(self, path: str | os.PathLike[str], compression: str = "AUTO") -> Self:
        """Caches the elements of the first pass over the dataset in a folder, like `cache(path)`.

        Args:
            path: The folder.
            compression: Ignored: the data is not compressed.

        TensorFlow: `tf.data.Dataset.snapshot`, without `shard_func` and `reader_func`.
        """
        del compression
        return self._then(caching.Kept(self._node, os.path.abspath(path), "Dataset.snapshot"))

    def save(self, path: str | os.PathLike[str], compression: str | None = None) -> None:
        """Writes the elements to a folder, from which `load` reads them.

        Elements that were saved there before are replaced after all new ones are written. It is an iteration like any
        other: a shuffle has another order in each call.

        Args:
            path: The folder. It is created if it does not exist.
            compression: Ignored: the data is not compressed.

        Raises:
            ArgumentError: The dataset is infinite.
            StructureError: Elements differ in structure, dtype or number of dims, or are not dictionaries with string
                keys and tuples of arrays and bytes.

        Example:
            >>> import tempfile
            >>> from mirrored.data import Dataset
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Dataset.range(3).map(lambda n: {"n": n, "square": n * n}).save(folder)
            ...     [int(element["square"]) for element in Dataset.load(folder)]
            [0, 1, 4]

        TensorFlow: `tf.data.Dataset.save`, with a different file format and without `shard_func`.
        """
        del compression
        with self.iterator(lambda element: element) as elements:
            storing.store(self._node, path, "Dataset.save", elements)

    def prefetch(self, buffer_size: int = AUTOTUNE, name: str | None = None) -> Self:
        """Prefetches up to `buffer_size` elements in a background thread (2 elements for AUTOTUNE)."""
        del name
        size = 2 if buffer_size == AUTOTUNE else int(buffer_size)
        return self._then(self._node if size == 0 else steps.Prefetched(self._node, size))

    def with_options(self, options: Options) -> Self:
        """Returns a dataset with the given options; options that are not set in `options` keep their values."""
        return type(self)(self._node, merged_options((self._options, options)))

    def options(self) -> Options:
        """Returns the options set by `with_options` on this dataset and on the datasets from which it was made."""
        return self._options

    def apply(self, transformation_func: Callable[[Self], S]) -> S:
        """Calls a function with this dataset and returns the result, so that such calls can be chained."""
        return transformation_func(self)

    # --- Properties and iteration --------------------------------------------------

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of the elements: a pytree of `ArraySpec`, with None for varying dims.

        If a function determines them (`map`), this property calls the function with the first element.

        Raises:
            StructureError: A function or generator determines them, and the dataset is empty.
        """
        return self._node.spec

    def cardinality(self) -> Any:
        """Returns the number of elements, or the constant INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
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
        """Returns a new iterator that yields the elements, each converted by the function `hand_out`."""
        note_iteration()
        return DatasetIterator(self._node, hand_out, type(self).end_error)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns a new iterator whose elements contain NumPy arrays, even if the dataset otherwise returns tensors."""
        return self.iterator(handed_out)

    def reduce(self, initial_state: PyTree, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Reduces the elements to one value: calls ``state = reduce_func(state, element)`` for every element.

        Args:
            initial_state: A pytree of arrays.
            reduce_func: From a state and an element to the next state. A list that it returns gets the structure of the
                state: a tuple, or one array. A number of fewer bits than the state had gets the state's dtype.

        Example:
            >>> import numpy as np
            >>> int(Dataset.range(5).reduce(np.int64(0), lambda total, x: total + x))
            10
        """
        state = own_element(type(self).initial(initial_state), "Dataset.reduce")
        function = type(self).adapted(reduce_func)
        with self.iterator(lambda element: element) as elements:
            for index, element in enumerate(elements):
                found = transformed(stateful.NextState(function, state, element), element, "Dataset.reduce", index)
                state = with_widths_of(state, found)
        return type(self).hand_out(state)

    def __repr__(self) -> str:
        known = {INFINITE_CARDINALITY: "infinite", UNKNOWN_CARDINALITY: "unknown"}
        count = self._node.cardinality
        return f"<Dataset {self._node.name}, {known.get(count, count)} elements>"

    def _repr_html_(self) -> str:
        """Returns an HTML table for notebooks: the dtype and shape of each leaf of an element."""
        return elements_html(repr(self).strip("<>"), lambda: self._node.spec)


TextLineDataset = Dataset.from_text_lines
TFRecordDataset = Dataset.from_tfrecords
