"""Where `mirrored.data` plugs in: strategies offer distributed datasets, the layer above makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Distributor = Callable[[Any, Any, Any], Any]
"""From a strategy, a dataset or function, and options."""

_distributors: dict[str, Distributor] = {}


def set_distributors(
    *,
    dataset: Distributor,
    from_function: Distributor,
    dataset_iterator: Distributor,
    input_fn_iterator: Distributor,
) -> None:
    """Says who makes distributed datasets, and the iterators of older programs; `mirrored.data` does."""
    _distributors.update(
        dataset=dataset,
        from_function=from_function,
        dataset_iterator=dataset_iterator,
        input_fn_iterator=input_fn_iterator,
    )


def distribute_dataset(strategy: Any, dataset: Any, options: Any) -> Any:
    """A distributed dataset from a dataset of global batches."""
    return _distributors["dataset"](strategy, dataset, options)


def distribute_from_function(strategy: Any, dataset_fn: Any, options: Any) -> Any:
    """A distributed dataset from a function that gives a dataset of per-replica batches."""
    return _distributors["from_function"](strategy, dataset_fn, options)


def make_dataset_iterator(strategy: Any, dataset: Any, per_replica_batches: bool) -> Any:
    """An iterator that can begin again, over a dataset."""
    return _distributors["dataset_iterator"](strategy, dataset, per_replica_batches)


def make_input_fn_iterator(strategy: Any, input_fn: Any, replication_mode: Any) -> Any:
    """An iterator that can begin again, over what a function gives."""
    return _distributors["input_fn_iterator"](strategy, input_fn, replication_mode)
