"""The class `SlurmClusterResolver`, which reads the cluster from Slurm's environment variables."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Mapping

from mirrored.cluster.resolver import AddressResolver
from mirrored.cluster.spec import ClusterSpec
from mirrored.errors import AllocationError, ClusterError


class SlurmClusterResolver(AddressResolver):
    """A cluster resolver for a Slurm job step; arguments that are not given are read from the environment.

    Tasks are numbered as Slurm numbers them: node by node, in the order of the list of nodes.

    Args:
        jobs: The number of tasks of each job: ``{"worker": 4}``. Default: all of the step's tasks are workers.
        port_base: The port of the first task on a node; further tasks use the following ports.
        gpus_per_node: Default: the number that CUDA_VISIBLE_DEVICES names or `nvidia-smi` lists; 0 without either.
        gpus_per_task: Default: the GPUs of a node divided among its tasks.
        tasks_per_node: A number, or ``{host: number}``. Default: SLURM_STEP_TASKS_PER_NODE.
        auto_set_gpu: Whether `cluster_spec` sets CUDA_VISIBLE_DEVICES to this task's part of the GPUs that it names,
            by SLURM_LOCALID. Call it before JAX initializes its devices.
        rpc_layer: The protocol prefix of addresses in `master`.

    Raises:
        AllocationError: A Slurm variable is missing, or the arguments request more than was assigned.
        ClusterError: A Slurm variable cannot be parsed.

    Example:
        >>> import os
        >>> from mirrored.cluster import SlurmClusterResolver
        >>> os.environ["SLURM_PROCID"] = "1"  # Slurm sets these for a task of a job step
        >>> os.environ["SLURM_STEP_NUM_TASKS"] = "2"
        >>> os.environ["SLURM_STEP_NODELIST"] = "n[1-2]"
        >>> os.environ["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)"
        >>> resolver = SlurmClusterResolver(gpus_per_node=0, auto_set_gpu=False)
        >>> resolver.cluster_spec(), resolver.get_task_info()
        (ClusterSpec({'worker': ['n1:8888', 'n2:8888']}), ('worker', 1))
        >>> for name in [name for name in os.environ if name.startswith("SLURM_")]:
        ...     del os.environ[name]

    TensorFlow: `tf.distribute.cluster_resolver.SlurmClusterResolver`. It sorts hosts by name (``n10`` before ``n2``),
    and so assigns tasks to other hosts than Slurm does; and it fails on nodes without `nvidia-smi`.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str = "grpc",
    ) -> None:
        self._rank = _number("PROCID")
        self._jobs = {"worker": _number("STEP_NUM_TASKS")} if jobs is None else dict(jobs)
        self._port_base, self._auto_set_gpu, self._rpc_layer = port_base, auto_set_gpu, rpc_layer
        self._tasks_per_node = _tasks_per_node(tasks_per_node)
        most = max(self._tasks_per_node.values())
        self._gpus = _named_gpus()  # before `cluster_spec` changes the variable
        self._gpus_per_node = _number_of_gpus(self._gpus) if gpus_per_node is None else gpus_per_node
        self._gpus_per_task = self._gpus_per_node // most if gpus_per_task is None else gpus_per_task
        self._check(most)

    def _check(self, most: int) -> None:
        if most * self._gpus_per_task > self._gpus_per_node:
            raise _allocation_error(
                f"Requested more GPUs per node than available: {most} tasks with {self._gpus_per_task} each, and "
                f"{self._gpus_per_node} GPUs",
                "the tasks of a node must not need more GPUs than the node has",
            )
        wanted, assigned = sum(self._jobs.values()), sum(self._tasks_per_node.values())
        if wanted != assigned:
            raise _allocation_error(
                f"Requested {wanted} tasks but only {assigned} were assigned"
                if wanted > assigned
                else f"Requested {wanted} tasks and {assigned} were assigned",
                "the jobs must have as many tasks in total as the Slurm job step",
            )

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks and their addresses; may also set CUDA_VISIBLE_DEVICES (see `auto_set_gpu`)."""
        hosts = [(host, place) for host, count in self._tasks_per_node.items() for place in range(count)]
        addresses = [f"{host}:{self._port_base + place}" for host, place in hosts]
        cluster, first = {}, 0
        for job, count in sorted(self._jobs.items()):
            cluster[job] = addresses[first : first + count]
            first += count
        if self._auto_set_gpu and self._gpus_per_task:
            place = _place_on_node()
            first = (hosts[self._rank][1] if place is None else place) * self._gpus_per_task
            end = first + self._gpus_per_task
            named = self._gpus or []
            if len(named) == self._gpus_per_task:  # already this task's: by srun, or by an earlier resolver
                gpus = named
            else:
                gpus = named[first:end] if end <= len(named) else [str(one) for one in range(first, end)]
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return ClusterSpec(cluster)

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Returns the job name and index of this process's task."""
        return self.task_type, self.task_id

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Returns the number of GPUs of a task, as in ``{"GPU": 1}``."""
        del task_type, task_id, config_proto
        return {"GPU": self._gpus_per_task}

    @property
    def task_type(self) -> str | None:
        """The job name of this process's task, by default from the Slurm rank; can be assigned."""
        return self._found()[0] if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process's task in its job, by default from the Slurm rank; can be assigned."""
        return self._found()[1] if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    def _found(self) -> tuple[str | None, int | None]:
        first = 0
        for job, count in sorted(self._jobs.items()):
            if self._rank < first + count:
                return job, self._rank - first
            first += count
        return None, None


