"""Distributes plain datasets that are passed to Keras' loops, if each worker reads its own batches.

In TensorFlow, `fit`, `evaluate` and `predict` distribute a dataset with the `AutoShardPolicy` of its options. If all
workers read the same batches (DATA, AUTO), the loops split those themselves.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from mirrored.data import AutoShardPolicy, DistributedDataset
from mirrored.data.distribution import distribute_own_batches

if TYPE_CHECKING:
    from mirrored.data import Dataset
    from mirrored.strategies import Strategy
    from mirrored.topology.device_assignment import DeviceAssignment

_DISTRIBUTED: Final = "_mirrored_distributed"  # an attribute of a dataset


@dataclasses.dataclass(frozen=True)
class _Distributed:
    """The distributed form of a dataset for the devices of one strategy; not copied or pickled with the dataset.

    The program may change the policy in place: ``dataset.options().experimental_distribute.auto_shard_policy = ...``.
    """

    device_assignment: DeviceAssignment | None = None
    policy: AutoShardPolicy | None = None
    dataset: DistributedDataset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Distributed, ()


def own_or_same(
    dataset: Dataset | DistributedDataset, strategy: Strategy | None, called: str
) -> Dataset | DistributedDataset:
    """Returns a distributed dataset if each worker reads its own batches of `dataset`, otherwise `dataset` itself.

    Later calls return the same distributed dataset, unless the policy has changed: its copies of the operations have
    caches and pass counters, which continue in the next `fit`.

    Args:
        dataset: The dataset that the user passed to a method of a model.
        strategy: The strategy of the model; None if it has none.
        called: What the user called, for messages.

    Raises:
        ArgumentError: The data cannot be divided among the workers.
        StructureError: The dataset is not batched.
    """
    device_assignment = None if strategy is None else strategy.device_assignment
    if strategy is None or device_assignment is None or not device_assignment.spans_processes:
        return dataset
    if isinstance(dataset, DistributedDataset):
        return dataset
    known: _Distributed | None = vars(dataset).get(_DISTRIBUTED)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if known is None or known.device_assignment is not device_assignment or known.policy is not policy:
        distributed = distribute_own_batches(strategy, dataset, called)
        if distributed is None:
            return dataset
        known = vars(dataset)[_DISTRIBUTED] = _Distributed(device_assignment, policy, distributed)
    return dataset if known.dataset is None else known.dataset
