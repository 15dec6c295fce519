"""Concatenating components of several processes, whose sizes may differ."""

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
    """The components of all replicas, one after another along `axis`, along which their sizes may differ.

    Args:
        components: Of the replicas of this process, in order.
        axis: May be negative.
        device_assignment: Which replica lives where; on several processes.
    """
    return gather_with_sizes(components, axis, device_assignment)[0]


def gather_with_sizes(
    components: Sequence[Any], axis: int, device_assignment: DeviceAssignment
) -> tuple[Any, list[int]]:
    """`gather_across`, and the size of each replica's component along `axis`."""
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
