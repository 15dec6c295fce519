"""The input iterators of TensorFlow 1 strategies: `make_dataset_iterator`, `make_input_fn_iterator`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mirrored.data.distributed import DistributedDataset, DistributedIterator
from mirrored.data.distribution import distribute_dataset, distribute_from_function
from mirrored.data.input_options import InputContext, InputReplicationMode
from mirrored.errors import ArgumentError
from mirrored.strategies import Strategy


class InputIterator:
    """An iterator in TensorFlow 1 style over per-replica values; `initialize` moves it back to the start.

    TensorFlow: `tf.compat.v1.distribute.InputIterator`.
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._reading: DistributedIterator = iter(dataset)

    def initialize(self) -> None:
        """Moves the iterator back to the first element of the dataset."""
        self._reading.close()
        self._reading = iter(self._dataset)

    @property
    def initializer(self) -> None:
        """Always None; reading the attribute moves the iterator back to the start, as `initialize` does."""
        self.initialize()

    def get_next(self) -> Any:
        """Returns the next element of the distributed dataset: per-replica values.

        Raises:
            EndOfDataError: There are no more elements.
        """
        return self._reading.get_next()

    def __iter__(self) -> DistributedIterator:
        return self._reading

    def __next__(self) -> Any:
        return next(self._reading)


def make_dataset_iterator(strategy: Strategy, dataset: Iterable[Any]) -> InputIterator:
    """Returns an `InputIterator` over a dataset whose global batches are split over the replicas.

    Args:
        strategy: The strategy whose replicas receive the elements.
        dataset: The dataset.
    """
    return InputIterator(distribute_dataset(strategy, dataset))


def make_input_fn_iterator(
    strategy: Strategy,
    input_fn: Callable[[InputContext], Any],
    replication_mode: InputReplicationMode | None = None,
) -> InputIterator:
    """Returns an `InputIterator` over the dataset of `input_fn`; each replica gets a different element per step.

    Args:
        strategy: The strategy whose replicas receive the elements.
        input_fn: From an `InputContext` to a dataset of per-replica batches, or to a function that returns one element
            per call.
        replication_mode: Only PER_WORKER, the default, is supported.

    Raises:
        ArgumentError: `replication_mode` is not PER_WORKER.
    """
    if replication_mode not in (None, InputReplicationMode.PER_WORKER):
        raise ArgumentError(
            "Strategy.make_input_fn_iterator",
            found=f"Input replication mode not supported: {replication_mode!r}",
            rule="replication_mode must be PER_WORKER: input_fn is called once per worker",
            remedy="omit replication_mode",
        )

    def as_dataset(context: InputContext) -> Any:
        made = input_fn(context)
        return _Calls(made) if callable(made) and not hasattr(made, "__iter__") else made

    return InputIterator(distribute_from_function(strategy, as_dataset))


class _Calls:
    """An infinite iterable of the results of calling one function repeatedly."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __iter__(self) -> Any:
        while True:
            yield self._function()