def expand_hostlist(hostlist: str) -> list[str]:
    """Expands a host list in Slurm's notation, such as ``n[1-3],m5``, to a list of host names.

    Raises:
        ClusterError: The list cannot be parsed.

    Example:
        >>> expand_hostlist("n[09-10],m5")
        ['n09', 'n10', 'm5']
    """
    hosts = [host for part in _split(hostlist) for host in _expand(part, hostlist)]
    if not hosts:
        raise _unreadable_error("list of hosts", hostlist)
    return hosts


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """Expands task counts in Slurm's notation, such as ``2(x3),1``, to a list with one count per node.

    Raises:
        ClusterError: The text cannot be parsed.

    Example:
        >>> expand_tasks_per_node("3(x2),2,1")
        [3, 3, 2, 1]
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise _unreadable_error("number of tasks per node", tasks_per_node)
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _split(hostlist: str) -> Iterator[str]:
    """Splits a text at the commas outside of brackets."""
    return (part for part in re.split(r",(?![^\[]*\])", hostlist.strip()) if part)


def _expand(part: str, hostlist: str) -> Iterator[str]:
    found = re.fullmatch(r"([^,\[\]]*)(?:\[([\d,\- ]+)\])?([^,\[\]]*)", part.strip())
    if found is None or not part.strip():
        raise _unreadable_error("list of hosts", hostlist)
    if found[2] is None:
        yield part.strip()
        return
    for piece in found[2].split(","):
        first, _, last = piece.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or "-" in last:
            raise _unreadable_error("list of hosts", hostlist)
        for number in range(int(first), int(last or first) + 1):
            yield f"{found[1]}{number:0{len(first)}d}{found[3]}"


def _tasks_per_node(given: int | Mapping[str, int] | None) -> dict[str, int]:
    if isinstance(given, Mapping):
        return dict(given)
    hosts = expand_hostlist(_variable("STEP_NODELIST"))
    counts = expand_tasks_per_node(_variable("STEP_TASKS_PER_NODE")) if given is None else [int(given)] * len(hosts)
    if len(hosts) != len(counts):
        raise _allocation_error(
            f"there are {len(hosts)} hosts, and numbers of tasks for {len(counts)}",
            "every host must have a number of tasks",
        )
    return dict(zip(hosts, counts, strict=True))


def _place_on_node() -> int | None:
    """Returns the index of this task on its node, which depends on srun's option --distribution; None if unknown."""
    found = os.environ.get("SLURM_LOCALID", "").strip()
    return int(found) if found.isdecimal() else None


def _named_gpus() -> list[str] | None:
    """Returns the GPUs listed in CUDA_VISIBLE_DEVICES, which Slurm may set; None if the variable is not set."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if named is None else gpus_in(named)


def gpus_in(visible_devices: str) -> list[str]:
    """Returns the GPU names in a value of CUDA_VISIBLE_DEVICES that precede the first invalid name.

    CUDA ignores the rest, too.

    Example:
        >>> gpus_in("0, 2,-1,3"), gpus_in("GPU-8932f937"), gpus_in("NoDevFiles")
        (['0', '2'], ['GPU-8932f937'], [])
    """
    names = (name.strip() for name in visible_devices.split(","))
    return list(itertools.takewhile(re.compile(r"\d+$|GPU-|MIG-").match, names))


def _number_of_gpus(named: list[str] | None) -> int:
    if named is not None:
        return len(named)
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def _variable(name: str) -> str:
    value = os.environ.get(f"SLURM_{name}")
    if value is None:
        raise AllocationError(
            "SlurmClusterResolver",
            found=f"SLURM_{name} not found in environment",
            rule="the variable must be set, as Slurm does in a job step",
            remedy="start the program with srun, or pass the corresponding argument",
        )
    return value


def _number(name: str) -> int:
    value = _variable(name)
    if not value.strip().isdecimal():
        raise _unreadable_error("number", f"SLURM_{name}={value}")
    return int(value)


def _unreadable_error(what: str, text: str) -> ClusterError:
    return ClusterError(
        "SlurmClusterResolver",
        found=f"{text!r} cannot be read as a {what}",
        rule="it must have Slurm's form: hosts are written n[1-3],m5, and numbers of tasks per node 2(x3),1",
        remedy="unset the environment variable that has this value, and start the program with srun, which sets it",
    )


def _allocation_error(found: str, rule: str) -> AllocationError:
    return AllocationError(
        "SlurmClusterResolver",
        found=found,
        rule=rule,
        remedy="change the arguments, or the resources that srun or sbatch requests",
    )
