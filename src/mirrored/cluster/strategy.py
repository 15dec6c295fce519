"""`MultiWorkerMirroredStrategy`: synchronous training on the devices of all workers of a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax

from mirrored import config, settings, watchdog
from mirrored.cluster.detecting import detected_process, resolver_of
from mirrored.cluster.elastic_job import join_as_restartable
from mirrored.cluster.equality import check_properties, properties
from mirrored.cluster.joining import check_fingerprints, fingerprint, heartbeat_seconds, join, rendezvous_seconds
from mirrored.cluster.resolver import ClusterResolver
from mirrored.cluster.tasks import Process, process_of
from mirrored.cluster.tf_config import TFConfigClusterResolver
from mirrored.collectives.host_allgather import host_allgather
from mirrored.errors import DeviceError
from mirrored.strategies import MirroredStrategy
from mirrored.topology.device_assignment import kind_of
from mirrored.topology.independent_processes import job_is_formed


class MultiWorkerMirroredStrategy(MirroredStrategy):
    """A strategy for synchronous training on all workers of a cluster, each of which runs the same program.

    The replicas run on the devices of all workers, in the order of tasks (the chief, then the workers). Workers may
    have different numbers of devices. Each worker runs the same program in the same order. It sees the components of
    its own replicas (`local_results`, `values`); a reduced value or a variable is the same on all workers. New
    variables take the value of worker 0.

    A worker's devices are its accelerators. Without accelerators they are its CPU devices: one, unless
    ``MIRRORED_VIRTUAL_DEVICES`` is set. With one task it behaves as `MirroredStrategy`.

    Context: before JAX's first operation in the process, if there are several workers.

    Args:
        cluster_resolver: Provides the tasks of the cluster, and which of them this process is. Default: from
            ``TF_CONFIG``; without it the job that `jax.distributed.initialize` has formed, or that JAX detects (Open
            MPI, Slurm, Kubernetes, Cloud TPU). In that case all processes are workers, and only the coordinator's
            address is known.
        communication_options: Accepted for compatibility with TensorFlow; has no effect, since JAX runs the
            collectives.
        num_replicas: The number of replicas on all workers, at least the number of all devices. Default: one per
            device.
        deterministic: Whether to sum in one fixed order, so that results are bit-identical on any number of devices
            and workers.

    Raises:
        ClusterError: The cluster's description is malformed, or the environment says that there are several
            processes and nothing says how they reach each other.
        ContextError: JAX has started already, without the other workers; or the job is elastic, and the call is outside
            of the program's elastic training function.
        RendezvousError: A worker, or the coordinator, cannot be reached in time.
        DeviceError: Workers have devices of different kinds, or `num_replicas` does not fit the devices.

    Warns:
        IndependentProcessesWarning: The description has one task, but the environment says that there are several
            processes.
        UserWarning: Workers have devices of different models; or their CPUs, or XLA's numbers of threads, differ
            (with `deterministic`, an error).

    Example:
        >>> MultiWorkerMirroredStrategy().num_replicas_in_sync >= 1
        True

    TensorFlow: `tf.distribute.MultiWorkerMirroredStrategy`. The last two arguments are our additions. A worker that
    raises an exception ends at once, and so does the job.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: object = None,
        *,
        num_replicas: int | None = None,
        deterministic: bool = False,
    ) -> None:
        join_as_restartable("MultiWorkerMirroredStrategy")
        resolver = TFConfigClusterResolver() if cluster_resolver is None else cluster_resolver
        process = process_of(resolver)
        if process is None and cluster_resolver is None and not resolver.cluster_spec():
            process = detected_process("MultiWorkerMirroredStrategy", rendezvous_seconds())
            resolver = resolver if process is None else resolver_of(process)
        devices = _alone() if process is None or process.num_processes == 1 else _join_job(process, deterministic)
        super().__init__(devices, num_replicas=num_replicas, deterministic=deterministic)
        self._cluster_resolver = resolver

    @property
    def cluster_resolver(self) -> Any:
        """The cluster resolver from which the strategy got the cluster's tasks."""
        return self._cluster_resolver


def _alone() -> list[str | jax.Device] | None:
    # As in TensorFlow, the CPU is one device, unless the user has requested virtual devices.
    only_cpus = jax.default_backend() == "cpu" and config.virtual_kind() == "CPU"
    return ["CPU:0"] if only_cpus and not settings.VIRTUAL_DEVICES.is_set() else None


def _join_job(process: Process, deterministic: bool) -> list[str | jax.Device]:
    """Joins the job, starts the watchdog, and returns the devices of all workers, in the order of tasks."""
    called = "MultiWorkerMirroredStrategy"
    join(process, called)
    job_is_formed()
    watchdog.install_fail_fast()
    watchdog.start_watchdog(heartbeat_seconds())
    gathered = host_allgather(called, "compare versions and flags", [fingerprint(), properties()])
    check_fingerprints(called, [versions for versions, _ in gathered], process.addresses)
    own = sorted(jax.local_devices(), key=lambda device: device.id)
    everyone = host_allgather(called, "make a strategy", [kind_of(own[0]), len(own), own[0].device_kind])
    if len({kind for kind, _, _ in everyone}) > 1:
        found = ", ".join(f"{count} {kind} on worker {worker}" for worker, (kind, count, _) in enumerate(everyone))
        raise DeviceError(
            called,
            found=found,
            rule="all workers must have devices of one kind",
            remedy="check the driver of the workers that have found no accelerator (mirrored doctor), or hide the "
            "accelerators of the others (JAX_PLATFORMS=cpu)",
        )
    if own[0].platform == "cpu":
        processors = [processor for _, processor in gathered]
        check_properties(called, processors, process.addresses, deterministic=deterministic)
    warn_of_models([model for _, _, model in everyone])
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))


def warn_of_models(models: Sequence[str]) -> None:
    """Logs a warning if the workers' devices are of different hardware models, such as two types of GPUs.

    Each worker updates its copies of variables by its own compiled program. The compiler chooses other kernels for
    another model, and their results may differ in the last bits.

    Args:
        models: The model of each worker's devices.
    """
    other = next((worker for worker, model in enumerate(models) if model != models[0]), None)
    if other is not None:
        warnings.warn(
            f"MultiWorkerMirroredStrategy: worker 0 has {models[0]!r} devices, and worker {other} {models[other]!r}\n"
            "  rule:   copies of variables are bit-identical if all devices run the same kernels; those of other "
            "models may differ in the last bits\n"
            "  remedy: train on devices of one model, or compare the copies from time to time",
            stacklevel=4,
        )
