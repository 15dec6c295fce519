"""Where a variable's values lie: on all devices of its strategy, or wherever JAX puts a plain one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import jit_key
from mirrored._jax.keys import is_key
from mirrored._jax.traces import eager, is_tracer


def placed(value: Any, device_assignment: Any, per_replica: bool) -> Any:
    """A concrete value in the form in which a variable stores it, whatever is being traced.

    Args:
        value: ``[...]``.
        device_assignment: Which replica lives on which device; None for a plain variable.
        per_replica: Whether each replica gets a component of its own.

    Returns:
        ``[...]``, or ``[replicas, ...]`` if per replica.
    """
    with eager(), jit_key.using(None):
        if device_assignment is None:
            return jnp.asarray(value)
        if per_replica:
            whole = (device_assignment.num_replicas, *np.shape(value))
            if device_assignment.spans_processes:
                mine = (jnp if is_key(value) else np).broadcast_to(
                    _own(value), (device_assignment.local, *np.shape(value))
                )
                return _over(device_assignment, whole, device_assignment.sharded, mine)
            return jax.device_put(jnp.broadcast_to(value, whole), device_assignment.sharded)
        if device_assignment.spans_processes and getattr(value, "is_fully_addressable", True):
            return _over(device_assignment, np.shape(value), device_assignment.replicated, _own(value))
        return jax.device_put(value, device_assignment.replicated)


def _own(value: Any) -> Any:
    """A value of this process on the host; PRNG keys, which NumPy cannot hold, as they are."""
    return value if is_key(value) else np.asarray(value)


def _over(device_assignment: Any, shape: tuple[int, ...], sharding: Any, part: Any) -> jax.Array:
    """An array of which each device of this process holds `part`, as those of other processes do."""
    # `jax.device_put` would compare the values of all processes, one collective for each array.
    parts = [jax.device_put(part, device) for device in device_assignment.addressable_devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def components(whole: jax.Array, device_assignment: Any, per_replica: bool) -> tuple[Any, ...]:
    """A stored value's components, one per replica of this process, each on its replica's device."""
    by_device = {shard.device: shard.data for shard in whole.addressable_shards}
    shards = [by_device[device] for device in device_assignment.addressable_devices]
    local = device_assignment.local
    if per_replica:
        return tuple(shard[k] for shard in shards for k in range(local))
    return tuple(shard for shard in shards for _ in range(local))


def aligned(value: Any, device_assignment: Any) -> Any:
    """A concrete value on all devices of a layout, so that it can be combined with what is there."""
    if (
        device_assignment is None
        or not _is_committed(value)
        or value.sharding.device_set == set(device_assignment.devices)
    ):
        return value
    return placed(value, device_assignment, per_replica=False)


def near(value: Any, other: Any) -> Any:
    """A concrete value on the one device of another (or as it is, if there is none)."""
    if other is None or not _is_committed(value) or value.sharding.device_set == other.sharding.device_set:
        return value
    return jax.device_put(value, other.device)


def own(value: Any) -> Any:
    """A buffer that nobody else holds: a compiled step may donate it."""
    return value if is_tracer(value) else jnp.array(value, copy=True)


def uncommitted(value: Any) -> Any:
    """The value by way of the host, committed to no device, so that each replica can use it on its own."""
    return jnp.asarray(np.array(value))


def _is_committed(value: Any) -> bool:
    return isinstance(value, jax.Array) and not is_tracer(value) and bool(value.committed)
