"""TensorFlow 1 methods of strategies that TensorFlow 2 strategies still have."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirrored.errors import ArgumentError
from mirrored.runtime import hooks
from mirrored.strategies.checks import refuse_in_replica

_WORKERS = ("chief", "master", "worker")


class OlderNames(abc.ABC):
    """Mixin of `Strategy` with TensorFlow 1 methods, each implemented by its current equivalent."""

    @abc.abstractmethod
    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None, options: Any = None) -> Any:
        """Calls a function on every replica; see `Strategy.run`."""

    @abc.abstractmethod
    def experimental_local_results(self, value: object) -> tuple[Any, ...]:
        """Returns a tuple with the values of this process's replicas in a distributed value."""

    def group(self, value: object, name: str | None = None) -> None:
        """Does nothing: assignments need not be grouped into one operation, unlike in TensorFlow 1.

        The assignments of `value` have run, or are part of the traced function.

        TensorFlow: returns an operation to run in a session, or None when executing eagerly.
        """
        del value, name

    def unwrap(self, value: object) -> tuple[Any, ...]:
        """Returns the values of the replicas in a distributed value, exactly like `experimental_local_results`."""
        return self.experimental_local_results(value)

    def make_dataset_iterator(self, dataset: object) -> Any:
        """Returns an iterator that splits each global batch of a dataset over the replicas, as in TensorFlow 1.

        Context: cross-replica. TensorFlow: the same; new programs write `iter(experimental_distribute_dataset(...))`.
        """
        refuse_in_replica("make_dataset_iterator")
        return hooks.make_dataset_iterator(self, dataset)

    def make_input_fn_iterator(self, input_fn: Callable[[Any], Any], replication_mode: object = None) -> Any:
        """Returns an iterator over the dataset that `input_fn` returns; each replica gets a different element.

        Context: cross-replica.

        Args:
            input_fn: A function from an `InputContext` to a dataset, or to a function that returns one element each
                time.
            replication_mode: `InputReplicationMode.PER_WORKER`, the default.

        Raises:
            ArgumentError: Another replication mode is requested.

        TensorFlow: the same; new programs write `iter(distribute_datasets_from_function(...))`.
        """
        refuse_in_replica("make_input_fn_iterator")
        return hooks.make_input_fn_iterator(self, input_fn, replication_mode)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: Callable[[Any], Any], options: object = None
    ) -> Any:
        """Returns a distributed dataset for `dataset_fn`; the older name of `distribute_datasets_from_function`."""
        refuse_in_replica("experimental_distribute_datasets_from_function")
        return hooks.distribute_from_function(self, dataset_fn, options)

    def experimental_run(self, fn: Callable[..., Any], input_iterator: Any = None) -> Any:
        """Calls `fn` on every replica, with the next element of `input_iterator` if one is given.

        Context: cross-replica.

        Raises:
            EndOfDataError: The iterator has ended.
        """
        return self.run(fn, args=() if input_iterator is None else (input_iterator.get_next(),))

    def configure(
        self,
        session_config: Any = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Has no effect for a TensorFlow 1 cluster configuration with one worker; raises an error for several workers.

        Raises:
            ArgumentError: The cluster has several workers.
        """
        if cluster_spec is None:
            return
        jobs = cluster_spec if isinstance(cluster_spec, Mapping) else cluster_spec.as_dict()
        workers = sum(1 if isinstance(tasks, str) else len(tasks) for job, tasks in jobs.items() if job in _WORKERS)
        if workers > 1:
            raise ArgumentError(
                "Strategy.configure",
                found=f"the cluster has {workers} workers",
                rule="this strategy runs in one process; with several workers, each worker must run the program itself",
                remedy="start one process per worker, with MultiWorkerMirroredStrategy in each",
            )

    def update_config_proto(self, config_proto: object) -> Any:
        """Returns a copy of a TensorFlow 1 session configuration in which `isolate_session_state` is set.

        An object without the field `isolate_session_state` is returned unchanged. Has no other effect.
        """
        if not hasattr(config_proto, "isolate_session_state"):
            return config_proto
        updated = copy.deepcopy(config_proto)
        updated.isolate_session_state = True
        return updated
