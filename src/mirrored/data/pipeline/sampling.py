"""The methods of `Dataset` that mix datasets, resample or group elements, or keep state across elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import jax
import numpy as np
import numpy.typing as npt

from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree
from mirrored.data import specs
from mirrored.data.calling import no_end
from mirrored.data.elements import Element, own_element
from mirrored.data.padded_shapes import checked_shape, is_shape
from mirrored.data.pipeline import indexed_sources, shuffling, stateful, transformations
from mirrored.data.pipeline.nodes import Node
from mirrored.data.pipeline.seeds import seed_of
from mirrored.data.pipeline.steps import Steps
from mirrored.errors import ArgumentError, ArgumentTypeError, StructureError

if TYPE_CHECKING:
    from mirrored.data.pipeline.dataset import Dataset


class NamedDType(Protocol):
    """Protocol of dtypes of other libraries, such as `tf.int64`, whose `name` is the name of a NumPy dtype."""

    @property
    def name(self) -> str: ...


class Sampling(Steps):
    """Mixin of `Dataset`: the methods that sample from datasets or keep state across elements."""

    initial: ClassVar[Callable[[PyTree], PyTree]] = staticmethod(lambda state: state)
    """Converts the initial state of a user's function, as of `scan`. A facade sets it."""
    computing: ClassVar[Callable[[], AbstractContextManager[Any]]] = nullcontext
    """Creates the context of the user's functions that receive a dataset. A facade sets it."""

    @classmethod
    def random(cls, seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Self:
        """Creates an infinite dataset of random integers, as int64 scalars.

        Args:
            seed: An int. None: drawn, from the seed of `tf.random.set_seed` if there is one, and saved with positions.
            rerandomize_each_iteration: Whether every iteration draws new numbers; False by default.

        TensorFlow: The numbers differ, and are below 2**31 so that they fit into 32 bits.
        """
        return cls(transformations.Mapped(_uniform(seed, rerandomize_each_iteration), shuffling.as_integer))

    @classmethod
    def counter(
        cls, start: int = 0, step: int = 1, dtype: str | type[Any] | np.dtype[Any] | NamedDType = np.int64
    ) -> Self:
        """Creates an infinite dataset of the numbers start, start + step, start + 2 * step, ...

        Example:
            >>> from mirrored.data import Dataset
            >>> [int(n) for n in Dataset.counter(2, 3).take(3)]
            [2, 5, 8]
        """
        named: Any = getattr(dtype, "name", dtype)
        kind = np.dtype(named).type
        return cls(transformations.Mapped(shuffling.Endless(), lambda index: kind(start + step * int(index))))

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: Sequence[Steps],
        weights: Sequence[float] | np.ndarray[Any, Any] | jax.Array | Steps | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Self:
        """Mixes several datasets: takes each element from a dataset chosen at random.

        Args:
            datasets: The datasets to sample from. The elements of each dataset keep their order.
            weights: The relative frequency of each dataset: a vector, or a dataset with one such vector per element.
                None: equal frequencies.
            seed: An int. None: drawn, from the seed of `tf.random.set_seed` if there is one, and saved with positions.
            stop_on_empty_dataset: Whether to end when one dataset has ended. If False, the others continue.
            rerandomize_each_iteration: Whether every iteration draws new numbers; False by default, as in TensorFlow.

        Raises:
            ArgumentError: `datasets` is empty, or the weights are invalid or of the wrong number.

        Example:
            >>> from mirrored.data import Dataset
            >>> ones, twos = Dataset.from_tensors(1).repeat(), Dataset.from_tensors(2).repeat()
            >>> mixed = Dataset.sample_from_datasets([ones, twos], weights=[0.25, 0.75], seed=0)
            >>> sum(int(n) == 2 for n in mixed.take(1000)) in range(700, 800)
            True
        """
        called = "Dataset.sample_from_datasets"
        datasets = list(datasets)
        members = _checked_members(datasets, called)
        draws = _uniform(seed, rerandomize_each_iteration)
        if isinstance(weights, Steps):
            # TensorFlow wraps the weights of one draw into a row; `_weighed` flattens them.
            choices: Any = cls.zip((cls(weights._node), cls(draws))).map(_weighed)  # type: ignore[attr-defined]
            mixed = indexed_sources.Chosen(choices.node, tuple(members), stop_on_empty_dataset, called)
            return cls._combined(mixed, (weights, *datasets))
        given = np.ones(len(members)) if weights is None else np.asarray(weights, np.float64)
        if given.shape != (len(members),):
            raise ArgumentError(
                called,
                found=f"weights of shape {list(given.shape)} for {len(members)} datasets",
                rule="there must be one weight per dataset",
                remedy="pass as many weights as datasets",
            )
        known = indexed_sources.check_weights(given, "weights", called)
        kept = [(dataset, weight) for dataset, weight in zip(datasets, known, strict=True) if weight > 0]
        chosen = [dataset for dataset, _ in kept]
        if len(chosen) == 1:
            return cls._combined(chosen[0].node, chosen)
        by_weight = indexed_sources.ByWeight([weight for _, weight in kept])
        drawn = transformations.Mapped(draws, by_weight)
        nodes = tuple(one.node for one in chosen)
        return cls._combined(indexed_sources.Chosen(drawn, nodes, stop_on_empty_dataset, called), chosen)

    @classmethod
    def choose_from_datasets(
        cls, datasets: Sequence[Steps], choice_dataset: Steps, stop_on_empty_dataset: bool = True
    ) -> Self:
        """Mixes several datasets: a dataset of indices determines from which dataset each element comes.

        Args:
            datasets: The datasets to choose from. The elements of each dataset keep their order.
            choice_dataset: A dataset of scalar integers. The result ends when it ends.
            stop_on_empty_dataset: Whether to end when a chosen dataset has ended. If False, its choices are skipped.

        Raises:
            ArgumentError: `datasets` is empty; or, while reading, a choice is not the index of a dataset.

        Example:
            >>> from mirrored.data import Dataset
            >>> parts = [Dataset.range(3), Dataset.range(10, 13)]
            >>> [int(n) for n in Dataset.choose_from_datasets(parts, Dataset.range(2).repeat())]
            [0, 10, 1, 11, 2, 12]
        """
        called = "Dataset.choose_from_datasets"
        if not isinstance(choice_dataset, Steps):
            raise ArgumentTypeError(
                called,
                found=f"choice_dataset is a {type(choice_dataset).__name__}",
                rule="choice_dataset must be a dataset of integers",
                remedy="create one with Dataset.range(...) or Dataset.from_tensor_slices(...)",
            )
        datasets = list(datasets)
        members = tuple(_checked_members(datasets, called))
        mixed = indexed_sources.Chosen(choice_dataset._node, members, stop_on_empty_dataset, called)
        return cls._combined(mixed, (choice_dataset, *datasets))

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: npt.ArrayLike,
        initial_dist: npt.ArrayLike | None = None,
        seed: int | None = None,
    ) -> Self:
        """Drops elements at random to reach a target class distribution; returns pairs (class, element).

        Every epoch drops other elements.

        Args:
            class_func: From an element (a tuple as separate arguments) to its class, an integer counted from 0.
            target_dist: The target frequency of each class.
            initial_dist: The actual frequency of each class. None: counted while reading.
            seed: An int. None: drawn, from the seed of `tf.random.set_seed` if there is one, and saved with positions.

        TensorFlow: Here every element occurs at most once. TensorFlow reads the dataset twice and mixes both
        iterations, so that some elements occur twice.
        """
        called = "Dataset.rejection_resample"
        target = indexed_sources.check_weights(target_dist, "target_dist", called)
        initial = None if initial_dist is None else indexed_sources.check_weights(initial_dist, "initial_dist", called)
        if initial is not None and initial.shape != target.shape:
            raise ArgumentError(
                called,
                found=f"{initial.size} classes in initial_dist, {target.size} in target_dist",
                rule="both must have one frequency per class",
                remedy="pass one number per class",
            )
        draws = type(self)(_uniform(seed, True))
        pairs: Any = type(self).zip((self, draws))  # type: ignore[attr-defined]
        return self._then(
            stateful.Resampled(pairs.node, type(self).adapted(class_func), target / target.sum(), initial)
        )

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Any], Steps],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> Self:
        """Groups elements by key into windows; yields the elements of `reduce_func(key, window)` for each window.

        Args:
            key_func: From an element (a tuple as separate arguments) to an integer key.
            reduce_func: From a key and a dataset of elements with this key to a dataset.
            window_size: Number of elements per window. Elements that remain at the end form smaller windows, in the
                order of their keys.
            window_size_func: From a key to the size of its windows, as an alternative to `window_size`.

        Raises:
            ArgumentError: Neither or both of the two sizes are given.

        Example:
            >>> from mirrored.data import Dataset
            >>> parity = Dataset.range(6).group_by_window(lambda n: n % 2, lambda key, window: window.batch(3), 3)
            >>> [batch.tolist() for batch in parity]
            [[0, 2, 4], [1, 3, 5]]
        """
        if (window_size is None) == (window_size_func is None):
            raise ArgumentError(
                "Dataset.group_by_window",
                found=f"window_size={window_size}, window_size_func={window_size_func}",
                rule="exactly one of window_size and window_size_func must be given",
                remedy="pass one number for all keys, or a function from a key to a number",
            )
        known = window_size
        size = (lambda _: known) if window_size_func is None else window_size_func
        sizes = "" if window_size is None else f"group_by_window(window_size={window_size})"
        return self._grouped(key_func, reduce_func, size, sizes)

    def _grouped(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Any], Steps],
        size: Callable[[Any], Any],
        sizes: str,
    ) -> Self:
        key_of = type(self).adapted(key_func)
        return self._then(stateful.Grouped(self._node, key_of, size, self._reducer(reduce_func), sizes))

    def _reducer(self, reduce_func: Callable[[Any, Any], Steps]) -> Callable[[Any, list[Element], int], Node]:
        def reduce(key: int, window: list[Element], number: int) -> Node:
            with no_end("Dataset.group_by_window, reduce_func"), type(self).computing():
                made = reduce_func(key, type(self)(indexed_sources.ListSource.of(window)))
            if isinstance(made, Steps):
                return made._node
            raise StructureError(
                "Dataset.group_by_window",
                found=f"reduce_func returned {type(made).__name__} for window {number}",
                rule="reduce_func must return a Dataset",
                remedy="return window.batch(...), or Dataset.from_tensors(...) of the result",
            )

        return reduce

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: PyTree = None,
        padding_values: PyTree = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Self:
        """Groups elements of similar sequence lengths into padded batches.

        Args:
            element_length_func: From an element (a tuple as separate arguments) to its length.
            bucket_boundaries: Upper bounds (exclusive) of the lengths in the buckets.
            bucket_batch_sizes: The batch size of every bucket. There is one bucket more than there are boundaries.
            padded_shapes: As in `padded_batch`.
            padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: Whether to pad to the bucket's boundary minus 1 instead of the longest element.
            no_padding: Whether to omit padding. All elements of a bucket must then have the same shape.
            drop_remainder: Whether to drop batches that are not full.

        Raises:
            ArgumentError: The numbers of boundaries and batch sizes do not match; or, while reading, an element is too
                long to be padded to a boundary.

        Example:
            >>> import numpy as np
            >>> from mirrored.data import Dataset
            >>> ragged = Dataset.range(1, 5).map(lambda n: np.full(n, n))
            >>> [batch.tolist() for batch in ragged.bucket_by_sequence_length(len, [3], [2, 2])]
            [[[1, 0], [2, 2]], [[3, 3, 3, 0], [4, 4, 4, 4]]]
        """
        called = "Dataset.bucket_by_sequence_length"
        bounds, sizes = [int(bound) for bound in bucket_boundaries], [int(size) for size in bucket_batch_sizes]
        if len(sizes) != len(bounds) + 1:
            raise ArgumentError(
                called,
                found=f"{len(sizes)} bucket_batch_sizes and {len(bounds)} bucket_boundaries",
                rule="there must be one more batch size than boundaries, because the last bucket has no upper bound",
                remedy="add the size of the last bucket",
            )
        shapes = _BucketShapes(self._node, padded_shapes, bounds) if pad_to_bucket_boundary else None

        def batches(bucket: int, window: Dataset) -> Any:
            if no_padding:
                return window.batch(sizes[bucket], drop_remainder)
            wanted = padded_shapes if shapes is None else shapes(int(bucket))
            return window.padded_batch(sizes[bucket], wanted, padding_values, drop_remainder)

        def bucket_of(*parts: Element) -> int:
            return int(np.searchsorted(bounds, int(element_length_func(*parts)), side="right"))

        described = f"bucket_by_sequence_length({bounds}, {sizes})"
        return self._grouped(bucket_of, batches, lambda bucket: sizes[bucket], described)

    def scan(self, initial_state: PyTree, scan_func: Callable[[Any, Any], Any]) -> Self:
        """Maps elements with a carried state: ``state, out = scan_func(state, element)``; yields each `out`.

        Args:
            initial_state: A pytree of arrays.
            scan_func: From a state and an element to a pair, the next state and an output element. The next state has
                the same structure and dtypes.

        Example:
            >>> import numpy as np
            >>> from mirrored.data import Dataset
            >>> [int(n) for n in Dataset.range(5).scan(np.int64(0), lambda total, n: (total + n, total + n))]
            [0, 1, 3, 6, 10]
        """
        state = own_element(type(self).initial(initial_state), "Dataset.scan")
        return self._then(stateful.Scanned(self._node, state, type(self).adapted(scan_func)))

    def take_while(self, predicate: Callable[..., Any]) -> Self:
        """Keeps the elements before the first one for which `predicate` returns False."""
        return self._then(stateful.TakenWhile(self._node, type(self).adapted(predicate)))

    def unique(self) -> Self:
        """Removes duplicate elements; supports integers, booleans, strings, and arrays of these."""
        return self._then(stateful.Unique(self._node))

    def assert_cardinality(self, expected_cardinality: int) -> Self:
        """Declares the number of elements, and checks the declared number while the dataset is read.

        Raises:
            InputError: While reading: the dataset has more or fewer elements.

        TensorFlow: `tf.data.experimental.assert_cardinality`.
        """
        return self._then(stateful.Promised(self._node, int(expected_cardinality)))

    def get_single_element(self) -> Any:
        """Returns the only element of a dataset; raises an error unless there is exactly one element.

        Raises:
            ArgumentError: The dataset is empty or has more than one element.
        """
        found = list(self._then(transformations.Sliced(self._node, 0, 2)))  # type: ignore[call-overload]
        if len(found) != 1:
            raise ArgumentError(
                "Dataset.get_single_element",
                found="the dataset is empty" if not found else "the dataset has more than one element",
                rule="the dataset must have exactly one element",
                remedy="use .take(1), or .batch(n) with n at least the number of elements",
            )
        return found[0]


