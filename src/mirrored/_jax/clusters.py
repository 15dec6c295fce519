"""JAX's detection of the cluster in which a process was started: Open MPI, Slurm, Kubernetes, Cloud TPU.

Supports JAX 0.10 to 0.12: `jax._src.clusters.ClusterEnv` is the class that `jax.distributed.initialize()` uses.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from typing import Any

from jax._src import clusters as _clusters


@dataclasses.dataclass(frozen=True)
class Detected:
    """A cluster that JAX has detected.

    Attributes:
        name: JAX's name of the detection method; the empty string if it has none.
        coordinator: ``host:port`` of process 0.
        num_processes: Number of processes, at least 2.
        process_id: Index of this process.
        restricts_devices: Whether the method assigns each process of a host one of its accelerators.
    """

    name: str
    coordinator: str
    num_processes: int
    process_id: int
    restricts_devices: bool


class DetectionError(Exception):
    """The environment belongs to a cluster, but JAX cannot read its description."""


def detect(timeout_seconds: int) -> Detected | None:
    """Returns the cluster that JAX detects; None if it detects none, or one of a single process.

    Args:
        timeout_seconds: How long to wait until the coordinator's host has an address (Kubernetes, Cloud TPU).

    Raises:
        DetectionError: The description of the cluster cannot be read.
    """
    name = ""
    try:
        environment = next((one for one in _methods() if one.is_env_present()), None)
        if environment is None:
            return None
        name = environment.__name__
        count = int(environment.get_process_count())
        if count <= 1:
            return None
        coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS") or environment.get_coordinator_address(
            timeout_secs=timeout_seconds, override_coordinator_port=os.environ.get("JAX_COORDINATOR_PORT")
        )
        restricts = environment.get_local_process_id() is not None
        return Detected(environment.name, coordinator, count, int(environment.get_process_id()), restricts)
    except Exception as error:  # the methods raise exceptions of many types
        raise DetectionError(f"{name or 'JAX'}: {type(error).__name__}: {error}"[:500]) from error


def _methods() -> list[Any]:
    """Returns the detection methods that JAX tries by default.

    Kubernetes is omitted outside an indexed job, where it does not describe the other processes, and without its Python
    package, where JAX's method only warns.
    """
    methods = [one for one in _clusters.ClusterEnv._cluster_types if not one.opt_in_only_method]
    if "JOB_COMPLETION_INDEX" in os.environ and importlib.util.find_spec("kubernetes") is not None:
        return methods
    return [one for one in methods if one.__name__ != "K8sCluster"]
