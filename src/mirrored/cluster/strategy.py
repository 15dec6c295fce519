"""`MultiWorkerMirroredStrategy`, as far as one worker goes."""

from __future__ import annotations

from typing import Any

import jax

from mirrored import config
from mirrored.cluster.resolver import ClusterResolver
from mirrored.cluster.tasks import process_of
from mirrored.cluster.tf_config import TFConfigClusterResolver
from mirrored.errors import ContextError
from mirrored.strategies import MirroredStrategy


class MultiWorkerMirroredStrategy(MirroredStrategy):
    """Synchronous training on the devices of all workers of a cluster. So far: of a cluster of one.

    With one task it behaves as `MirroredStrategy` over this process's accelerators; where there are none, over one CPU
    device, as in TensorFlow.

    Args:
        cluster_resolver: Says which tasks there are, and which of them this is. Default: from ``TF_CONFIG``.
        communication_options: Accepted for TensorFlow's sake: the collectives are JAX's.

    Raises:
        ClusterError: The cluster's description is malformed.
        ContextError: The cluster has several workers: that is not there yet.

    Example:
        >>> MultiWorkerMirroredStrategy().num_replicas_in_sync >= 1
        True

    TensorFlow: `tf.distribute.MultiWorkerMirroredStrategy`.
    """

    def __init__(self, cluster_resolver: ClusterResolver | None = None, communication_options: Any = None) -> None:
        resolver = TFConfigClusterResolver() if cluster_resolver is None else cluster_resolver
        process = process_of(resolver)
        if process is not None and process.num_processes > 1:
            raise ContextError(
                "MultiWorkerMirroredStrategy",
                found=f"a cluster of {process.num_processes} workers ({', '.join(process.addresses)})",
                rule="training over several processes is not there yet",
                remedy="train on one worker, with all its devices: MirroredStrategy()",
            )
        super().__init__(["CPU:0"] if _only_cpus() else None)
        self._cluster_resolver = resolver

    @property
    def cluster_resolver(self) -> Any:
        """Which tasks there are."""
        return self._cluster_resolver


def _only_cpus() -> bool:
    return jax.default_backend() == "cpu" and config.virtual_kind() == "CPU"
