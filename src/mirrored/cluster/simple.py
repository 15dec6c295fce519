"""`SimpleClusterResolver`, for an explicitly given cluster, and `UnionResolver`, which combines resolvers."""

from __future__ import annotations

from collections.abc import Mapping

from mirrored.cluster.resolver import ClusterResolver, master_url
from mirrored.cluster.spec import ClusterSpec
from mirrored.errors import ArgumentTypeError, ClusterError, ClusterKeyError


class SimpleClusterResolver(ClusterResolver):
    """A cluster resolver that returns the cluster passed to its constructor.

    Args:
        cluster_spec: The tasks.
        master: The result of `master()` without a task.
        task_type: The job of this task.
        task_id: The index of this task.
        environment: Accepted for compatibility with TensorFlow.
        num_accelerators: The number of accelerators of each task, by kind.
        rpc_layer: The protocol prefix of addresses in `master`.

    Raises:
        ArgumentTypeError: `cluster_spec` is not a `ClusterSpec`, or `master` is not a string.

    Example:
        >>> spec = ClusterSpec({"worker": ["a:1", "b:1"]})
        >>> SimpleClusterResolver(spec, rpc_layer="grpc").master("worker", 1)
        'grpc://b:1'

    TensorFlow: `tf.distribute.cluster_resolver.SimpleClusterResolver`.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise _argument_error("cluster_spec", cluster_spec, "`cluster_spec` must be a `ClusterSpec`")
        if not isinstance(master, str):
            raise _argument_error("master", master, "`master` must be a string")
        self._spec, self._master, self._environment = cluster_spec, master, environment
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer
        self._accelerators = dict(num_accelerators or {})

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster that was passed to the constructor."""
        return self._spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the address of the given task; without a task, the `master` passed to the constructor.

        Raises:
            ClusterError: There is no such task.
        """
        asked = task_type is not None and task_id is not None
        address = self._spec.task_address(str(task_type), int(task_id or 0)) if asked else self._master
        return master_url(address, rpc_layer or self._rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Returns the numbers of accelerators, by kind, that were passed to the constructor."""
        del task_type, task_id, config_proto
        return dict(self._accelerators)

    @property
    def environment(self) -> str:
        """The environment name that was passed to the constructor."""
        return self._environment


class UnionResolver(ClusterResolver):
    """A cluster resolver that combines the tasks of several resolvers into one cluster.

    Lists of tasks are concatenated; tasks that are given by index are merged by index.

    Args:
        *resolvers: The resolvers. The first one determines which task this process is.
        task_type: The job of this task, instead of the first resolver's.
        task_id: The index of this task, instead of the first resolver's.
        rpc_layer: The protocol prefix of addresses in `master`, instead of the first resolver's.

    Raises:
        ArgumentTypeError: An argument is not a resolver.
        ClusterError: No resolver is given.

    Example:
        >>> from mirrored.cluster import ClusterSpec, SimpleClusterResolver, UnionResolver
        >>> first = SimpleClusterResolver(ClusterSpec({"worker": ["a:1"]}), task_type="worker", task_id=0)
        >>> second = SimpleClusterResolver(ClusterSpec({"worker": ["b:1"]}))
        >>> UnionResolver(first, second).cluster_spec()
        ClusterSpec({'worker': ['a:1', 'b:1']})

    TensorFlow: `tf.distribute.cluster_resolver.UnionResolver`.
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not resolvers:
            raise ClusterError(
                "UnionResolver",
                found="no resolver was passed",
                rule="At least one `ClusterResolver` is needed",
                remedy="pass the resolvers to combine: UnionResolver(first, second)",
            )
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise _argument_error("a resolver", resolver, "All arguments must be `ClusterResolver`s")
        self._resolvers = resolvers
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Returns the combined tasks of all resolvers.

        Raises:
            ClusterKeyError: Two resolvers have a task of the same job and index.
        """
        specs = [resolver.cluster_spec().as_dict() for resolver in self._resolvers]
        sparse = {job for spec in specs for job, tasks in spec.items() if isinstance(tasks, dict)}
        lists: dict[str, list[str]] = {}
        dicts: dict[str, dict[int, str]] = {}
        for spec in specs:
            for job, tasks in spec.items():
                if isinstance(tasks, list) and job not in sparse:
                    lists.setdefault(job, []).extend(tasks)
                else:
                    _merge(job, dicts.setdefault(job, {}), tasks if isinstance(tasks, dict) else dict(enumerate(tasks)))
        return ClusterSpec({**lists, **dicts})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the address of a task of the combined cluster; without a task, the first resolver's `master`.

        Raises:
            ClusterError: There is no such task.
        """
        if task_type is not None and task_id is not None:
            return master_url(self.cluster_spec().task_address(task_type, task_id), rpc_layer or self._rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Returns the numbers of accelerators, by kind, that the first resolver returns."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    @property
    def environment(self) -> str | None:
        """The environment name of the first resolver."""
        return self._resolvers[0].environment

    @property
    def task_type(self) -> str | None:
        """The job name of this process's task, by default the first resolver's; can be assigned."""
        return self._resolvers[0].task_type if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process's task in its job, by default the first resolver's; can be assigned."""
        return self._resolvers[0].task_id if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol prefix of addresses, such as "grpc", by default the first resolver's; can be assigned."""
        return self._resolvers[0].rpc_layer if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


def _merge(job: str, merged: dict[int, str], tasks: dict[int, str]) -> None:
    twice = merged.keys() & tasks.keys()
    if twice:
        raise ClusterKeyError(
            "UnionResolver.cluster_spec",
            found=f"Duplicate keys detected when merging two ClusterSpecs: {sorted(twice)} of job {job!r}",
            rule="each task must be described by one resolver only",
            remedy="describe these tasks in one of the resolvers only",
        )
    merged.update(tasks)


def _argument_error(name: str, found: object, rule: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        "ClusterResolver",
        found=f"{name} is {found!r}"[:300],
        rule=rule,
        remedy='write SimpleClusterResolver(ClusterSpec({"worker": ["host0:2222", "host1:2222"]}))',
    )
