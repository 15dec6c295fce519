"""`ClusterResolver`: where a process learns which tasks there are and which of them it is."""

from __future__ import annotations

import abc
from collections import Counter
from typing import Any

import jax

from mirrored.cluster.spec import ClusterSpec


def master_url(address: str, rpc_layer: str | None) -> str:
    """``grpc://host:port``, or the address alone."""
    return f"{rpc_layer}://{address}" if rpc_layer else address


class ClusterResolver(abc.ABC):
    """Where a process learns which tasks there are and which of them it is.

    `task_type`, `task_id` and `rpc_layer` may be set, and then say so instead of what was found.

    TensorFlow: `tf.distribute.cluster_resolver.ClusterResolver`.
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The tasks of the cluster, as they are now.

        Raises:
            ClusterError: They cannot be found out.
        """

    @abc.abstractmethod
    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task (by default of this one), with the layer before it; empty if there is only one.

        Raises:
            ClusterError: There is no such task.
        """

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """How many accelerators this process has, by kind: ``{"GPU": 8}``.

        Without an answer of the resolver's own it asks JAX, which opens the devices: `jax.distributed.initialize` (and
        so `MultiWorkerMirroredStrategy`) must come before.
        """
        del task_type, task_id, config_proto
        kinds = Counter(device.platform.upper() for device in jax.local_devices())
        return {kind: count for kind, count in kinds.items() if kind != "CPU"}

    @property
    def environment(self) -> str | None:
        """Accepted for TensorFlow's sake: empty outside of Google."""
        return ""

    @property
    def task_type(self) -> str | None:
        """The job of this task: ``"chief"``, ``"worker"``, ...; None if it is not known."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this task in its job; None if it is not known."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """What stands before addresses in `master`."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer
