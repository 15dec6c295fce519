"""Datasets mixed, resampled, grouped and scanned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from mirrored.data import drawing, indexed, indexed_sources, mixing, shuffling, specs, stateful, streams
from mirrored.data.dataset_steps import Steps
from mirrored.data.elements import Element, own_element
from mirrored.data.pipeline import Node
from mirrored.errors import ArgumentError, ArgumentTypeError, StructureError


class Sampling(Steps):
    """The methods of `Dataset` that draw from datasets, or remember what came before."""

    @classmethod
    def random(cls, seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Self:
        """Endless random integers, as int64 scalars.

        Args:
            seed: An int; drawn if None, and then kept in positions.
            rerandomize_each_iteration: Whether every reading has other numbers; False by default.

        TensorFlow: The numbers are others, and below 2**31, so that they fit into 32 bits.
        """
        return cls(indexed.Mapped(_uniform(seed, rerandomize_each_iteration), drawing.as_integer))

    @classmethod
    def counter(cls, start: int = 0, step: int = 1, dtype: Any = np.int64) -> Self:
        """The numbers start, start + step, and so on, without end.

        Example:
            >>> from mirrored.data import Dataset
            >>> [int(n) for n in Dataset.counter(2, 3).take(3)]
            [2, 5, 8]
        """
        kind = np.dtype(getattr(dtype, "name", dtype)).type
        return cls(indexed.Mapped(drawing.Endless(), lambda index: kind(start + step * int(index))))

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: Sequence[Steps],
        weights: Any = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Self:
        """Elements of the datasets, each from one that is drawn.

        Args:
            datasets: What to draw from; elements keep their order.
            weights: How often each comes in proportion to the others: numbers, or a dataset of such vectors, one per
                element. None: all alike.
            seed: An int; drawn if None, and then kept in positions.
            stop_on_empty_dataset: Whether it ends when one has ended; otherwise the rest go on.
            rerandomize_each_iteration: Whether every reading draws anew; False by default, as in TensorFlow.

        Raises:
            ArgumentError: No dataset, or weights that do not fit.

        Example:
            >>> from mirrored.data import Dataset
            >>> ones, twos = Dataset.from_tensors(1).repeat(), Dataset.from_tensors(2).repeat()
            >>> mixed = Dataset.sample_from_datasets([ones, twos], weights=[0.25, 0.75], seed=0)
            >>> sum(int(n) == 2 for n in mixed.take(1000)) in range(700, 800)
            True
        """
        called = "Dataset.sample_from_datasets"
        members = _checked_members(datasets, called)
        draws = _uniform(seed, rerandomize_each_iteration)
        if isinstance(weights, Steps):
            # TensorFlow wraps the weights of one draw into a row.
            choices: Any = cls.zip((cls(weights._node), cls(draws))).map(_weighed)  # type: ignore[attr-defined]
            return cls(mixing.Chosen(choices.node, tuple(members), stop_on_empty_dataset, called))
        given = np.ones(len(members)) if weights is None else np.asarray(weights, np.float64)
        if given.shape != (len(members),):
            raise ArgumentError(
                called,
                found=f"weights of shape {list(given.shape)} for {len(members)} datasets",
                rule="every dataset has a weight",
                remedy="give as many weights as datasets",
            )
        known = mixing.check_weights(given, "weights", called)
        kept = [(member, weight) for member, weight in zip(members, known, strict=True) if weight > 0]
        if len(kept) == 1:
            return cls(kept[0][0])
        by_weight = mixing.ByWeight([weight for _, weight in kept])
        drawn = indexed.Mapped(draws, by_weight)
        return cls(mixing.Chosen(drawn, tuple(member for member, _ in kept), stop_on_empty_dataset, called))

    @classmethod
    def choose_from_datasets(
        cls, datasets: Sequence[Steps], choice_dataset: Steps, stop_on_empty_dataset: bool = True
    ) -> Self:
        """Elements of the datasets, each from the one that `choice_dataset` names by its number.

        Args:
            datasets: What to choose from; elements keep their order.
            choice_dataset: Scalar integers; when it ends, all ends.
            stop_on_empty_dataset: Whether it ends when one has ended; otherwise choices of that one are passed over.

        Raises:
            ArgumentError: No dataset; while reading, a choice that is no number of one.

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
                rule="choice_dataset is a dataset of integers",
                remedy="make one with Dataset.range(...) or Dataset.from_tensor_slices(...)",
            )
        members = tuple(_checked_members(datasets, called))
        return cls(mixing.Chosen(choice_dataset._node, members, stop_on_empty_dataset, called))

    def rejection_resample(
        self, class_func: Callable[..., Any], target_dist: Any, initial_dist: Any = None, seed: int | None = None
    ) -> Self:
        """Pairs (class, element), elements left out at random so that the classes come as often as wanted.

        Args:
            class_func: From an element (a tuple as its parts) to its class, an integer counted from 0.
            target_dist: How often each class shall come.
            initial_dist: How often each comes; counted while reading if None.
            seed: An int; drawn if None, and then kept in positions.

        TensorFlow: Every element comes once at most. TensorFlow reads the dataset twice and mixes both readings, so
        that some come twice.
        """
        called = "Dataset.rejection_resample"
        target = mixing.check_weights(target_dist, "target_dist", called)
        initial = None if initial_dist is None else mixing.check_weights(initial_dist, "initial_dist", called)
        if initial is not None and initial.shape != target.shape:
            raise ArgumentError(
                called,
                found=f"{initial.size} classes in initial_dist, {target.size} in target_dist",
                rule="both say something about every class",
                remedy="give one number for each class",
            )
        draws = type(self)(_uniform(seed, None))
        pairs: Any = type(self).zip((self, draws))  # type: ignore[attr-defined]
        return self._then(stateful.Resampled(pairs.node, class_func, target / target.sum(), initial))

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Any], Steps],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> Self:
        """Elements of the datasets `reduce_func(key, window)`, windows being elements of equal keys.

        Args:
            key_func: From an element (a tuple as its parts) to an integer.
            reduce_func: From a key and a dataset of elements that have it to a dataset.
            window_size: How many elements make a window; those left over at the end make smaller ones, by key.
            window_size_func: From a key to the size of its windows, in place of `window_size`.

        Raises:
            ArgumentError: Not exactly one of the sizes is given.

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
                rule="exactly one of them is given",
                remedy="give one number for all keys, or a function from a key to a number",
            )
        known = window_size
        size = (lambda _: known) if window_size_func is None else window_size_func
        return self._then(stateful.Grouped(self._node, key_func, size, self._reducer(reduce_func)))

    def _reducer(self, reduce_func: Callable[[Any, Any], Steps]) -> Callable[[Any, list[Element], int], Node]:
        def reduce(key: Any, window: list[Element], number: int) -> Node:
            made = reduce_func(key, type(self)(indexed_sources.ListSource(tuple(window))))
            if isinstance(made, Steps):
                return made._node
            raise StructureError(
                "Dataset.group_by_window",
                found=f"reduce_func returned {type(made).__name__} for window {number}",
                rule="it returns a Dataset",
                remedy="return window.batch(...), or Dataset.from_tensors(...) of what is to come out",
            )

        return reduce

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Self:
        """Batches of elements of similar length, padded.

        Args:
            element_length_func: From an element (a tuple as its parts) to its length.
            bucket_boundaries: Upper bounds of the buckets' lengths, not included.
            bucket_batch_sizes: The size of a batch for every bucket: one more than boundaries.
            padded_shapes: As in `padded_batch`.
            padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: Whether to pad to the bucket's bound less one, not to the longest of the batch.
            no_padding: Whether to leave elements as they are; those of a bucket must agree then.
            drop_remainder: Whether to leave out batches that are not full.

        Raises:
            ArgumentError: The numbers of buckets do not agree; while reading: an element too long to be padded to a
                boundary.

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
                rule="there is one more size than boundaries: the last bucket has no bound",
                remedy="add the size of the last bucket",
            )
        shapes = _BucketShapes(self._node, padded_shapes, bounds) if pad_to_bucket_boundary else None

        def batches(bucket: Any, window: Any) -> Any:
            if no_padding:
                return window.batch(sizes[bucket], drop_remainder)
            wanted = padded_shapes if shapes is None else shapes(int(bucket))
            return window.padded_batch(sizes[bucket], wanted, padding_values, drop_remainder)

        def bucket_of(*parts: Any) -> int:
            return int(np.searchsorted(bounds, int(element_length_func(*parts)), side="right"))

        return self.group_by_window(bucket_of, batches, window_size_func=lambda bucket: sizes[bucket])

    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], Any]) -> Self:
        """The second of ``state, out = scan_func(state, element)`` for every element.

        Args:
            initial_state: A pytree of arrays.
            scan_func: From a state and an element to the next state, of the same structure and dtypes, and an element.

        Example:
            >>> import numpy as np
            >>> from mirrored.data import Dataset
            >>> [int(n) for n in Dataset.range(5).scan(np.int64(0), lambda total, n: (total + n, total + n))]
            [0, 1, 3, 6, 10]
        """
        state = own_element(initial_state, "Dataset.scan")
        return self._then(stateful.Scanned(self._node, state, scan_func))

    def take_while(self, predicate: Callable[..., Any]) -> Self:
        """The elements before the first for which `predicate` does not hold."""
        return self._then(stateful.TakenWhile(self._node, predicate))

    def unique(self) -> Self:
        """Every element once, at its first place. They are integers, booleans, bytes, or arrays of them."""
        return self._then(stateful.Unique(self._node))

    def assert_cardinality(self, expected_cardinality: int) -> Self:
        """The same elements, with a cardinality that is promised.

        Raises:
            InputError: While reading: more or fewer elements come.

        TensorFlow: `tf.data.experimental.assert_cardinality`.
        """
        return self._then(stateful.Promised(self._node, int(expected_cardinality)))

    def get_single_element(self) -> Any:
        """The only element.

        Raises:
            ArgumentError: There is none, or more than one.
        """
        found = list(self._then(streams.Limited(self._node, 2)))  # type: ignore[call-overload]
        if len(found) != 1:
            raise ArgumentError(
                "Dataset.get_single_element",
                found="the dataset is empty" if not found else "the dataset has more than one element",
                rule="it has one element",
                remedy="use .take(1), or .batch(n) with n elements or more",
            )
        return found[0]


