"""Initial values in a multi-worker job: every worker uses the value of worker 0."""

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
    """Returns worker 0's initial value.

    Context: a host all-gather, so all workers call it in the same order; also while tracing. It exchanges digests
    first: values that are equal on all workers (usually because they come from the same seed) are not sent.

    Raises:
        DisagreementError: The workers create variables with different names, shapes or dtypes.
    """
    if is_key(value):
        data = broadcast_initial(jax.random.key_data(value), name, device_assignment)
        with eager():
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    with eager():
        host_value = np.asarray(value)
        outline = f"{host_value.dtype.name}{list(host_value.shape)}"
        gathered = host_allgather("Variable", f"create variable {name!r}", [outline, digest(host_value)])
        _check_outlines([one[0] for one in gathered], name)
        if all(one[1] == gathered[0][1] for one in gathered):
            return jnp.array(host_value, copy=True)
        return jnp.array(from_first(host_value, device_assignment), copy=True)


def from_first(array: np.ndarray[Any, Any], device_assignment: DeviceAssignment) -> np.ndarray[Any, Any]:
    """Broadcasts the first worker's array. Every worker passes an array of the same shape and dtype."""
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    # The bytes are padded to a power of two: one program is compiled per size, and so there are few.
    size = 1 << max(10, (max(data.size, 1) - 1).bit_length())
    padded = np.zeros((1, size), np.uint8)
    padded[0, : data.size] = data
    parts = [jax.device_put(padded, device) for device in device_assignment.addressable_devices]
    shape = (len(device_assignment.devices), size)
    whole = jax.make_array_from_single_device_arrays(shape, device_assignment.sharded, parts)
    received = np.asarray(_first(device_assignment)(whole))[: data.size]
    return np.frombuffer(received.tobytes(), array.dtype).reshape(array.shape)


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
