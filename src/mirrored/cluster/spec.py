"""The class `ClusterSpec`: the tasks of a cluster and their addresses, by job name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mirrored.errors import ArgumentTypeError, ClusterError

Tasks = Sequence[str] | Mapping[int, str]


@dataclasses.dataclass
class JobDef:
    """The tasks of one job in a `ClusterDef`.

    Attributes:
        name: The name of the job, such as ``"worker"``.
        tasks: The addresses of its tasks by index.

    Example:
        >>> from mirrored.cluster import ClusterDef, ClusterSpec, JobDef
        >>> ClusterSpec(ClusterDef([JobDef("worker", {0: "a:1", 1: "b:1"})]))
        ClusterSpec({'worker': ['a:1', 'b:1']})

    TensorFlow: `tf.train.JobDef`, without protocol buffers.
    """

    name: str = ""
    tasks: dict[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class ClusterDef:
    """The jobs of a cluster as a list, from which a `ClusterSpec` can be created.

    Attributes:
        job: The jobs, sorted by name.

    Example:
        >>> from mirrored.cluster import ClusterSpec
        >>> ClusterSpec({"worker": ["a:1", "b:1"]}).as_cluster_def().job[0].tasks
        {0: 'a:1', 1: 'b:1'}

    TensorFlow: `tf.train.ClusterDef`, without protocol buffers.
    """

    job: list[JobDef] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        """Formats the jobs like the text format of protocol buffers."""
        return "".join(_job_text(one) for one in self.job)


def _job_text(job: JobDef) -> str:
    tasks = "".join(f'  tasks {{\n    key: {key}\n    value: "{job.tasks[key]}"\n  }}\n' for key in sorted(job.tasks))
    return f'job {{\n  name: "{job.name}"\n{tasks}}}\n'


class ClusterSpec:
    """The tasks of a cluster, like `tf.train.ClusterSpec`: for each job name, the addresses of its tasks.

    Args:
        cluster: ``{"worker": ["host0:2222", "host1:2222"]}``; for a subset of a job's tasks
            ``{"ps": {1: "host2:2222"}}``; another `ClusterSpec`; or a `ClusterDef`.

    Raises:
        ArgumentTypeError: `cluster` has another type.
        ClusterError: A task index is negative.

    Example:
        >>> spec = ClusterSpec({"worker": ["a:1", "b:1"]})
        >>> spec.task_address("worker", 1), spec.num_tasks("worker"), bool(spec)
        ('b:1', 2, True)

    TensorFlow: `tf.train.ClusterSpec`, without protocol buffers.
    """

    def __init__(self, cluster: Mapping[str, Tasks] | ClusterSpec | ClusterDef) -> None:
        given = cluster.as_dict() if isinstance(cluster, ClusterSpec) else cluster
        if isinstance(given, ClusterDef):
            given = {job.name: job.tasks for job in given.job}
        if not isinstance(given, Mapping):
            raise _spec_error(cluster)
        self._jobs: dict[str, dict[int, str]] = {_text(job, cluster): _indexed(tasks) for job, tasks in given.items()}

    @property
    def jobs(self) -> list[str]:
        """The names of the cluster's jobs, such as "worker" and "chief"."""
        return list(self._jobs)

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns a dict from job name to task addresses (a list, or a dict by task index if indices are missing)."""
        return {job: _dense(tasks) for job, tasks in self._jobs.items()}

    def as_cluster_def(self) -> ClusterDef:
        """Returns all jobs as a `ClusterDef`, sorted by job name, with each job's tasks sorted by index."""
        return ClusterDef([JobDef(job, dict(sorted(tasks.items()))) for job, tasks in sorted(self._jobs.items())])

    def num_tasks(self, job_name: str) -> int:
        """Returns the number of tasks of the job with the given name.

        Raises:
            ClusterError: There is no such job.
        """
        return len(self._tasks(job_name, "num_tasks"))

    def task_indices(self, job_name: str) -> list[int]:
        """Returns the indices of a job's tasks in ascending order.

        Raises:
            ClusterError: There is no such job.
        """
        return sorted(self._tasks(job_name, "task_indices"))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Returns the address ``host:port`` of the task with the given job name and index.

        Raises:
            ClusterError: There is no such job or task.
        """
        tasks = self._tasks(job_name, "task_address")
        if task_index not in tasks:
            raise ClusterError(
                "ClusterSpec.task_address",
                found=f"No task with index {task_index!r} in job {job_name!r}",
                rule=f"the index must be one of {sorted(tasks)}",
                remedy="pass one of these indices (in TF_CONFIG: task.index)",
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Returns the list of a job's task addresses by index, with None for missing indices.

        Raises:
            ClusterError: There is no such job.
        """
        tasks = self._tasks(job_name, "job_tasks")
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def _tasks(self, job: str, method: str) -> dict[int, str]:
        if job not in self._jobs:
            raise ClusterError(
                f"ClusterSpec.{method}",
                found=f"No such job in cluster: {job!r}",
                rule=f"the job must be one of {self.jobs}",
                remedy="pass one of these jobs",
            )
        return self._jobs[job]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple((job, tuple(sorted(tasks.items()))) for job, tasks in sorted(self._jobs.items())))

    def __repr__(self) -> str:
        inside = ", ".join(f"{job!r}: {tasks!r}" for job, tasks in sorted(self.as_dict().items()))
        return f"ClusterSpec({{{inside}}})"


def _dense(tasks: dict[int, str]) -> list[str] | dict[int, str]:
    indices = sorted(tasks)
    if indices == list(range(len(indices))):
        return [tasks[index] for index in indices]
    return {index: tasks[index] for index in indices}


def _indexed(tasks: object) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        pairs = list(tasks.items())
    elif isinstance(tasks, Sequence) and not isinstance(tasks, (str, bytes)):
        pairs = list(enumerate(tasks))
    else:
        raise _spec_error(tasks)
    for index, _ in pairs:
        if isinstance(index, bool) or not isinstance(index, int):
            raise _spec_error(tasks)
        if index < 0:
            raise ClusterError(
                "ClusterSpec",
                found=f"a task has the index {index}",
                rule="the index of a task must be at least 0",
                remedy="pass an index that is not negative",
            )
    return {index: _text(address, tasks) for index, address in pairs}


def _text(value: object, whole: object) -> str:
    if not isinstance(value, str):
        raise _spec_error(whole)
    return value


def _spec_error(found: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        "ClusterSpec",
        found=f"{found!r}"[:300],
        rule="`cluster` must be a dictionary from job names to lists of addresses (or to dictionaries by index)",
        remedy='write ClusterSpec({"worker": ["host0:2222", "host1:2222"]})',
    )
