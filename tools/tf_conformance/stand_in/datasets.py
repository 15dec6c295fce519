"""TensorFlow's private constructors of distributed datasets, by the public methods that do the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import mirrored.tf as tf


class InputWorkers:
    """The devices of the workers, which the public methods take from the strategy.

    Args:
        worker_device_pairs: The input device and the devices of every worker.
        **ignored: TensorFlow's further options.
    """

    def __init__(self, worker_device_pairs: Any, **ignored: object) -> None:
        self.num_workers = len(worker_device_pairs)


def distributed_dataset(
    input_workers: InputWorkers,
    strategy: tf.distribute.Strategy,
    dataset: Any = None,
    num_replicas_in_sync: int | None = None,
    input_context: Any = None,
    **ignored: object,
) -> Any:
    """A distributed dataset.

    Args:
        input_workers: Ignored.
        strategy: The strategy.
        dataset: The dataset.
        num_replicas_in_sync: The number of replicas among which batches are divided; None gives every replica an
            element of its own.
        input_context: Ignored: the strategy knows it.
        **ignored: TensorFlow's further options.
    """
    if num_replicas_in_sync is None:
        return strategy.distribute_datasets_from_function(lambda context: dataset)
    return strategy.experimental_distribute_dataset(dataset)


def get_distributed_dataset(
    dataset: Any, input_workers: InputWorkers, strategy: tf.distribute.Strategy, **kwargs: Any
) -> Any:
    """A distributed dataset, with the arguments of `input_util.get_distributed_dataset`.

    Args:
        dataset: The dataset.
        input_workers: Ignored.
        strategy: The strategy.
        **kwargs: Further arguments of `distributed_dataset`.
    """
    return distributed_dataset(input_workers, strategy, dataset, **kwargs)


@dataclasses.dataclass(frozen=True)
class IteratorSpec:
    """What tests ask of the private type spec of a distributed dataset or iterator, by its public `element_spec`."""

    _owner: Any

    @property
    def _input_workers(self) -> object:
        return self._owner._input_workers

    @property
    def _element_spec(self) -> Any:
        return self._owner.element_spec

    def _to_components(self, owner: Any) -> list[Any]:
        return [owner]

    def _from_components(self, components: list[Any]) -> Any:
        return components[0]


def id_in_cluster(cluster_spec: Any, task_type: str, task_id: int) -> int:
    """The number of a worker among all.

    Args:
        cluster_spec: The cluster.
        task_type: The worker's job.
        task_id: Its number in the job.
    """
    return task_id if task_type == "chief" else task_id + len(cluster_spec.as_dict().get("chief", []))


def worker_count(cluster_spec: Any, task_type: str) -> int:
    """The number of workers.

    Args:
        cluster_spec: The cluster.
        task_type: Ignored.
    """
    jobs = cluster_spec.as_dict()
    return sum(len(jobs.get(job, [])) for job in ("chief", "worker"))
