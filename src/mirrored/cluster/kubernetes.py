"""The class `KubernetesClusterResolver`, which finds the workers of a job among Kubernetes pods."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mirrored.cluster.resolver import AddressResolver
from mirrored.cluster.spec import ClusterSpec
from mirrored.errors import AllocationError, ArgumentError
from mirrored.extras import load


class ExecutableLocation(enum.Enum):
    """Enum: whether the program runs inside or outside of the Kubernetes cluster.

    Example:
        >>> from mirrored.cluster import ExecutableLocation
        >>> [one.name for one in ExecutableLocation]
        ['WITHIN_CLUSTER', 'OFF_CLUSTER']

    TensorFlow: the enum of this name in the module of `KubernetesClusterResolver`.
    """

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class PodClient(Protocol):
    """Protocol of the Kubernetes API client `kubernetes.client.CoreV1Api`, as `KubernetesClusterResolver` uses it."""

    def list_pod_for_all_namespaces(self, *, label_selector: str) -> Any:
        """Returns the Kubernetes pods with a given label."""
        ...


class KubernetesClusterResolver(AddressResolver):
    """A cluster resolver whose tasks are the running Kubernetes pods with given labels, sorted by name.

    Every call queries Kubernetes again.

    The resolver cannot know which pod this process runs in: set `task_type` and `task_id`.

    Args:
        job_to_label_mapping: ``{"worker": ["job-name=a", "job-name=b"]}``.
            Default: ``{"worker": ["job-name=tensorflow"]}``.
        tf_server_port: The port of every task.
        rpc_layer: The protocol prefix of addresses in `master`.
        override_client: A `kubernetes.client.CoreV1Api` with its credentials loaded, or an object with its method
            `list_pod_for_all_namespaces`. Default: a new client.
        executable_location: Whether this program runs inside or outside of the Kubernetes cluster.

    Raises:
        ArgumentError: `executable_location` is not an `ExecutableLocation`.
        MissingExtraError: The package kubernetes is not installed, and no client is given.

    Example:
        >>> from types import SimpleNamespace as Namespace
        >>> from mirrored.cluster import KubernetesClusterResolver
        >>> class Client:  # stands for kubernetes.client.CoreV1Api()
        ...     def list_pod_for_all_namespaces(self, *, label_selector):
        ...         status = Namespace(phase="Running", host_ip="10.0.0.1")
        ...         return Namespace(items=[Namespace(metadata=Namespace(name="train-0"), status=status)])
        >>> KubernetesClusterResolver({"worker": ["job-name=train"]}, override_client=Client()).cluster_spec()
        ClusterSpec({'worker': ['10.0.0.1:8470']})

    TensorFlow: `tf.distribute.cluster_resolver.KubernetesClusterResolver`.
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: PodClient | None = None,
        executable_location: ExecutableLocation = ExecutableLocation.WITHIN_CLUSTER,
    ) -> None:
        if not isinstance(executable_location, ExecutableLocation):
            raise ArgumentError(
                "KubernetesClusterResolver",
                found=f"executable_location={executable_location!r}",
                rule="executable_location must be a KubernetesExecutableLocation",
                remedy="pass WITHIN_CLUSTER in a pod, otherwise OFF_CLUSTER",
            )
        self._labels = dict(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        self._port, self._rpc_layer = tf_server_port, rpc_layer
        self._client = _client(executable_location) if override_client is None else override_client

    def cluster_spec(self) -> ClusterSpec:
        """Returns the addresses of the cluster's pods, by job name.

        Raises:
            AllocationError: A pod is not running.
        """
        return ClusterSpec(
            {job: [one for label in labels for one in self._pods(label)] for job, labels in self._labels.items()}
        )

    def _pods(self, label: str) -> list[str]:
        found = self._client.list_pod_for_all_namespaces(label_selector=label)
        addresses = []
        for pod in sorted(found.items, key=lambda one: str(one.metadata.name)):
            if pod.status.phase != "Running":
                raise AllocationError(
                    "KubernetesClusterResolver.cluster_spec",
                    found=f'Pod "{pod.metadata.name}" is not running; phase: "{pod.status.phase}"',
                    rule=f"all pods with the label {label} must be running",
                    remedy="wait until the pod runs, or select the pods by a label that only running pods have",
                )
            addresses.append(f"{pod.status.host_ip}:{self._port}")
        return addresses


def _client(location: ExecutableLocation) -> Any:
    config, client = (
        load(
            f"kubernetes.{module}",
            called="KubernetesClusterResolver",
            extra="kubernetes",
            otherwise="give override_client",
        )
        for module in ("config", "client")
    )
    if location is ExecutableLocation.OFF_CLUSTER:
        config.load_kube_config()
    else:
        config.load_incluster_config()
    return client.CoreV1Api()