@dataclasses.dataclass(frozen=True)
class _BucketShapes:
    """The padded shapes of each bucket: its bound less one where a dim is open."""

    node: Node
    shapes: Any
    bounds: list[int]

    def __call__(self, bucket: int) -> Any:
        called = "Dataset.bucket_by_sequence_length"
        if bucket == len(self.bounds):
            raise ArgumentError(
                called,
                found=f"an element of length {self.bounds[-1] if self.bounds else 0} or more",
                rule="with pad_to_bucket_boundary=True all elements are shorter than the last boundary",
                remedy="filter longer elements out, or add a boundary",
            )
        size = self.bounds[bucket] - 1
        known = self.shapes if self.shapes is not None else specs.map_specs(lambda leaf: leaf.shape, self.node.spec)
        filled = jax.tree.map(lambda shape: _filled(shape, size), known, is_leaf=_is_shape)
        if filled == known:
            raise ArgumentError(
                called,
                found=f"no dim of the shapes {known} is open",
                rule="pad_to_bucket_boundary pads the dims that vary",
                remedy="say which by padded_shapes, with None for them",
            )
        return filled


def _is_shape(part: Any) -> bool:
    return isinstance(part, list | tuple) and all(dim is None or isinstance(dim, int) for dim in part)


def _filled(shape: Any, size: int) -> tuple[int, ...]:
    return tuple(size if dim in (None, -1) else dim for dim in shape)


def _uniform(seed: int | None, rerandomize: bool | None) -> drawing.Uniform:
    return drawing.Uniform(shuffling.new_seed() if seed is None else int(seed), bool(rerandomize))


def _weighed(weights: Any, uniform: Any) -> np.int64:
    return mixing.ByWeight(np.ravel(weights))(uniform)


def _checked_members(datasets: Sequence[Steps], called: str) -> list[Node]:
    members = list(datasets)
    if not members or not all(isinstance(member, Steps) for member in members):
        raise ArgumentError(
            called,
            found=f"datasets={members!r}",
            rule="datasets is a list of at least one dataset",
            remedy="pass a list of datasets; wrap arrays with Dataset.from_tensor_slices",
        )
    return [member._node for member in members]
