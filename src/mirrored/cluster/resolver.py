"""The class `ClusterResolver`: the interface by which a process learns the cluster's tasks and its own role."""

from __future__ import annotations

import abc
from collections import Counter

import jax

from mirrored.cluster.spec import ClusterSpec


def master_url(address: str, rpc_layer: str | None) -> str:
    """Returns ``grpc://host:port`` for an address, or the address alone if `rpc_layer` is empty."""
    return f"{rpc_layer}://{address}" if rpc_layer else address


class ClusterResolver(abc.ABC):
    """Interface to the tasks of a cluster: lists their addresses, and says which task the current process is.

    Setting `task_type`, `task_id` or `rpc_layer` overrides the resolved value.

    Example:
        >>> from mirrored.cluster import ClusterResolver, ClusterSpec
        >>> class TwoHosts(ClusterResolver):
        ...     def cluster_spec(self):
        ...         return ClusterSpec({"worker": ["a:1", "b:1"]})
        ...
        ...     def master(self, task_type=None, task_id=None, rpc_layer=None):
        ...         return f"grpc://{self.cluster_spec().task_address('worker', task_id or 0)}"
        >>> resolver = TwoHosts()
        >>> resolver.task_type, resolver.task_id = "worker", 1
        >>> resolver.master(task_id=1)
        'grpc://b:1'

    TensorFlow: `tf.distribute.cluster_resolver.ClusterResolver`.
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks of the cluster and their addresses.

        Raises:
            ClusterError: The tasks cannot be determined.
        """

    @abc.abstractmethod
    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns a task's address (by default this process's), as ``grpc://host:port``; "" if there is only one task.

        Raises:
            ClusterError: There is no such task.
        """

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Returns the number of accelerators of this process, by kind, as in ``{"GPU": 8}``.

        A resolver without information of its own queries JAX, which initializes the devices: call
        `jax.distributed.initialize` (or create the `MultiWorkerMirroredStrategy`) first.
        """
        del task_type, task_id, config_proto
        kinds = Counter(device.platform.upper() for device in jax.local_devices())
        return {kind: count for kind, count in kinds.items() if kind != "CPU"}

    @property
    def environment(self) -> str | None:
        """Always an empty string; exists for compatibility with TensorFlow.

        TensorFlow has other values only inside of Google.
        """
        return ""

    @property
    def task_type(self) -> str | None:
        """The job name of this process's task: ``"chief"``, ``"worker"``, ...; None if not known."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process's task within its job; None if not known."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol prefix, such as "grpc", of the addresses that `master` returns."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


class AddressResolver(ClusterResolver):
    """Base class of cluster resolvers that find the address of every task in their `cluster_spec`.

    So `master` returns an address even if there is only one task.
    """

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns a task's address (default: this process's); "" if this process's task is not known.

        Raises:
            ClusterError: There is no such task.
        """
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            return ""
        return master_url(self.cluster_spec().task_address(job, index), rpc_layer or self._rpc_layer)
