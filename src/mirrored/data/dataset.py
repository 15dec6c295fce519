"""`Dataset`: the subset of tf.data that training loops use, over Grain."""

from __future__ import annotations

import dataclasses
import functools
import glob
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

import jax
import numpy as np

from mirrored.data import _caching, _files, _indexed, _indexed_sources, _shuffling, _streams, specs
from mirrored.data._calling import transformed
from mirrored.data._elements import Element, as_element
from mirrored.data._pipeline import IndexedNode, Node
from mirrored.data.iterators import DatasetIterator
from mirrored.data.options import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Options
from mirrored.errors import ArgumentError, StructureError

S = TypeVar("S")


class Dataset:
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
    hand_out: ClassVar[Callable[[Element], Any]] = staticmethod(lambda element: element)
    """Applied to every element that iteration gives out. A facade sets it; functions of a pipeline see NumPy arrays."""
    number_out: ClassVar[Callable[[int], Any]] = int
    """Applied to the cardinality that is given out."""

    def __init__(self, node: Node, options: Options | None = None) -> None:
        self._node = node
        self._options = options if options is not None else Options()
        self._iterations = itertools.count()

    # --- where a pipeline begins -----------------------------------------------

    @classmethod
    def range(cls, *args: int) -> Self:
        """The integers of `range(*args)`, as int64 scalars.

        Args:
            *args: stop; or start, stop; or start, stop, step.
        """
        return cls(_indexed_sources.RangeSource(range(*map(int, args))))

    @classmethod
    def from_tensors(cls, tensors: Any) -> Self:
        """One element.

        Args:
            tensors: A pytree of arrays; lists become arrays.
        """
        return cls(_indexed_sources.ListSource((as_element(tensors, "Dataset.from_tensors"),)))

    @classmethod
    def from_tensor_slices(cls, tensors: Any) -> Self:
        """One element per row of the arrays.

        The arrays are copied once, into aligned memory; read-only and memory-mapped ones are used in place.

        Args:
            tensors: A pytree of arrays ``[examples, ...]``; lists become arrays.

        Raises:
            StructureError: A leaf has no leading dim, or the leaves disagree about it.

        Example:
            >>> for element in Dataset.from_tensor_slices({"x": [1.0, 2.0], "y": [3, 4]}):
            ...     print(element["x"], element["y"])
            1.0 3
            2.0 4
        """
        return cls(_indexed_sources.ArraySource.of(tensors, "Dataset.from_tensor_slices"))

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] = (),
        output_signature: Any = None,
    ) -> Self:
        """What `generator(*args)` yields.

        Args:
            generator: Returns an iterable; called anew for every iteration.
            output_types: A pytree of dtypes, as TensorFlow had it before `output_signature`.
            output_shapes: A pytree of shapes that goes with `output_types`.
            args: Passed to `generator`.
            output_signature: A pytree of specs (anything with shape and dtype); elements are cast to the dtypes, and
                refused if structure or shape differ. None: anything goes.
        """
        signature = _signature(output_types, output_shapes, output_signature)
        return cls(_streams.IterableSource(functools.partial(generator, *args), signature, "Dataset.from_generator"))

    @classmethod
    def list_files(cls, file_pattern: Any, shuffle: bool | None = None, seed: int | None = None) -> Self:
        """The paths that match a pattern, as bytes.

        Args:
            file_pattern: A glob pattern, or a list of them.
            shuffle: Whether in another order every iteration; True by default.
            seed: For the shuffle.

        Raises:
            ArgumentError: No file matches.
        """
        patterns = _files.file_names(file_pattern, "Dataset.list_files")
        found = sorted(path for pattern in patterns for path in glob.glob(pattern))
        if not found:
            raise ArgumentError(
                "Dataset.list_files",
                found=f"no file matches {', '.join(patterns)}",
                rule="at least one file matches",
                remedy="check the pattern; a folder needs a trailing /*",
            )
        listed = cls(_indexed_sources.ListSource(tuple(os.fsencode(path) for path in found)))
        return listed.shuffle(len(found), seed) if shuffle or shuffle is None else listed

    @classmethod
    def from_text_lines(cls, filenames: Any, compression_type: str | None = None) -> Self:
        """The lines of text files, as bytes without their ends.

        Args:
            filenames: One path or several.
            compression_type: "", "GZIP" or "ZLIB".

        TensorFlow: `tf.data.TextLineDataset`.
        """
        return cls._from_files(filenames, _files.read_line, compression_type, "TextLineDataset")

    @classmethod
    def from_tfrecords(cls, filenames: Any, compression_type: str | None = None) -> Self:
        """The records of TFRecord files, as bytes; their CRCs are checked.

        Args:
            filenames: One path or several.
            compression_type: "", "GZIP" or "ZLIB".

        TensorFlow: `tf.data.TFRecordDataset`.
        """
        return cls._from_files(filenames, _files.read_tfrecord, compression_type, "TFRecordDataset")

    @classmethod
    def _from_files(cls, names: Any, read: Callable[..., Any], compression: str | None, called: str) -> Self:
        packing = _files.check_compression(compression, called)
        if isinstance(names, Dataset):
            return cls._of(names._node).flat_map(lambda name: cls._from_files(name, read, packing, called))
        return cls(_files.FileSource(_files.file_names(names, called), read, packing, called))

    @classmethod
    def _of(cls, node: Node) -> Self:
        return cls(node)

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
            return self._then(_indexed.Mapped(self._node, map_func, threads))
        return self._then(_streams.StreamMapped(self._node, map_func))

    def random_map(self, map_func: Callable[..., Any], seed: int | None = None) -> Self:
        """`map_func(element, rng)` of every element, with random numbers of its own for each element and epoch.

        They depend on the seed, the epoch and the element's number only: not on replicas, threads or resuming.

        Args:
            map_func: Takes an element (a tuple as its parts) and a `numpy.random.Generator`.
            seed: An int; drawn if None, and then kept in positions.
        """
        known = _shuffling.new_seed() if seed is None else seed
        if isinstance(self._node, IndexedNode):
            return self._then(_indexed.RandomMapped(self._node, map_func, known))
        return self._then(_streams.StreamRandomMapped(self._node, map_func, known))

    def filter(self, predicate: Callable[..., Any]) -> Self:
        """The elements for which `predicate` holds."""
        return self._then(_streams.Filtered(self._node, predicate))

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
        known = _shuffling.new_seed() if seed is None else int(seed)
        again = reshuffle_each_iteration is not False
        size = self._buffer_size(buffer_size)
        if isinstance(self._node, IndexedNode) and self._node.cardinality != INFINITE_CARDINALITY:
            return self._then(_shuffling.Shuffled(self._node, size, known, again))
        return self._then(_shuffling.StreamShuffled(self._node, size, known, again))

    def _buffer_size(self, buffer_size: int | None) -> int:
        if buffer_size is None:
            buffer_size = max(self._node.cardinality, 1)
        return _at_least(1, int(buffer_size), "Dataset.shuffle", "buffer_size")

    def repeat(self, count: int | None = None) -> Self:
        """The dataset `count` times; for ever if None or -1."""
        times = -1 if count is None else int(count)
        if isinstance(self._node, IndexedNode):
            return self._then(_indexed.Repeated(self._node, times))
        return self._then(_streams.StreamRepeated(self._node, times))

    def take(self, count: int) -> Self:
        """The first `count` elements; all if -1."""
        if count < 0:
            return self._then(self._node)
        if isinstance(self._node, IndexedNode):
            return self._then(_indexed.Sliced(self._node, 0, int(count)))
        return self._then(_streams.Limited(self._node, int(count)))

    def skip(self, count: int) -> Self:
        """All but the first `count` elements; none if -1."""
        if count < 0:
            return self.take(0)
        if isinstance(self._node, IndexedNode):
            return self._then(_indexed.Sliced(self._node, int(count), None))
        return self._then(_streams.Strided(self._node, int(count)))

    def shard(self, num_shards: int, index: int) -> Self:
        """Every `num_shards`-th element, from number `index` on."""
        _at_least(1, int(num_shards), "Dataset.shard", "num_shards")
        if not 0 <= index < num_shards:
            raise ArgumentError(
                "Dataset.shard",
                found=f"index={index} of {num_shards} shards",
                rule="0 <= index < num_shards",
                remedy="pass the number of this worker or input pipeline, counted from 0",
            )
        if isinstance(self._node, IndexedNode):
            return self._then(_indexed.Sliced(self._node, int(index), None, int(num_shards)))
        return self._then(_streams.Strided(self._node, int(index), int(num_shards)))

    # --- several datasets ----------------------------------------------------------

    @classmethod
    def zip(cls, *args: Any, datasets: Any = None) -> Self:
        """Elements at the same position together, in the structure in which the datasets were given.

        Args:
            *args: Datasets, or one structure of them.
            datasets: The structure, by name.
        """
        structure = datasets if datasets is not None else args[0] if len(args) == 1 else args
        members, treedef = jax.tree.flatten(structure)
        if not members or not all(isinstance(member, Dataset) for member in members):
            raise ArgumentError(
                "Dataset.zip",
                found=f"{structure!r}",
                rule="zip takes datasets, or a structure of datasets",
                remedy="write Dataset.zip((a, b)); wrap arrays with Dataset.from_tensor_slices",
            )
        parts = [member._node for member in members]
        if all(isinstance(part, IndexedNode) for part in parts):
            return cls(_indexed.Zipped(tuple(parts), treedef))
        return cls(_streams.StreamZipped(tuple(parts), treedef))

    def concatenate(self, dataset: Dataset) -> Self:
        """This dataset, then the other."""
        mine, other = self._node, dataset._node
        if isinstance(mine, IndexedNode) and isinstance(other, IndexedNode):
            return self._then(_indexed.Concatenated((mine, other)))
        return self._then(_streams.StreamConcatenated((mine, other)))

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        **_: Any,
    ) -> Self:
        """Elements of the datasets `map_func(element)` in turn.

        Args:
            map_func: From an element to a dataset.
            cycle_length: How many datasets are read at a time; one per core (at most 10) if None or AUTOTUNE.
            block_length: How many elements of one before the next; 1 by default.
            num_parallel_calls: Accepted for TensorFlow's sake.
            **_: TensorFlow's `deterministic` and `name`.
        """
        cycle = cycle_length if cycle_length not in (None, AUTOTUNE) else min(os.cpu_count() or 1, 10)
        assert cycle is not None
        _at_least(1, cycle, "Dataset.interleave", "cycle_length")
        return self._interleaved(map_func, cycle, block_length or 1, "Dataset.interleave")

    def flat_map(self, map_func: Callable[..., Dataset]) -> Self:
        """The elements of the datasets `map_func(element)`, one dataset after the other."""
        return self._interleaved(map_func, 1, 1, "Dataset.flat_map")

    def _interleaved(self, map_func: Callable[..., Dataset], cycle: int, block: int, called: str) -> Self:
        def open_input(element: Element, number: int) -> Node:
            made = transformed(map_func, element, called, number)
            if isinstance(made, Dataset):
                return made._node
            raise StructureError(
                called,
                found=f"the function returned {type(made).__name__} for element {number}",
                rule="it returns a Dataset",
                remedy="wrap it: Dataset.from_tensor_slices(...), or use .map for one element each",
            )

        return self._then(_streams.Interleaved(self._node, open_input, cycle, block))

    # --- batches ---------------------------------------------------------------------

    def batch(self, batch_size: int, drop_remainder: bool = False, **_: Any) -> Self:
        """Groups of elements, stacked along a new first dim.

        Args:
            batch_size: Elements per batch.
            drop_remainder: Whether to leave out a last batch that is not full.
            **_: TensorFlow's `num_parallel_calls`, `deterministic` and `name`.

        Raises:
            StructureError: While reading: elements of a batch differ in shape (use `padded_batch`).
        """
        size = _at_least(1, int(batch_size), "Dataset.batch", "batch_size")
        if isinstance(self._node, IndexedNode):
            return self._then(_indexed.Batched(self._node, size, bool(drop_remainder)))
        return self._then(_streams.StreamBatched(self._node, size, bool(drop_remainder)))

    def padded_batch(
        self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: bool = False
    ) -> Self:
        """Groups of elements, padded to one shape and stacked.

        Args:
            batch_size: Elements per batch.
            padded_shapes: A pytree of shapes; None or -1 in a shape: the longest of the batch. None: so for all dims.
            padding_values: A pytree of values, or one for all; zeros and empty strings by default.
            drop_remainder: Whether to leave out a last batch that is not full.

        Example:
            >>> ragged = Dataset.range(1, 4).map(lambda n: np.full(n, n))
            >>> next(iter(ragged.padded_batch(3))).tolist()
            [[1, 0, 0], [2, 2, 0], [3, 3, 3]]
        """
        size, drop = _at_least(1, int(batch_size), "Dataset.padded_batch", "batch_size"), bool(drop_remainder)
        if isinstance(self._node, IndexedNode):
            return self._then(_indexed.PaddedBatched(self._node, size, drop, padded_shapes, padding_values))
        return self._then(_streams.StreamBatched(self._node, size, drop, (padded_shapes, padding_values)))

    def unbatch(self) -> Self:
        """The rows of every element, each as an element."""
        return self._then(_streams.Unbatched(self._node))

    def rebatch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Batches of another size from the same rows."""
        size = _at_least(1, int(batch_size), "Dataset.rebatch", "batch_size")
        return self._then(_streams.Rebatched(self._node, size, bool(drop_remainder)))

    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Self:
        """Windows of elements, each a dataset (for structured elements: the structure, of datasets).

        Args:
            size: Elements per window.
            shift: How far one window begins after the one before; `size` by default.
            stride: Distance of the elements inside a window.
            drop_remainder: Whether to leave out windows that are not full.
        """
        _at_least(1, size, "Dataset.window", "size")
        step = _at_least(1, size if shift is None else shift, "Dataset.window", "shift")
        _at_least(1, stride, "Dataset.window", "stride")
        return self._then(_streams.Windowed(self._node, size, step, stride, drop_remainder, type(self)._window))

    @classmethod
    def _window(cls, elements: list[Element]) -> Any:
        treedef = jax.tree.structure(elements[0])
        columns = zip(*(jax.tree.leaves(element) for element in elements), strict=True)
        return jax.tree.unflatten(treedef, [cls(_indexed_sources.ListSource(tuple(column))) for column in columns])

    # --- how it is read -----------------------------------------------------------------

    def cache(self) -> Self:
        """Keeps the elements in memory after the first reading. What is before it is read once and never reshuffles.

        TensorFlow: No cache file.
        """
        if isinstance(self._node, IndexedNode):
            return self._then(_caching.Cached(self._node))
        return self._then(_caching.StreamCached(self._node))

    def prefetch(self, buffer_size: int = AUTOTUNE, **_: Any) -> Self:
        """Reads up to `buffer_size` elements ahead, by a thread; AUTOTUNE: 2."""
        size = 2 if buffer_size == AUTOTUNE else int(buffer_size)
        if size == 0:
            return self._then(self._node)
        if isinstance(self._node, IndexedNode):
            return self._then(_indexed.Prefetched(self._node, size))
        return self._then(_streams.StreamPrefetched(self._node, size))

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
        return DatasetIterator(self._node, next(self._iterations), hand_out)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """A new reading that gives NumPy arrays, also where iteration gives something else."""
        return self.iterator(lambda element: element)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`state = reduce_func(state, element)` over all elements.

        Args:
            initial_state: A pytree of arrays.
            reduce_func: Returns the next state.

        Example:
            >>> int(Dataset.range(5).reduce(np.int64(0), lambda total, x: total + x))
            10
        """
        state = as_element(initial_state, "Dataset.reduce")
        with self.iterator(lambda element: element) as elements:
            for index, element in enumerate(elements):
                state = transformed(_WithState(reduce_func, state), element, "Dataset.reduce", index)
        return type(self).hand_out(state)

    def __repr__(self) -> str:
        known = {INFINITE_CARDINALITY: "infinite", UNKNOWN_CARDINALITY: "unknown"}
        count = self._node.cardinality
        return f"<Dataset {type(self._node).__name__}, {known.get(count, count)} elements>"

    def _then(self, node: Node) -> Self:
        return type(self)(node, self._options)

    def _with(self, dataset: Self) -> Self:
        return type(self)(dataset._node, self._options)

    @property
    def node(self) -> Node:
        """The pipeline, for those who distribute it."""
        return self._node


