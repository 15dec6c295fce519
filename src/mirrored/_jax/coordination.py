"""The key-value store of a job of several processes: small messages between hosts, by way of the coordinator.

Serves JAX 0.10 to 0.12: the client is found at `jax._src.distributed.global_state`, where JAX's own
`multihost_utils` finds it. It may be used in any thread, and does not wait for devices.
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
    """Whether JAX has made its devices, so that this process can no longer join a job."""
    return bool(_xla_bridge.backends_are_initialized())


def disconnect_child() -> None:
    """In a forked child: leaves the job to the parent.

    JAX would tell the coordinator at the child's exit that this process has ended. The objects are never destroyed:
    their destructors would shut down the connections, which are the parent's, and wait for threads that the child
    does not have.
    """
    state = _distributed.global_state
    for inherited in (state.client, state.service, state.preemption_sync_manager):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
    state.client = state.service = state.preemption_sync_manager = None
    state.num_processes, state.process_id = 1, 0


def is_connected() -> bool:
    """Whether this process has joined a job of several."""
    return _distributed.global_state.client is not None and (_distributed.global_state.num_processes or 1) > 1


def this_process() -> int:
    """The index of this process, without starting JAX's devices."""
    return int(_distributed.global_state.process_id or 0)


def num_processes() -> int:
    """How many processes the job has, without starting JAX's devices."""
    return int(_distributed.global_state.num_processes or 1)


def address() -> str:
    """``host:port`` of the coordinator."""
    return str(_distributed.global_state.coordinator_address)


def _client() -> Any:
    return _distributed.global_state.client


def put(key: str, value: str) -> None:
    """Sets a key.

    Raises:
        RuntimeError: It is set already, or the coordinator is gone.
    """
    _client().key_value_set(key, value)


def get(key: str, timeout_seconds: float) -> str:
    """The value of a key, as soon as it is set.

    Raises:
        NoAnswer: It was not set in time.
        RuntimeError: The coordinator is gone.
    """
    try:
        return str(_client().blocking_key_value_get(key, max(1, int(timeout_seconds * 1000))))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            raise NoAnswer(key) from None
        raise


def look(key: str) -> str | None:
    """The value of a key, None if it is not set."""
    try:
        return str(_client().key_value_try_get(key))
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


def below(prefix: str) -> dict[str, str]:
    """All keys that begin with ``prefix/`` and are set, without it."""
    found = _client().key_value_dir_get(prefix)
    return {str(key).rpartition("/")[2]: str(value) for key, value in found}


def forget(key: str) -> None:
    """Removes a key, if it is there."""
    _client().key_value_delete(key)


def post(key: str, value: str) -> None:
    """Sets a key, also one that is set already.

    Raises:
        RuntimeError: The coordinator is gone.
    """
    _client().key_value_set(key, value, allow_overwrite=True)