@dataclasses.dataclass(frozen=True)
class _BucketShapes:
    """Computes the shapes to which a bucket's elements are padded: dims that vary get the bucket's boundary minus 1."""

    node: Node
    shapes: Any
    bounds: list[int]

    def __call__(self, bucket: int) -> Any:
        called = "Dataset.bucket_by_sequence_length"
        if bucket == len(self.bounds):
            raise ArgumentError(
                called,
                found=f"an element has the length {self.bounds[-1] if self.bounds else 0} or more",
                rule="with pad_to_bucket_boundary=True all elements must be shorter than the last boundary",
                remedy="filter out longer elements, or add a boundary",
            )
        size = self.bounds[bucket] - 1
        known = self.shapes if self.shapes is not None else specs.map_specs(lambda leaf: leaf.shape, self.node.spec)
        filled = tree_map(lambda shape: _filled(shape, size, called), known, is_leaf=_is_shape)
        if filled == known:
            raise ArgumentError(
                called,
                found=f"no dim of the shapes {known} varies",
                rule="pad_to_bucket_boundary pads the dims that vary, so at least one dim must vary",
                remedy="pass padded_shapes, with None for the dims to pad",
            )
        return filled


def _is_shape(part: object) -> bool:
    return part is not None and is_shape(part)


def _filled(shape: Sequence[int | None], size: int, called: str) -> tuple[int, ...]:
    return tuple(size if dim in (None, -1) else dim for dim in checked_shape(shape, called) or ())


def _uniform(seed: int | None, rerandomize: bool | None) -> shuffling.Uniform:
    return shuffling.Uniform(seed_of(seed), bool(rerandomize))


def _weighed(weights: npt.ArrayLike, uniform: np.floating[Any]) -> np.int64:
    return indexed_sources.ByWeight(np.ravel(weights))(uniform)


def _checked_members(datasets: Sequence[Steps], called: str) -> list[Node]:
    members = list(datasets)
    if not members or not all(isinstance(member, Steps) for member in members):
        raise ArgumentError(
            called,
            found=f"datasets={members!r}",
            rule="datasets must be a list of at least one dataset",
            remedy="pass a list of datasets; wrap arrays with Dataset.from_tensor_slices",
        )
    return [member._node for member in members]
