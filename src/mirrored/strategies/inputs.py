"""The input methods of a strategy: distributed datasets, and per-replica values from a function."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from mirrored._jax.arrays import as_array, is_host_dtype, owned
from mirrored._jax.placement import movable
from mirrored._jax.traces import Tracer
from mirrored.collectives.host_allgather import host_allgather
from mirrored.runtime import hooks
from mirrored.strategies.checks import refuse_in_replica
from mirrored.values import structures
from mirrored.values.distributed_values import PerReplica

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment


# `ValueContext`: the argument of a function that creates per-replica values.


class ValueContext:
    """Argument of a function that creates one value per replica: the replica's index and the number of replicas.

    Attributes:
        replica_id_in_sync_group: The index of the replica.
        num_replicas_in_sync: The number of replicas.

    TensorFlow: `tf.distribute.experimental.ValueContext`.
    """

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        self.replica_id_in_sync_group = replica_id_in_sync_group
        self.num_replicas_in_sync = num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"tf.distribute.ValueContext(replica id {self.replica_id_in_sync_group},  "
            f"total replicas in sync: {self.num_replicas_in_sync})"
        )


class DistributesInput(abc.ABC):
    """Mixin of `Strategy` with the methods that distribute datasets and values over the replicas."""

    @property
    @abc.abstractmethod
    def device_assignment(self) -> DeviceAssignment | None:
        """The assignment of replicas to devices; None for the default strategy."""

    @property
    @abc.abstractmethod
    def num_replicas_in_sync(self) -> int:
        """The total number of replicas of the strategy."""

    def experimental_distribute_dataset(self, dataset: object, options: object = None) -> Any:
        """Returns a distributed dataset that splits each global batch of `dataset` into per-replica batches.

        Context: cross-replica.

        Args:
            dataset: Any re-iterable of batches (pytrees of arrays with a common first dimension). Batch examples
                first: an unbatched feature vector looks like a batch of scalars, so its features would be split over
                the replicas.
            options: See `mirrored.InputOptions`.

        Returns:
            A re-iterable of per-replica batches. A batch of m rows over n replicas gives ceil(m / n) rows each; the
            last replicas get fewer, or none.

        Raises:
            ArgumentError: `dataset` is not a dataset or can be read only once, or an option has no effect here.
            ContextError: The call is inside a replica.
            StructureError: While reading: the dataset is not batched.

        Example:
            >>> import mirrored as mr
            >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
            >>> dataset = strategy.experimental_distribute_dataset(mr.data.Dataset.range(6).batch(4))
            >>> [[part.tolist() for part in batch.values] for batch in dataset]
            [[[0, 1], [2, 3]], [[4], [5]]]

        TensorFlow: `tf.distribute.Strategy.experimental_distribute_dataset`.
        """
        refuse_in_replica("experimental_distribute_dataset")
        return hooks.distribute_dataset(self, dataset, options)

    distribute_dataset = experimental_distribute_dataset

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: object = None) -> Any:
        """Returns a distributed dataset whose per-replica batches are the elements of datasets from `dataset_fn`.

        Context: cross-replica.

        Args:
            dataset_fn: A function from an `InputContext` to a dataset of per-replica batches. It is called once per
                process; in the mode `InputReplicationMode.PER_REPLICA` once per replica.
            options: See `mirrored.InputOptions`.

        Returns:
            A re-iterable of per-replica batches.

        Raises:
            ArgumentError: `dataset_fn` does not return a dataset, or an option has no effect here.
            ContextError: The call is inside a replica.

        TensorFlow: `tf.distribute.Strategy.distribute_datasets_from_function`.
        """
        refuse_in_replica("distribute_datasets_from_function")
        return hooks.distribute_from_function(self, dataset_fn, options)

    def experimental_distribute_values_from_function(self, value_fn: Callable[[Any], Any]) -> Any:
        """Returns a per-replica value whose component for each replica is ``value_fn(context)``.

        Context: cross-replica. Each worker creates the components of its own replicas.

        Args:
            value_fn: A function from a context with `replica_id_in_sync_group` and `num_replicas_in_sync` to a value or
                structure. A value that is None for all replicas is None.

        Raises:
            ContextError: The call is inside a replica.

        TensorFlow: `tf.distribute.Strategy.experimental_distribute_values_from_function`.
        """
        refuse_in_replica("experimental_distribute_values_from_function")
        device_assignment = self.device_assignment
        replicas = (
            range(self.num_replicas_in_sync) if device_assignment is None else device_assignment.addressable_replicas
        )
        contexts = [ValueContext(replica, self.num_replicas_in_sync) for replica in replicas]
        # Each result is copied before the next call, because the function may refill the same array for each replica.
        results = [structures.map_leaves(owned, value_fn(context)) for context in contexts]
        columns, treedef = structures.transpose(results, "Strategy.experimental_distribute_values_from_function")
        on_devices = [_on_devices(column, device_assignment) for column in columns]
        ragged, absent = False, [all(one is None for one in column) for column in on_devices]
        if device_assignment is not None and device_assignment.spans_processes:
            ragged, absent = compared_across(on_devices)
        return treedef.unflatten(
            [
                None if is_absent else PerReplica.of_components(column, device_assignment, is_ragged=ragged)
                for column, is_absent in zip(on_devices, absent, strict=True)
            ]
        )

    distribute_values_from_function = experimental_distribute_values_from_function


def compared_across(columns: Sequence[Sequence[Any]]) -> tuple[bool, list[bool]]:
    """Compares the values of the replicas of all workers.

    Returns:
        Whether arrays of different replicas, on this or other workers, differ in shape; and for each column whether it
        is None on all of them.
    """
    own = [sorted({"None" if one is None else str(np.shape(one)) for one in column}) for column in columns]
    everyone = host_allgather("per-replica values", "the shapes of a per-replica value", own)
    is_ragged = any(shapes != own for shapes in everyone) or any(len(shapes) > 1 for shapes in own)
    return is_ragged, [all(kinds == ["None"] for kinds in of_all) for of_all in zip(*everyone, strict=not is_ragged)]


def _on_devices(column: Sequence[Any], device_assignment: DeviceAssignment | None) -> list[Any]:
    if device_assignment is None or any(isinstance(one, Tracer) for one in column):
        return list(column)
    arrays = [as_array(one) if _is_number(one) else one for one in column]
    return [
        movable(jax.device_put(one, device_assignment.device_of(replica))) if isinstance(one, jax.Array) else one
        for replica, one in zip(device_assignment.addressable_replicas, arrays, strict=True)
    ]


def _is_number(value: object) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return not is_host_dtype(value.dtype)
    return isinstance(value, (bool, int, float, complex, list))
