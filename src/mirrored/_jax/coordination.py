"""The key-value store of JAX's coordination service: small messages between the processes of a job.

Supports JAX 0.10 to 0.12. The client is `jax._src.distributed.global_state.client`, which JAX's `multihost_utils` uses
too. It can be used in any thread and does not wait for devices.
"""

from __future__ import annotations

import ctypes
from typing import Any

import jax
from jax._src import distributed as _distributed
from jax._src import xla_bridge as _xla_bridge


class NoAnswer(Exception):
    """A key was not set in time."""


def has_devices() -> bool:
    """Returns whether JAX has initialised its devices, after which this process cannot join a job."""
    return bool(_xla_bridge.backends_are_initialized())


def disconnect_child() -> None:
    """Disconnects a forked child from the job, which only the parent belongs to.

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
    """Returns whether this process has joined a job of several processes."""
    return _distributed.global_state.client is not None and (_distributed.global_state.num_processes or 1) > 1


def this_process() -> int:
    """Returns the index of this process without initialising JAX's devices."""
    return int(_distributed.global_state.process_id or 0)


def num_processes() -> int:
    """Returns the number of processes of the job without initialising JAX's devices."""
    return int(_distributed.global_state.num_processes or 1)


def address() -> str:
    """Returns ``host:port`` of the coordinator."""
    return str(_distributed.global_state.coordinator_address)


def _client() -> Any:
    return _distributed.global_state.client


def put(key: str, value: str) -> None:
    """Sets a key.

    Raises:
        RuntimeError: The key is already set, or the coordinator is unreachable.
    """
    _client().key_value_set(key, value)


def get(key: str, timeout_seconds: float) -> str:
    """Waits until a key is set and returns its value.

    Raises:
        NoAnswer: The key was not set in time.
        RuntimeError: The coordinator is unreachable.
    """
    try:
        return str(_client().blocking_key_value_get(key, max(1, int(timeout_seconds * 1000))))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            raise NoAnswer(key) from None
        raise


def look(key: str) -> str | None:
    """Returns the value of a key, or None if it is not set."""
    try:
        return str(_client().key_value_try_get(key))
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


def below(prefix: str) -> dict[str, str]:
    """Returns the values of all keys that begin with ``prefix/``, by the last part of the key."""
    found = _client().key_value_dir_get(prefix)
    return {str(key).rpartition("/")[2]: str(value) for key, value in found}


def forget(key: str) -> None:
    """Removes a key if it is set."""
    _client().key_value_delete(key)


def post(key: str, value: str) -> None:
    """Sets a key, and overwrites an existing value.

    Raises:
        RuntimeError: The coordinator is unreachable.
    """
    _client().key_value_set(key, value, allow_overwrite=True)
