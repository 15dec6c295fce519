"""Computes the logs of an overridden ``train_step(self, data)`` from metric variables of all replicas.

Each replica returns the results of its own components, and their mean is not the result over the batch of all replicas
unless the metric is a mean over equally many examples (recall, AUC, uneven batches). The logs therefore take the result
that the metric has after the step, outside of the replicas, as `fit` does at the end of an epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax

from mirrored._blocks import contextmanager
from mirrored._typing import PyTree
from mirrored.values.distributed_values import DistributedValues

if TYPE_CHECKING:
    from keras import Model
    from keras.metrics import Metric


class NotedResults:
    """Records the results of metrics in each replica, to recognize them among the logs of a step.

    A log is a metric's result if, in every replica, it is an array of the result: the same Python object.
    """

    def __init__(self) -> None:
        self._returned: list[tuple[Metric, int, Any]] = []  # a metric, the index of an array in its result, the array
        self._logs: dict[str, tuple[Metric, int] | None] = {}

    def note(self, metric: Metric, result: PyTree) -> None:
        """Records the arrays that a metric has returned as its result.

        Logs of the step that are the same arrays are recognized as this result.
        """
        self._returned += [(metric, index, leaf) for index, leaf in enumerate(jax.tree.leaves(result))]

    def watching(self, step: Callable[[PyTree], Any]) -> Callable[[PyTree], Any]:
        """Wraps a replica's step to find out which of its logs are results of metrics."""

        @functools.wraps(step)
        def watched(batch: PyTree) -> Any:
            logs = step(batch)
            for name, value in logs.items() if isinstance(logs, dict) else ():
                source = self._source_of(value)
                self._logs[name] = source if self._logs.get(name, source) == source else None
            return logs

        return watched

    def _source_of(self, value: object) -> tuple[Metric, int] | None:
        return next(((metric, index) for metric, index, result in self._returned if result is value), None)

    def aggregated(self, logs: PyTree) -> PyTree:
        """Returns the logs with each metric result replaced by the metric's result over all replicas.

        Context: cross-replica.
        """
        if not any(isinstance(leaf, DistributedValues) for leaf in jax.tree.leaves(logs, is_leaf=_is_distributed)):
            return logs  # one replica
        results: dict[int, list[Any]] = {}
        for name, source in self._logs.items():
            if source is not None:
                metric, index = source
                if id(metric) not in results:
                    results[id(metric)] = jax.tree.leaves(metric.result())
                logs[name] = results[id(metric)][index]
        return logs


def _is_distributed(value: object) -> bool:
    return isinstance(value, DistributedValues)


@contextmanager
def noted_results(model: Model) -> Iterator[NotedResults]:
    """Context manager that records the results of a model's metrics, by wrapping their `result` methods."""
    noted = NotedResults()
    wrapped = [metric for metric in model.metrics if "result" not in vars(metric)]
    try:
        for metric in wrapped:
            vars(metric)["result"] = _noting(metric, noted)
        yield noted
    finally:
        try:
            _unwrap(wrapped)
        except BaseException:  # an interrupt, such as Ctrl-C
            _unwrap(wrapped)
            raise


def _unwrap(metrics: Sequence[Metric]) -> None:
    for metric in metrics:
        vars(metric).pop("result", None)


def _noting(metric: Metric, noted: NotedResults) -> Callable[[], Any]:
    result = metric.result

    @functools.wraps(result)
    def noting() -> Any:
        values = result()
        noted.note(metric, values)
        return values

    return noting
