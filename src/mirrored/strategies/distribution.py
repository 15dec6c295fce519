"""Where `mirrored.data` plugs in: strategies offer distributed datasets, the layer above makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Distributor = Callable[[Any, Any, Any], Any]

_distributors: dict[str, Distributor] = {}


def set_distributors(*, dataset: Distributor, from_function: Distributor) -> None:
    """Says who makes distributed datasets, from ``(strategy, dataset or function, options)``; `mirrored.data` does."""
    _distributors.update(dataset=dataset, from_function=from_function)


def distribute_dataset(strategy: Any, dataset: Any, options: Any) -> Any:
    """A distributed dataset from a dataset of global batches."""
    return _distributors["dataset"](strategy, dataset, options)


def distribute_from_function(strategy: Any, dataset_fn: Any, options: Any) -> Any:
    """A distributed dataset from a function that gives a dataset of per-replica batches."""
    return _distributors["from_function"](strategy, dataset_fn, options)
