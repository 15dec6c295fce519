"""The class `TFConfigClusterResolver`, which reads the cluster from the environment variable TF_CONFIG."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from mirrored.cluster.resolver import ClusterResolver, master_url
from mirrored.cluster.spec import ClusterSpec
from mirrored.cluster.tasks import check_addresses
from mirrored.errors import ArgumentTypeError, ClusterError

VARIABLE: Final = "TF_CONFIG"
_EXAMPLE: Final = (
    """TF_CONFIG='{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'"""
)


class TFConfigClusterResolver(ClusterResolver):
    """A cluster resolver that reads the environment variable TF_CONFIG at every call.

    TF_CONFIG is JSON: ``{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index":
    0}}``, and optionally ``"rpc_layer"`` and ``"session_master"``. A subset of a job's tasks is an object:
    ``{"worker": {"1": "host1:2222"}}``.

    Args:
        task_type: The job of this task, instead of that in TF_CONFIG.
        task_id: The index of this task, instead of that in TF_CONFIG.
        rpc_layer: The protocol prefix of addresses in `master`, instead of that in TF_CONFIG.
        environment: Accepted for compatibility with TensorFlow.

    Example:
        >>> TFConfigClusterResolver(task_type="worker", task_id=1).task_id
        1

    TensorFlow: `tf.distribute.cluster_resolver.TFConfigClusterResolver`. Errors name the malformed part of TF_CONFIG.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer
        self._environment = environment

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks listed in TF_CONFIG; an empty cluster if the variable is not set or lists no tasks.

        Raises:
            ClusterError: TF_CONFIG is malformed, or two tasks have the same address.
        """
        try:
            spec = ClusterSpec({job: _indexed(tasks) for job, tasks in _section("cluster").items()})
        except ArgumentTypeError as error:
            raise _malformed_error(f"its cluster is {_section('cluster')!r}", "lists of addresses by job") from error
        check_addresses(spec, VARIABLE)
        return spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the address of a task, by default of this process; an empty string if there are fewer than two tasks.

        Raises:
            ClusterError: TF_CONFIG is malformed, does not say which task this is, or has no such task.
        """
        session_master = _config().get("session_master")
        if session_master is not None:
            return str(session_master)
        spec = self.cluster_spec()
        if sum(spec.num_tasks(job) for job in spec.jobs) <= 1:
            return ""
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            raise _malformed_error(
                "it has a cluster and does not say which task this is", 'a "task" with "type" and "index"'
            )
        return master_url(spec.task_address(job, index), self.rpc_layer if rpc_layer is None else rpc_layer)

    @property
    def environment(self) -> str | None:
        """The environment name that was passed to the constructor."""
        return self._environment

    @property
    def task_type(self) -> str | None:
        """The job name of this process's task, by default from TF_CONFIG; can be assigned.

        Raises:
            ClusterError: TF_CONFIG is malformed.
        """
        job = _section("task").get("type") if self._task_type is None else self._task_type
        return None if job is None else str(job)

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process's task in its job, by default from TF_CONFIG; can be assigned.

        Raises:
            ClusterError: TF_CONFIG is malformed.
        """
        index = _section("task").get("index") if self._task_id is None else self._task_id
        return None if index is None else _task_index(index)

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol prefix of addresses, such as "grpc", by default from TF_CONFIG; can be assigned."""
        return _config().get("rpc_layer") if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


def _config() -> Mapping[str, Any]:
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _malformed_error(f"it is not JSON ({error}): {text[:200]!r}", "JSON") from None
    if not isinstance(config, dict):
        raise _malformed_error(f"it is {text[:200]!r}", "a JSON object")
    return config


def _section(key: str) -> Mapping[str, Any]:
    section = _config().get(key, {})
    if not isinstance(section, dict):
        raise _malformed_error(f"its {key!r} is {section!r}", "an object")
    return section


def _indexed(tasks: Any) -> Any:
    """Converts the string keys of a job's tasks in TF_CONFIG, as in ``{"1": "host:2222"}``, to integers."""
    if not isinstance(tasks, dict) or not all(key.isascii() and key.isdecimal() for key in tasks):
        return tasks
    return {int(key): address for key, address in tasks.items()}


def _task_index(index: Any) -> int:
    """Converts the task index in TF_CONFIG, which is a number or a string, to an int."""
    is_text = isinstance(index, str) and index.isascii() and index.isdecimal()
    if not is_text and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        raise _malformed_error(f"its task.index is {index!r}", "an int, 0 or more")
    return int(index)


def _malformed_error(found: str, rule: str) -> ClusterError:
    return ClusterError(
        f"reading {VARIABLE}", found=f"{VARIABLE} is malformed: {found}", rule=f"expected {rule}", remedy=_EXAMPLE
    )
