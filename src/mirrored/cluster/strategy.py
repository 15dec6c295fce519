"""`MultiWorkerMirroredStrategy`: the replicas of all workers of a cluster."""

from __future__ import annotations

import os
from typing import Any

import jax

from mirrored import config, watch
from mirrored.cluster.fingerprint import check_fingerprints, fingerprint
from mirrored.cluster.joining import heartbeat_seconds, join
from mirrored.cluster.resolver import ClusterResolver
from mirrored.cluster.tasks import Process, process_of
from mirrored.cluster.tf_config import TFConfigClusterResolver
from mirrored.errors import DeviceError
from mirrored.replicas.agreement import agree
from mirrored.replicas.devices import kind_of
from mirrored.strategies import MirroredStrategy


class MultiWorkerMirroredStrategy(MirroredStrategy):
    """Synchronous training on the devices of all workers of a cluster: one program, started once per worker.

    The replicas are those of all workers' devices, in the order of tasks (the chief, then the workers), and may be
    more or fewer on one worker than on another. Each worker runs the same program in the same order; it sees the
    components of its own replicas (`local_results`, `values`), while a reduced value or a variable is the same on all.
    New variables take the value of worker 0.

    A worker's devices are its accelerators; where there are none, its CPU devices: one, unless
    ``MIRRORED_VIRTUAL_DEVICES`` says how many. With one task it behaves as `MirroredStrategy`.

    Context: before JAX's first operation in the process, if there are several workers.

    Args:
        cluster_resolver: Says which tasks there are, and which of them this is. Default: from ``TF_CONFIG``.
        communication_options: Accepted for TensorFlow's sake: the collectives are JAX's.
        num_replicas: How many replicas, over all workers; a multiple of the number of all devices. Default: one per
            device.
        deterministic: Sum in one fixed order, so that results have the same bits on any number of devices and workers.

    Raises:
        ClusterError: The cluster's description is malformed.
        ContextError: JAX has started already, without the other workers.
        RendezvousError: A worker, or the coordinator, cannot be reached in time.
        DeviceError: Workers have devices of different kinds; a `num_replicas` that does not fit.

    Example:
        >>> MultiWorkerMirroredStrategy().num_replicas_in_sync >= 1
        True

    TensorFlow: `tf.distribute.MultiWorkerMirroredStrategy`. The last two arguments are ours. A worker that raises an
    exception ends at once, and so does the job.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: Any = None,
        *,
        num_replicas: int | None = None,
        deterministic: bool = False,
    ) -> None:
        resolver = TFConfigClusterResolver() if cluster_resolver is None else cluster_resolver
        process = process_of(resolver)
        devices = _alone() if process is None or process.num_processes == 1 else _together(process)
        super().__init__(devices, num_replicas=num_replicas, deterministic=deterministic)
        self._cluster_resolver = resolver

    @property
    def cluster_resolver(self) -> Any:
        """Which tasks there are."""
        return self._cluster_resolver


def _alone() -> list[str | jax.Device] | None:
    # As in TensorFlow, where a CPU is one device; but who has asked for several gets them.
    only_cpus = jax.default_backend() == "cpu" and config.virtual_kind() == "CPU"
    return ["CPU:0"] if only_cpus and not os.environ.get(config.DEVICES_VARIABLE) else None


def _together(process: Process) -> list[str | jax.Device]:
    """The devices of all workers, in the order of tasks."""
    called = "MultiWorkerMirroredStrategy"
    join(process, called)
    watch.leave_on_exceptions()
    watch.watch_workers(heartbeat_seconds())
    check_fingerprints(called, agree(called, "compare versions and flags", fingerprint()), process.addresses)
    mine = sorted(jax.local_devices(), key=lambda device: device.id)
    everyone = agree(called, "make a strategy", [kind_of(mine[0]), len(mine)])
    if len({kind for kind, _ in everyone}) > 1:
        found = ", ".join(f"{count} {kind} on worker {worker}" for worker, (kind, count) in enumerate(everyone))
        raise DeviceError(
            called,
            found=found,
            rule="all workers have devices of one kind",
            remedy="look at the driver of those that have found no accelerator (mirrored doctor), or hide the others' "
            "(JAX_PLATFORMS=cpu)",
        )
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
