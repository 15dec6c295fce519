"""JAX's distributed runtime: detection of the cluster, and the key-value store of the coordination service."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any, Final

import jax

from mirrored._jax.private import clusters as _clusters
from mirrored._jax.private import distributed as _distributed
from mirrored._jax.private import xla_bridge as _xla_bridge

# JAX's detection of the cluster in which a process was started: Open MPI, Slurm, Kubernetes, Cloud TPU.
#
# Supports JAX 0.10 to 0.12: `jax._src.clusters.ClusterEnv` is the class that `jax.distributed.initialize()` uses.


@dataclasses.dataclass(frozen=True)
class Detected:
    """A multi-process cluster that JAX has detected in the environment: coordinator and processes.

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
    """Error raised when this process runs in a cluster, but JAX cannot read the cluster's description."""


def detect(timeout_seconds: int) -> Detected | None:
    """Returns the multi-process cluster that JAX detects in the environment; None if JAX detects no cluster.

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
    """Returns JAX's default classes for cluster detection; includes Kubernetes only inside an indexed job.

    Kubernetes is omitted outside an indexed job, where it does not describe the other processes, and without its Python
    package, where JAX's method only warns.
    """
    methods = [one for one in _clusters.ClusterEnv._cluster_types if not one.opt_in_only_method]
    if "JOB_COMPLETION_INDEX" in os.environ and importlib.util.find_spec("kubernetes") is not None:
        return methods
    return [one for one in methods if one.__name__ != "K8sCluster"]


# The key-value store of JAX's coordination service: small messages between the processes of a job.
#
# Supports JAX 0.10 to 0.12. The client is `jax._src.distributed.global_state.client`, which JAX's `multihost_utils`
# uses too. It can be used in any thread and does not wait for devices.


_SLICE_SECONDS: Final = 0.1
_INPUT_SLICE_SECONDS: Final = 0.05


class _Waits:
    check: Callable[[], object] | None = None


def interrupt_waits_by(check: Callable[[], object] | None) -> None:
    """Registers a callback that `get` calls repeatedly while it waits for a key; its exception ends the wait.

    Elastic jobs use it: the other process may be lost.
    """
    _Waits.check = check


def next_wait_seconds(seconds: float) -> float:
    """Returns how long to wait before the next check, at most `seconds`; raises if an elastic job's workers changed.

    Context: the main thread, while it waits for input. Outside of elastic jobs it returns `seconds`.
    """
    if _Waits.check is None:
        return seconds
    _Waits.check()
    return min(seconds, _INPUT_SLICE_SECONDS)


def is_elastic() -> bool:
    """Returns whether this process trains in an elastic job, whose number of processes changes."""
    return _Waits.check is not None


_notes: list[Callable[[], object]] = []
_resets: list[Callable[[], object]] = []


def before_first_job(note: Callable[[], object]) -> Callable[[], object]:
    """Registers a function that runs before this process joins its first elastic training job.

    It can be used as a decorator. The function records a module's state. A function registered with `on_leave` restores
    that state, so that a process that continues calls the training function in the same state as a new process.
    """
    _notes.append(note)
    return note


def begin_jobs() -> None:
    """Calls all functions that were registered with `before_first_job`."""
    for note in _notes:
        note()


def on_leave(reset: Callable[[], object]) -> Callable[[], object]:
    """Registers a function that resets a module's state when this process leaves its job and will join another one.

    It can be used as a decorator. The functions are called in the reverse order of their registration.
    """
    _resets.append(reset)
    return reset


def reset_for_another_job() -> None:
    """Calls all functions that were registered with `on_leave`."""
    for reset in reversed(_resets):
        reset()


class NoAnswer(Exception):
    """Error raised by `get` when no process has set the key before the timeout."""


def has_devices() -> bool:
    """Returns whether JAX has initialised its devices; if so, this process can no longer join a multi-process job."""
    return bool(_xla_bridge.backends_are_initialized())


def disconnect_child() -> None:
    """Disconnects a forked child process from the distributed job, to which only its parent belongs.

    Otherwise, at the child's exit, JAX would report to the coordinator that this process has ended. The inherited
    objects are never destroyed: their destructors would shut down the parent's connections, and would wait for threads
    that the child does not have.
    """
    state = _distributed.global_state
    for inherited in (state.client, state.service, state.preemption_sync_manager):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
    state.client = state.service = state.preemption_sync_manager = None
    state.num_processes, state.process_id = 1, 0


def is_connected() -> bool:
    """Returns whether this process has joined a job of several processes (`jax.distributed`)."""
    return _distributed.global_state.client is not None and (_distributed.global_state.num_processes or 1) > 1


def this_process() -> int:
    """Returns the index of this process in its distributed job, without initialising JAX's devices."""
    return int(_distributed.global_state.process_id or 0)


def num_processes() -> int:
    """Returns the number of processes of the distributed job, without initialising JAX's devices."""
    return int(_distributed.global_state.num_processes or 1)


def address() -> str:
    """Returns ``host:port`` of JAX's coordination service."""
    return str(_distributed.global_state.coordinator_address)


def _client() -> Any:
    return _distributed.global_state.client


def put(key: str, value: str) -> None:
    """Sets a new key in the key-value store of JAX's coordination service; fails if the key exists.

    Raises:
        RuntimeError: The key is already set, or the coordinator is unreachable.
    """
    _client().key_value_set(key, value)


def get(key: str, timeout_seconds: float) -> str:
    """Waits until a key is set in the key-value store of JAX's coordination service, and returns its value.

    In an elastic job the wait ends with an exception when the workers change (`interrupt_waits_by`).

    Raises:
        NoAnswer: The key was not set in time.
        RuntimeError: The coordinator is unreachable.
    """
    check, end = _Waits.check, time.monotonic() + timeout_seconds
    while True:
        left = end - time.monotonic()
        if check is not None:
            check()
            left = min(left, _SLICE_SECONDS)
        try:
            return str(_client().blocking_key_value_get(key, max(1, int(left * 1000))))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            if check is None or time.monotonic() >= end:
                raise NoAnswer(key) from None


def get_if_set(key: str) -> str | None:
    """Returns the value of a key of JAX's coordination service without waiting; None if the key is not set."""
    try:
        return str(_client().key_value_try_get(key))
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


def get_all_below(prefix: str) -> dict[str, str]:
    """Returns a dict from name to value for the keys ``prefix/name`` in the store of JAX's coordination service."""
    found = _client().key_value_dir_get(prefix)
    return {str(key).rpartition("/")[2]: str(value) for key, value in found}


def forget(key: str) -> None:
    """Deletes a key, if it is set, from the key-value store of JAX's coordination service."""
    _client().key_value_delete(key)


def post(key: str, value: str) -> None:
    """Sets a key in the key-value store of JAX's coordination service, overwriting any existing value.

    Raises:
        RuntimeError: The coordinator is unreachable.
    """
    _client().key_value_set(key, value, allow_overwrite=True)
