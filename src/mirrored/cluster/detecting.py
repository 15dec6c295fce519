"""Detects this process's cluster, from JAX or environment variables, if the user has not configured one."""

from __future__ import annotations

from mirrored._jax import distributed
from mirrored.cluster.simple import SimpleClusterResolver
from mirrored.cluster.spec import ClusterSpec
from mirrored.cluster.tasks import WORKER, Process
from mirrored.errors import ClusterError
from mirrored.topology.independent_processes import evidence_of_several

_REMEDY = (
    "start the program with `mirrored run` (--nodes, --node-rank and --coordinator on several machines), set TF_CONFIG "
    "for each process, or give a cluster_resolver"
)


def detected_process(called: str, timeout_seconds: int) -> Process | None:
    """Returns this process's index in its job and the job's size, as detected by JAX; None if JAX detects no job.

    The arguments of an earlier `jax.distributed.initialize` take precedence over JAX's own detection (Open MPI, Slurm,
    Kubernetes, Cloud TPU).

    Args:
        called: What the user called, for messages.
        timeout_seconds: How long to wait until the coordinator's host name resolves.

    Raises:
        ClusterError: There are several processes, but no description of how they reach each other.
    """
    if distributed.is_connected():
        return _process(distributed.address(), distributed.num_processes(), distributed.this_process(), "jax")
    try:
        found = distributed.detect(timeout_seconds)
    except distributed.DetectionError as error:
        raise _no_description_error(called, f"JAX's detection failed ({error})") from error
    if found is not None:
        method = found.name if found.restricts_devices else None
        return _process(found.coordinator, found.num_processes, found.process_id, found.name or "kubernetes", method)
    evidence = evidence_of_several()
    if evidence is not None:
        raise _no_description_error(called, f"JAX detects no cluster, but the environment says: {evidence.text}")
    return None


def resolver_of(process: Process) -> SimpleClusterResolver:
    """Returns a cluster resolver for a detected cluster, in which all processes are workers."""
    spec = ClusterSpec({WORKER: list(process.addresses)})
    return SimpleClusterResolver(spec, task_type=WORKER, task_id=process.index, rpc_layer="grpc")


def _process(coordinator: str, count: int, index: int, source: str, method: str | None = None) -> Process:
    # Only the coordinator's address is known before the rendezvous; the other processes get names instead.
    names = tuple(f"{source}-process-{other}" for other in range(1, count))
    return Process(coordinator, count, index, (coordinator, *names), method)


def _no_description_error(called: str, found: str) -> ClusterError:
    return ClusterError(
        called,
        found=f"this process is one of several, and nothing says how to reach the others: {found}",
        rule="the processes of a job must have one coordinator address; without it each would train a model of its own",
        remedy=_REMEDY,
    )
