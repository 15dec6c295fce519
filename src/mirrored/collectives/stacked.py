"""Reducing and gathering stacked values ``[replicas, ...]`` that lie over a layout's devices, outside a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from mirrored._jax.as_written import jit
from mirrored._jax.boxes import is_live_box
from mirrored._jax.frames import user_lines
from mirrored._jax.traces import is_tracer
from mirrored.collectives.group import Group
from mirrored.topology.device_assignment import AXIS, DeviceAssignment
from mirrored.watchdog.collective_log import collective_log


def group_of(device_assignment: DeviceAssignment) -> Group:
    """How a layout's replicas lie: over how many devices, how many on each."""
    devices = len(device_assignment.devices)
    return Group(AXIS if devices > 1 else None, devices, device_assignment.local, device_assignment.spans_processes)


def over_devices(
    body: Callable[..., Any], device_assignment: DeviceAssignment, num_inputs: int, *, equal: bool
) -> Callable[..., Any]:
    """Runs `body` on every device over its local part ``[local, ...]`` of stacked inputs.

    Args:
        body: From the local parts to a list of arrays.
        device_assignment: The devices.
        num_inputs: How many stacked inputs there are.
        equal: Whether the results are equal on all devices (else they are local parts of stacked results).
    """
    if len(device_assignment.devices) == 1:
        return body
    sharded = PartitionSpec(AXIS)
    return jax.shard_map(
        body,
        mesh=device_assignment.mesh,
        in_specs=(sharded,) * num_inputs,
        out_specs=PartitionSpec() if equal else sharded,
        check_vma=False,
    )


def _reduction(algorithm: Any, op: Any, device_assignment: DeviceAssignment, num_inputs: int) -> Callable[..., Any]:
    group = group_of(device_assignment)

    def body(*locals_: Any) -> Any:
        return algorithm.reduce_arrays(
            op, [[local[k] for k in range(device_assignment.local)] for local in locals_], group
        )

    return over_devices(body, device_assignment, num_inputs, equal=True)


@functools.lru_cache(maxsize=256)
def _compiled_reduction(
    algorithm: Any, op: Any, device_assignment: DeviceAssignment, num_inputs: int
) -> Callable[..., Any]:
    reduction = _reduction(algorithm, op, device_assignment, num_inputs)
    compiled: Callable[..., Any] = jit(
        reduction, as_written=algorithm.as_written, out_shardings=device_assignment.replicated
    )
    return compiled


def reduce_stacked(algorithm: Any, op: Any, arrays: Sequence[Any], device_assignment: DeviceAssignment) -> list[Any]:
    """Reduces each ``[replicas, ...]`` over its first axis, by `algorithm`.

    Context: cross-replica, eager or traced. All arrays go into one program.
    """
    if not arrays:
        return []
    if any(is_live_box(array) for array in arrays):
        alone = Group(axis=None, devices=1, local=device_assignment.num_replicas)
        lists = [[array[k] for k in range(device_assignment.num_replicas)] for array in arrays]
        return [on_all_devices(reduced, device_assignment) for reduced in algorithm.reduce_arrays(op, lists, alone)]
    if any(is_tracer(array) for array in arrays):
        return list(_reduction(algorithm, op, device_assignment, len(arrays))(*arrays))
    placed = [jax.device_put(array, device_assignment.sharded) for array in arrays]
    compiled = _compiled_reduction(algorithm, op, device_assignment, len(placed))
    return list(_together(f"reduce {op!r}", device_assignment, lambda: compiled(*placed)))


def on_all_devices(array: Any, device_assignment: DeviceAssignment) -> Any:
    """`array`, computed on one device, on all devices of `device_assignment`, where it meets variables.

    A tape records the transfer, so that the cotangent goes back to the one device. Tracers are left as they are: JAX's
    own rule would leave their cotangents on all devices.
    """
    if len(device_assignment.devices) == 1 or is_tracer(array):
        return array
    return jax.device_put(array, device_assignment.replicated)


def _together(label: str, device_assignment: DeviceAssignment, compute: Callable[[], Any]) -> Any:
    """Runs an eager collective; where it spans processes, the collective log says so while it is under way."""
    if not device_assignment.spans_processes:
        return compute()
    collective_log.arrive(label, user_lines())
    token = None
    try:
        result = compute()
        token = jax.tree.leaves(result)[0]
        return result
    finally:
        collective_log.depart(token)


@functools.lru_cache(maxsize=256)
def _compiled_gather(axis: int, device_assignment: DeviceAssignment) -> Callable[..., Any]:
    return jax.jit(lambda array: _concatenated(array, axis), out_shardings=device_assignment.replicated)


def _concatenated(stacked: Any, axis: int) -> Any:
    return jnp.concatenate([stacked[i] for i in range(stacked.shape[0])], axis=axis)


@functools.lru_cache(maxsize=256)
def _compiled_ragged_gather(
    axis: int, sizes: tuple[int, ...], device_assignment: DeviceAssignment
) -> Callable[..., Any]:
    def gather(stacked: Any) -> Any:
        parts = [jax.lax.slice_in_dim(stacked[i], 0, size, axis=axis) for i, size in enumerate(sizes)]
        return jnp.concatenate(parts, axis=axis)

    return jax.jit(gather, out_shardings=device_assignment.replicated)


def gather_padded(array: Any, axis: int, sizes: Sequence[int], device_assignment: DeviceAssignment) -> Any:
    """`gather_stacked` of components that were padded at their ends along `axis`, without the padding.

    Args:
        array: ``[replicas, ...]``, concrete.
        axis: Which dimension of the components, not negative.
        sizes: Of each replica's component without padding.
        device_assignment: Where they lie.
    """
    compiled, placed = (
        _compiled_ragged_gather(axis, tuple(sizes), device_assignment),
        jax.device_put(array, device_assignment.sharded),
    )
    return _together("gather", device_assignment, lambda: compiled(placed))


@functools.lru_cache(maxsize=256)
def _compiled_first(device_assignment: DeviceAssignment) -> Callable[..., Any]:
    return jax.jit(lambda array: array[0], out_shardings=device_assignment.replicated)


def first_stacked(array: Any, device_assignment: DeviceAssignment) -> Any:
    """The first replica's component of ``[replicas, ...]``, on every device of a job of several processes."""
    if is_tracer(array) or is_live_box(array) or not device_assignment.spans_processes:
        return array[0]
    return _together(
        "take the first replica's value", device_assignment, lambda: _compiled_first(device_assignment)(array)
    )


@functools.lru_cache(maxsize=8)
def _compiled_whole(device_assignment: DeviceAssignment) -> Callable[..., Any]:
    return jax.jit(lambda array: array, out_shardings=device_assignment.replicated)


def whole_stacked(array: Any, device_assignment: DeviceAssignment) -> Any:
    """``[replicas, ...]`` as one array that this process can read, whatever processes hold its parts."""
    if not device_assignment.spans_processes:
        return array
    return _together("take all replicas' values", device_assignment, lambda: _compiled_whole(device_assignment)(array))


def gather_stacked(array: Any, axis: int, device_assignment: DeviceAssignment) -> Any:
    """Concatenates the components of ``[replicas, ...]`` along `axis`, in replica order."""
    if is_tracer(array) or is_live_box(array):
        return on_all_devices(_concatenated(array, axis), device_assignment)
    placed = jax.device_put(array, device_assignment.sharded)
    return _together("gather", device_assignment, lambda: _compiled_gather(axis, device_assignment)(placed))
