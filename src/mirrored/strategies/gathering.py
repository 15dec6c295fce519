"""Gathers over several processes: concatenates components whose sizes may differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from mirrored._jax.putting import as_array
from mirrored.collectives.host_allgather import host_allgather
from mirrored.collectives.stacked import gather_padded
from mirrored.topology.device_assignment import DeviceAssignment
from mirrored.values.distributed_values import stack_components


def gather_across(components: Sequence[Any], axis: int, device_assignment: DeviceAssignment) -> Any:
    """Concatenates the components of all replicas along `axis`. Their sizes along `axis` may differ.

    Args:
        components: The components of the replicas of this process, in replica order.
        axis: The dimension; may be negative.
        device_assignment: The devices of the replicas, on several processes.
    """
    return gather_with_sizes(components, axis, device_assignment)[0]


def gather_with_sizes(
    components: Sequence[Any], axis: int, device_assignment: DeviceAssignment
) -> tuple[Any, list[int]]:
    """Gathers like `gather_across`, and also returns the size of each replica's component along `axis`."""
    arrays = [as_array(component) for component in components]
    axis %= arrays[0].ndim
    rest = {array.shape[:axis] + array.shape[axis + 1 :] for array in arrays}
    question = f"gather {arrays[0].dtype}{sorted(rest)} along axis {axis}"
    sizes = [
        size
        for worker in host_allgather("gather", question, [array.shape[axis] for array in arrays])
        for size in worker
    ]
    most = max(sizes)
    padded = [_padded(array, axis, most) for array in arrays]
    return gather_padded(stack_components(padded, device_assignment), axis, sizes, device_assignment), sizes


def _padded(array: Any, axis: int, size: int) -> Any:
    after = [(0, size - length if dim == axis else 0) for dim, length in enumerate(array.shape)]
    return jnp.pad(array, after)
