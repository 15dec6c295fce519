"""`tf.data.experimental`: older names of dataset transformations, most of them for `Dataset.apply`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from mirrored import data
from mirrored._typing import Array
from mirrored.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from mirrored.tf._data.datasets import Dataset
from mirrored.tf._data.host_arrays import OnHostArrays

Transformation: TypeAlias = Callable[[Dataset], Dataset]


def _method(name: str) -> Callable[..., Transformation]:
    """Creates a function whose result, a transformation for `Dataset.apply`, calls the `Dataset` method `name`."""

    def outer(*args: Any, **kwargs: Any) -> Transformation:
        return lambda dataset: getattr(dataset, name)(*args, **kwargs)

    outer.__name__ = outer.__qualname__ = name
    outer.__doc__ = f"Returns a transformation for `Dataset.apply`: see `Dataset.{name}`."
    return outer


def choose_from_datasets(
    datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = False
) -> Dataset:
    """Returns a dataset of elements from several datasets; a dataset of indices chooses the source of each element.

    When one of the datasets ends, the others continue, unlike in `Dataset.choose_from_datasets`.
    """
    return Dataset.choose_from_datasets(datasets, choice_dataset, stop_on_empty_dataset)


def cardinality(dataset: Dataset) -> Any:
    """Returns the number of elements of a dataset (`Dataset.cardinality`)."""
    return dataset.cardinality()


def get_single_element(dataset: Dataset) -> Any:
    """Returns the only element of a dataset (`Dataset.get_single_element`)."""
    return dataset.get_single_element()


def shuffle_and_repeat(buffer_size: int, count: int | None = None, seed: int | None = None) -> Transformation:
    """Returns a transformation for `Dataset.apply` that shuffles elements, then repeats the dataset."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: int,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Transformation:
    """Returns a transformation for `Dataset.apply` that maps a function over elements, then batches them."""
    del num_parallel_batches
    return lambda dataset: dataset.map(map_func, num_parallel_calls).batch(batch_size, drop_remainder)


def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool | None = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Transformation:
    """Returns a transformation for `Dataset.apply` that interleaves datasets in a deterministic order."""
    del sloppy, buffer_output_elements, prefetch_input_elements
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def prefetch_to_device(device: object, buffer_size: int | None = None) -> Transformation:
    """Returns a transformation for `Dataset.apply` that prefetches elements into host memory.

    Elements move to devices when they are used.
    """
    del device
    return lambda dataset: dataset.prefetch(data.AUTOTUNE if buffer_size is None else buffer_size)


def copy_to_device(target_device: object, source_device: object = None) -> Transformation:
    """Returns a transformation for `Dataset.apply` that changes nothing: elements move to devices when used."""
    del target_device, source_device
    return lambda dataset: dataset


class Reducer(NamedTuple):
    """The functions by which `group_by_reducer` combines the elements that have the same key.

    Attributes:
        init_func: Maps a key to the initial state.
        reduce_func: Maps a state and an element to the next state.
        finalize_func: Maps the last state to the output element.
    """

    init_func: Callable[[Any], Any]
    reduce_func: Callable[[Any, Any], Any]
    finalize_func: Callable[[Any], Any]


def group_by_reducer(key_func: Callable[..., Any], reducer: Reducer) -> Transformation:
    """Returns a transformation for `Dataset.apply` that combines elements with the same key into one.

    The combined elements are in the order of keys.

    Args:
        key_func: Maps an element to an integer.
        reducer: A `Reducer`.
    """

    def reduced(key: Array, group: Dataset) -> Dataset:
        state = data.Dataset(group.node).reduce(reducer.init_func(key), OnHostArrays(reducer.reduce_func))
        return Dataset.from_tensors(OnHostArrays(reducer.finalize_func)(state))

    return lambda dataset: dataset.group_by_window(key_func, reduced, window_size=np.iinfo(np.int64).max)


_METHODS: Final = {
    "assert_cardinality": "assert_cardinality",
    "bucket_by_sequence_length": "bucket_by_sequence_length",
    "enumerate_dataset": "enumerate",
    "group_by_window": "group_by_window",
    "ignore_errors": "ignore_errors",
    "rejection_resample": "rejection_resample",
    "scan": "scan",
    "take_while": "take_while",
    "unbatch": "unbatch",
    "unique": "unique",
}

NAMES: Final[dict[str, Any]] = {
    **{name: _method(method) for name, method in _METHODS.items()},
    "Counter": Dataset.counter,
    "INFINITE_CARDINALITY": INFINITE_CARDINALITY,
    "RandomDataset": Dataset.random,
    "Reducer": Reducer,
    "UNKNOWN_CARDINALITY": UNKNOWN_CARDINALITY,
    "cardinality": cardinality,
    "choose_from_datasets": choose_from_datasets,
    "copy_to_device": copy_to_device,
    "get_single_element": get_single_element,
    "group_by_reducer": group_by_reducer,
    "map_and_batch": map_and_batch,
    "parallel_interleave": parallel_interleave,
    "prefetch_to_device": prefetch_to_device,
    "sample_from_datasets": Dataset.sample_from_datasets,
    "shuffle_and_repeat": shuffle_and_repeat,
}
