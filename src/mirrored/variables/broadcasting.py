"""Initial values in a job of several workers: all take that of worker 0."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.keys import is_key
from mirrored._jax.traces import eager
from mirrored.collectives.host_allgather import digest, host_allgather
from mirrored.errors import DisagreementError
from mirrored.topology.device_assignment import DeviceAssignment


def broadcast_initial(value: Any, name: str | None, device_assignment: DeviceAssignment) -> jax.Array:
    """Worker 0's initial value.

    Context: on all workers, in the same order; also while tracing. Values that are equal on all workers already (they
    come from the same seed) are compared, not sent.

    Raises:
        DisagreementError: Workers create variables of other names, shapes or dtypes here.
    """
    if is_key(value):
        data = broadcast_initial(jax.random.key_data(value), name, device_assignment)
        with eager():
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    with eager():
        mine = np.asarray(value)
        outline = f"{mine.dtype.name}{list(mine.shape)}"
        everyone = host_allgather("Variable", f"create variable {name!r}", [outline, digest(mine)])
        _check_outlines([theirs[0] for theirs in everyone], name)
        if all(theirs[1] == everyone[0][1] for theirs in everyone):
            return jnp.array(mine, copy=True)
        return jnp.array(from_first(mine, device_assignment), copy=True)


def from_first(mine: np.ndarray[Any, Any], device_assignment: DeviceAssignment) -> np.ndarray[Any, Any]:
    """The array that the first worker has, from one of the same shape and dtype on each worker."""
    data = np.frombuffer(np.ascontiguousarray(mine).tobytes(), np.uint8)
    # Few sizes, so that few programs are compiled.
    size = 1 << max(10, (max(data.size, 1) - 1).bit_length())
    padded = np.zeros((1, size), np.uint8)
    padded[0, : data.size] = data
    parts = [jax.device_put(padded, device) for device in device_assignment.addressable_devices]
    shape = (len(device_assignment.devices), size)
    whole = jax.make_array_from_single_device_arrays(shape, device_assignment.sharded, parts)
    received = np.asarray(_first(device_assignment)(whole))[: data.size]
    return np.frombuffer(received.tobytes(), mine.dtype).reshape(mine.shape)


@functools.lru_cache(maxsize=8)
def _first(device_assignment: DeviceAssignment) -> Callable[..., Any]:
    return jax.jit(lambda rows: rows[0], out_shardings=device_assignment.replicated)


def _check_outlines(outlines: list[str], name: str | None) -> None:
    if len(set(outlines)) == 1:
        return
    raise DisagreementError(
        "Variable",
        found=f"variable {name!r} is "
        + ", ".join(f"{outline} on worker {worker}" for worker, outline in enumerate(outlines)),
        rule="all workers create the same variables, in the same order",
        remedy="build the model from the same settings on all workers",
    )
