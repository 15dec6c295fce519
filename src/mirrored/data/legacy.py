"""The input iterators of TensorFlow 1 strategies: `make_dataset_iterator`, `make_input_fn_iterator`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrored.data.distributed import DistributedDataset, DistributedIterator
from mirrored.data.distribution import distribute_dataset, distribute_from_function
from mirrored.data.input_options import InputContext, InputReplicationMode
from mirrored.errors import ArgumentError


class InputIterator:
    """Gives per-replica elements one after the other; `initialize` begins again.

    TensorFlow: `tf.compat.v1.distribute.InputIterator`.
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._reading: DistributedIterator = iter(dataset)

    def initialize(self) -> None:
        """Begins again with the first element."""
        self._reading.close()
        self._reading = iter(self._dataset)

    def get_next(self) -> Any:
        """The next element.

        Raises:
            EndOfDataError: The data has ended.
        """
        return self._reading.get_next()

    def __iter__(self) -> DistributedIterator:
        return self._reading

    def __next__(self) -> Any:
        return next(self._reading)


def make_dataset_iterator(strategy: Any, dataset: Any, per_replica_batches: bool = False) -> InputIterator:
    """Iterates over a dataset on all replicas.

    Args:
        strategy: Whose replicas.
        dataset: The dataset.
        per_replica_batches: Whether a batch goes to one replica whole, as in `tf.contrib.distribute`; else it is a
            global batch and is split.
    """
    if per_replica_batches:
        return InputIterator(distribute_from_function(strategy, lambda _: dataset))
    return InputIterator(distribute_dataset(strategy, dataset))


def make_input_fn_iterator(
    strategy: Any,
    input_fn: Callable[[InputContext], Any],
    replication_mode: InputReplicationMode | None = None,
) -> InputIterator:
    """Iterates over what `input_fn` gives: consecutive elements go to consecutive replicas.

    Args:
        strategy: Whose replicas.
        input_fn: From an `InputContext` to a dataset of per-replica batches, or to a function that gives one element
            per call.
        replication_mode: PER_WORKER only, the default.

    Raises:
        ArgumentError: Another replication mode.
    """
    if replication_mode not in (None, InputReplicationMode.PER_WORKER):
        raise ArgumentError(
            "Strategy.make_input_fn_iterator",
            found=f"Input replication mode not supported: {replication_mode!r}",
            rule="input_fn is called once per worker",
            remedy="leave replication_mode out",
        )

    def as_dataset(context: InputContext) -> Any:
        made = input_fn(context)
        return _Calls(made) if callable(made) and not hasattr(made, "__iter__") else made

    return InputIterator(distribute_from_function(strategy, as_dataset))


class _Calls:
    """What a function gives, call after call, without end."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __iter__(self) -> Any:
        while True:
            yield self._function()
