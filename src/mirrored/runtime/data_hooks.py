"""Hooks for `mirrored.data`: strategies offer distributed datasets, and the layer above registers constructors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Distributor = Callable[[Any, Any, Any], Any]
"""Creates a distributed dataset or iterator from a strategy, a dataset or function, and options."""

_distributors: dict[str, Distributor] = {}


def set_distributors(
    *,
    dataset: Distributor,
    from_function: Distributor,
    dataset_iterator: Distributor,
    input_fn_iterator: Distributor,
) -> None:
    """Registers the constructors of distributed datasets and of TensorFlow 1 iterators. Called by `mirrored.data`."""
    _distributors.update(
        dataset=dataset,
        from_function=from_function,
        dataset_iterator=dataset_iterator,
        input_fn_iterator=input_fn_iterator,
    )


def distribute_dataset(strategy: Any, dataset: Any, options: Any) -> Any:
    """Returns a distributed dataset that splits the global batches of a dataset."""
    return _distributors["dataset"](strategy, dataset, options)


def distribute_from_function(strategy: Any, dataset_fn: Any, options: Any) -> Any:
    """Returns a distributed dataset from a function that returns a dataset of per-replica batches."""
    return _distributors["from_function"](strategy, dataset_fn, options)


def make_dataset_iterator(strategy: Any, dataset: Any, per_replica_batches: bool) -> Any:
    """Returns a reinitializable iterator over a dataset."""
    return _distributors["dataset_iterator"](strategy, dataset, per_replica_batches)


def make_input_fn_iterator(strategy: Any, input_fn: Any, replication_mode: Any) -> Any:
    """Returns a reinitializable iterator over the dataset that a function returns."""
    return _distributors["input_fn_iterator"](strategy, input_fn, replication_mode)
