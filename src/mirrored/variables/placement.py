"""Places values of variables: on all devices of the strategy, or on JAX's default device for plain variables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import jit_key
from mirrored._jax.keys import is_key
from mirrored._jax.traces import eager, is_tracer


def placed(value: Any, device_assignment: Any, per_replica: bool) -> Any:
    """Returns a concrete value in the form in which a variable stores it, also while a function is traced.

    Args:
        value: ``[...]``.
        device_assignment: The devices of the replicas; None for a plain variable.
        per_replica: Whether each replica has its own component.

    Returns:
        ``[...]``, or ``[replicas, ...]`` if per replica.
    """
    with eager(), jit_key.using(None):
        if device_assignment is None:
            return jnp.asarray(value)
        if per_replica:
            whole = (device_assignment.num_replicas, *np.shape(value))
            if device_assignment.spans_processes:
                local_values = (jnp if is_key(value) else np).broadcast_to(
                    _own(value), (device_assignment.local, *np.shape(value))
                )
                return _over(device_assignment, whole, device_assignment.sharded, local_values)
            return jax.device_put(jnp.broadcast_to(value, whole), device_assignment.sharded)
        if device_assignment.spans_processes and getattr(value, "is_fully_addressable", True):
            return _over(device_assignment, np.shape(value), device_assignment.replicated, _own(value))
        return jax.device_put(value, device_assignment.replicated)


def _own(value: Any) -> Any:
    """Returns a value of this process on the host. PRNG keys stay as they are: NumPy cannot hold them."""
    return value if is_key(value) else np.asarray(value)


def _over(device_assignment: Any, shape: tuple[int, ...], sharding: Any, part: Any) -> jax.Array:
    """Returns a global array with `part` on each device of this process. Other processes call it for their devices."""
    # `jax.device_put` to devices of several processes compares the values, with one collective per array.
    parts = [jax.device_put(part, device) for device in device_assignment.addressable_devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def components(whole: jax.Array, device_assignment: Any, per_replica: bool) -> tuple[Any, ...]:
    """Returns a stored value's components: one per replica of this process, on that replica's device."""
    by_device = {shard.device: shard.data for shard in whole.addressable_shards}
    shards = [by_device[device] for device in device_assignment.addressable_devices]
    local = device_assignment.local
    if per_replica:
        return tuple(shard[k] for shard in shards for k in range(local))
    return tuple(shard for shard in shards for _ in range(local))


def aligned(value: Any, device_assignment: Any) -> Any:
    """Returns a concrete value on all devices of a device assignment, so that it can be combined with stored values."""
    if (
        device_assignment is None
        or not _is_committed(value)
        or value.sharding.device_set == set(device_assignment.devices)
    ):
        return value
    return placed(value, device_assignment, per_replica=False)


def near(value: Any, other: Any) -> Any:
    """Returns a concrete value on the single device of `other`, or unchanged if `other` is None."""
    if other is None or not _is_committed(value) or value.sharding.device_set == other.sharding.device_set:
        return value
    return jax.device_put(value, other.device)


def own(value: Any) -> Any:
    """Returns a copy in a new, unshared buffer, which a compiled step may donate."""
    return value if is_tracer(value) else jnp.array(value, copy=True)


def uncommitted(value: Any) -> Any:
    """Returns the value, copied through the host and not committed to a device, so that every replica can use it."""
    return jnp.asarray(np.array(value))


def _is_committed(value: Any) -> bool:
    return isinstance(value, jax.Array) and not is_tracer(value) and bool(value.committed)
