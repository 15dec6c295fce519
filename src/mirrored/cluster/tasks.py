"""The roles of a cluster's tasks: which tasks train, which is the chief, and the JAX process index of each."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Final

from mirrored.cluster.resolver import ClusterResolver
from mirrored.cluster.spec import ClusterSpec, Tasks
from mirrored.errors import ArgumentTypeError, ClusterError

CHIEF: Final = "chief"
WORKER: Final = "worker"
EVALUATOR: Final = "evaluator"
PS: Final = "ps"


@dataclasses.dataclass(frozen=True)
class Process:
    """The arguments of `jax.distributed.initialize` for a task: process index, process count, coordinator.

    Attributes:
        coordinator: The address of process 0, ``host:port``.
        num_processes: The number of tasks that train together.
        index: The index of this task; the chief comes first, then the workers.
        addresses: The addresses of all these tasks, by index.
        detection: JAX's name of the cluster detection method that limits this process to one accelerator of its host,
            as `jax.distributed.initialize` does; None if the process uses all accelerators that it sees.

    Example:
        >>> from mirrored.cluster import ClusterSpec, SimpleClusterResolver, process_of
        >>> spec = ClusterSpec({"worker": ["a:1", "b:1"]})
        >>> process = process_of(SimpleClusterResolver(spec, task_type="worker", task_id=1))
        >>> process.coordinator, process.num_processes, process.index
        ('a:1', 2, 1)
    """

    coordinator: str
    num_processes: int
    index: int
    addresses: tuple[str, ...]
    detection: str | None = None


def process_of(resolver: ClusterResolver) -> Process | None:
    """Returns the JAX process index, process count and coordinator address for a cluster resolver's task.

    Parameter servers in the cluster are accepted and unused; an evaluator runs independently.

    Args:
        resolver: Provides the tasks of the cluster, and which of them this process is.

    Returns:
        None if this task trains alone: no cluster, one task, or an evaluator.

    Raises:
        ClusterError: The task is missing, is a parameter server, has an unknown job or index; two tasks have the same
            address; an address has no port; there are several chiefs.

    Example:
        >>> from mirrored.cluster import ClusterSpec, SimpleClusterResolver, process_of
        >>> spec = ClusterSpec({"worker": ["a:1", "b:1"]})
        >>> process_of(SimpleClusterResolver(spec, task_type="worker", task_id=1)).index
        1
        >>> process_of(SimpleClusterResolver(ClusterSpec({"worker": ["a:1"]}), task_type="worker", task_id=0)) is None
        True
    """
    spec = resolver.cluster_spec()
    job, index = resolver.task_type, resolver.task_id
    if not spec or job == EVALUATOR:
        return None
    trainers = training_tasks(spec)
    if job is None or index is None:
        if len(trainers) <= 1:
            return None
        raise _error(
            f"the cluster has {len(trainers)} tasks, and this task has the type {job!r} and the index {index!r}",
            "every process must say which task of the cluster it is",
            'add "task": {"type": "worker", "index": 0} to TF_CONFIG, or set task_type and task_id',
        )
    _check_task(spec, job, index)
    check_addresses(spec, type(resolver).__name__)
    addresses = tuple(spec.task_address(*task) for task in trainers)
    for address in addresses:
        _check_port(address)
    if len(trainers) == 1:
        return None
    return Process(addresses[0], len(trainers), trainers.index((job, index)), addresses)


def training_tasks(spec: ClusterSpec) -> list[tuple[str, int]]:
    """Returns the tasks that train, in the order of JAX's process indices: the chief, then the workers.

    Raises:
        ClusterError: There are several chiefs, or an unknown job.
    """
    unknown = [job for job in spec.jobs if job not in (CHIEF, WORKER, EVALUATOR, PS)]
    if unknown:
        raise _error(
            f"the cluster has the jobs {unknown}",
            f"the jobs of a cluster must be {CHIEF}, {WORKER}, {EVALUATOR} or {PS} (which is unused)",
            "rename these jobs",
        )
    if CHIEF in spec.jobs and spec.num_tasks(CHIEF) > 1:
        raise _error(
            f"There must be at most one 'chief' job; found {spec.num_tasks(CHIEF)} chiefs",
            "a cluster can have one chief at most",
            "make the other chiefs workers",
        )
    jobs = [job for job in (CHIEF, WORKER) if job in spec.jobs]
    return [(job, index) for job in jobs for index in spec.task_indices(job)]


def check_addresses(spec: ClusterSpec, source: str) -> None:
    """Raises an error if two tasks of the cluster have the same address.

    Args:
        spec: The tasks.
        source: Where they are described, for messages.

    Raises:
        ClusterError: Two tasks have the same address.
    """
    addresses = Counter(spec.task_address(job, index) for job in spec.jobs for index in spec.task_indices(job))
    twice = [address for address, count in addresses.items() if count > 1]
    if twice:
        raise _error(
            f"{source} gives the address {twice[0]} to {addresses[twice[0]]} tasks",
            "every task must have an address of its own",
            "give the tasks different hosts or ports",
        )


def _check_task(spec: ClusterSpec, job: str, index: int) -> None:
    if job == PS:
        raise _error(
            f"the task is of type {PS!r}",
            "training is synchronous and state is mirrored: there are no parameter servers",
            f"start no process for the {PS!r} tasks (they may stay in the cluster, unused)",
        )
    if job not in spec.jobs:
        raise _error(
            f"`task_type` {job!r} not found in cluster_spec",
            f"the jobs are {spec.jobs}",
            "correct task.type in TF_CONFIG",
        )
    if index not in spec.task_indices(job):
        raise _error(
            f"No task with index {index} in job {job!r}",
            f"the job has the tasks {spec.task_indices(job)}",
            "correct task.index in TF_CONFIG (the first task has index 0)",
        )


def _check_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise _error(
            f"a task has the address {address!r}",
            "an address must be a host and a port",
            'write "host0.example.com:2222"',
        )


# The functions of tf.distribute's multi_worker_util


def normalize_cluster_spec(cluster_spec: Mapping[str, Tasks] | ClusterSpec) -> ClusterSpec:
    """Converts a dict of task addresses to a `ClusterSpec`; returns a `ClusterSpec` unchanged.

    Raises:
        ArgumentTypeError: `cluster_spec` has another type.
    """
    if isinstance(cluster_spec, (ClusterSpec, Mapping)):
        return ClusterSpec(cluster_spec)
    raise ArgumentTypeError(
        "normalize_cluster_spec",
        found=f"{cluster_spec!r}"[:200],
        rule="`cluster_spec` must be a dict or a `ClusterSpec`",
        remedy='write {"worker": ["host0:2222"]}',
    )


def is_chief(
    cluster_spec: Mapping[str, Tasks] | ClusterSpec, task_type: str | None = None, task_id: int | None = None
) -> bool:
    """Returns whether a task is the chief (worker 0 if no task has type "chief"); True for every evaluator.

    Raises:
        ClusterError: There is no such task.
    """
    spec = normalize_cluster_spec(cluster_spec)
    if not spec or task_type is None or task_type == EVALUATOR:
        return True
    index = int(task_id or 0)
    if task_type != PS:
        _check_task(spec, task_type, index)
    return task_type == CHIEF or (CHIEF not in spec.jobs and task_type == WORKER and index == 0)


def worker_count(cluster_spec: Mapping[str, Tasks] | ClusterSpec, task_type: str) -> int:
    """Returns the number of tasks that train, or the number of evaluators if `task_type` is "evaluator".

    Raises:
        ClusterError: A task of this type does not train.
    """
    if task_type not in (CHIEF, WORKER, EVALUATOR):
        raise _error(
            f"Unexpected `task_type` {task_type!r}", "a task must train or evaluate", "give 'worker' or 'chief'"
        )
    spec = normalize_cluster_spec(cluster_spec)
    if task_type == EVALUATOR:
        return spec.num_tasks(EVALUATOR) if EVALUATOR in spec.jobs else 1
    return len(training_tasks(spec))


def id_in_cluster(cluster_spec: Mapping[str, Tasks] | ClusterSpec, task_type: str, task_id: int) -> int:
    """Returns the index of a task among all training tasks, with the chief as the first task.

    Raises:
        ClusterError: The task does not train or does not exist.
    """
    spec = normalize_cluster_spec(cluster_spec)
    if task_type == EVALUATOR:
        return task_id
    trainers = training_tasks(spec)
    if task_type == PS:
        raise _error(
            "There is no id for task_type 'ps'", "a parameter server does not train", "give 'worker' or 'chief'"
        )
    _check_task(spec, task_type, task_id)
    return trainers.index((task_type, task_id))


def collective_leader(
    cluster_spec: Mapping[str, Tasks] | ClusterSpec, task_type: str | None, task_id: int | None
) -> str:
    """Returns the device name of the chief (``"/job:chief/replica:0/task:0"``), or of worker 0 if no task is chief.

    The name has TensorFlow's format. It is empty for an evaluator, for a task without a type, and without a cluster.
    """
    spec = normalize_cluster_spec(cluster_spec)
    if not spec or task_type == EVALUATOR or task_type is None:
        return ""
    return f"/job:{CHIEF if CHIEF in spec.jobs else WORKER}/replica:0/task:0"


def _error(found: str, rule: str, remedy: str) -> ClusterError:
    return ClusterError("finding this process's place in the cluster", found=found, rule=rule, remedy=remedy)