@dataclasses.dataclass(frozen=True)
class _WithState:
    function: Callable[[Any, Any], Any]
    state: Any

    def __call__(self, *parts: Any) -> Any:
        return self.function(self.state, parts[0] if len(parts) == 1 else parts)


def _signature(types: Any, shapes: Any, signature: Any) -> Any:
    if signature is not None:
        return specs.as_spec(signature)
    if types is None or shapes is None:
        return None
    dtypes, treedef = jax.tree.flatten(types)
    flat = jax.tree.leaves(shapes, is_leaf=lambda part: isinstance(part, list | tuple) and not _has_shapes(part))
    made = [
        specs.ArraySpec(tuple(shape), np.dtype(getattr(dtype, "name", dtype)))
        for dtype, shape in zip(dtypes, flat, strict=True)
    ]
    return jax.tree.unflatten(treedef, made)


def _has_shapes(part: Any) -> bool:
    return any(isinstance(item, list | tuple) for item in part)


def _at_least(least: int, value: int, called: str, name: str) -> int:
    if value < least:
        raise ArgumentError(
            called, found=f"{name}={value}", rule=f"{name} is at least {least}", remedy=f"pass a larger {name}"
        )
    return value


TextLineDataset = Dataset.from_text_lines
TFRecordDataset = Dataset.from_tfrecords
