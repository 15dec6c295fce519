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
from mirrored.topology.device_assignment import AXIS, Layout
from mirrored.watchdog.collective_log import roll


def group_of(layout: Layout) -> Group:
    """How a layout's replicas lie: over how many devices, how many on each."""
    devices = len(layout.devices)
    return Group(AXIS if devices > 1 else None, devices, layout.local, layout.spans_processes)


def over_devices(body: Callable[..., Any], layout: Layout, num_inputs: int, *, equal: bool) -> Callable[..., Any]:
    """Runs `body` on every device over its local part ``[local, ...]`` of stacked inputs.

    Args:
        body: From the local parts to a list of arrays.
        layout: The devices.
        num_inputs: How many stacked inputs there are.
        equal: Whether the results are equal on all devices (else they are local parts of stacked results).
    """
    if len(layout.devices) == 1:
        return body
    sharded = PartitionSpec(AXIS)
    return jax.shard_map(
        body,
        mesh=layout.mesh,
        in_specs=(sharded,) * num_inputs,
        out_specs=PartitionSpec() if equal else sharded,
        check_vma=False,
    )


def _reduction(algorithm: Any, op: Any, layout: Layout, num_inputs: int) -> Callable[..., Any]:
    group = group_of(layout)

    def body(*locals_: Any) -> Any:
        return algorithm.reduce_arrays(op, [[local[k] for k in range(layout.local)] for local in locals_], group)

    return over_devices(body, layout, num_inputs, equal=True)


@functools.lru_cache(maxsize=256)
def _compiled_reduction(algorithm: Any, op: Any, layout: Layout, num_inputs: int) -> Callable[..., Any]:
    reduction = _reduction(algorithm, op, layout, num_inputs)
    compiled: Callable[..., Any] = jit(reduction, as_written=algorithm.as_written, out_shardings=layout.replicated)
    return compiled


def reduce_stacked(algorithm: Any, op: Any, arrays: Sequence[Any], layout: Layout) -> list[Any]:
    """Reduces each ``[replicas, ...]`` over its first axis, by `algorithm`.

    Context: cross-replica, eager or traced. All arrays go into one program.
    """
    if not arrays:
        return []
    if any(is_live_box(array) for array in arrays):
        alone = Group(axis=None, devices=1, local=layout.num_replicas)
        lists = [[array[k] for k in range(layout.num_replicas)] for array in arrays]
        return [on_all_devices(reduced, layout) for reduced in algorithm.reduce_arrays(op, lists, alone)]
    if any(is_tracer(array) for array in arrays):
        return list(_reduction(algorithm, op, layout, len(arrays))(*arrays))
    placed = [jax.device_put(array, layout.sharded) for array in arrays]
    compiled = _compiled_reduction(algorithm, op, layout, len(placed))
    return list(_together(f"reduce {op!r}", layout, lambda: compiled(*placed)))


def on_all_devices(array: Any, layout: Layout) -> Any:
    """`array`, computed on one device, on all devices of `layout`, where it meets variables.

    A tape records the transfer, so that the cotangent goes back to the one device. Tracers are left as they are: JAX's
    own rule would leave their cotangents on all devices.
    """
    if len(layout.devices) == 1 or is_tracer(array):
        return array
    return jax.device_put(array, layout.replicated)


def _together(label: str, layout: Layout, compute: Callable[[], Any]) -> Any:
    """Runs an eager collective; where it spans processes, the collective log says so while it is under way."""
    if not layout.spans_processes:
        return compute()
    roll.arrive(label, user_lines())
    token = None
    try:
        result = compute()
        token = jax.tree.leaves(result)[0]
        return result
    finally:
        roll.depart(token)


@functools.lru_cache(maxsize=256)
def _compiled_gather(axis: int, layout: Layout) -> Callable[..., Any]:
    return jax.jit(lambda array: _concatenated(array, axis), out_shardings=layout.replicated)


def _concatenated(stacked: Any, axis: int) -> Any:
    return jnp.concatenate([stacked[i] for i in range(stacked.shape[0])], axis=axis)


@functools.lru_cache(maxsize=256)
def _compiled_ragged_gather(axis: int, sizes: tuple[int, ...], layout: Layout) -> Callable[..., Any]:
    def gather(stacked: Any) -> Any:
        parts = [jax.lax.slice_in_dim(stacked[i], 0, size, axis=axis) for i, size in enumerate(sizes)]
        return jnp.concatenate(parts, axis=axis)

    return jax.jit(gather, out_shardings=layout.replicated)


def gather_padded(array: Any, axis: int, sizes: Sequence[int], layout: Layout) -> Any:
    """`gather_stacked` of components that were padded at their ends along `axis`, without the padding.

    Args:
        array: ``[replicas, ...]``, concrete.
        axis: Which dimension of the components, not negative.
        sizes: Of each replica's component without padding.
        layout: Where they lie.
    """
    compiled, placed = _compiled_ragged_gather(axis, tuple(sizes), layout), jax.device_put(array, layout.sharded)
    return _together("gather", layout, lambda: compiled(placed))


@functools.lru_cache(maxsize=256)
def _compiled_first(layout: Layout) -> Callable[..., Any]:
    return jax.jit(lambda array: array[0], out_shardings=layout.replicated)


def first_stacked(array: Any, layout: Layout) -> Any:
    """The first replica's component of ``[replicas, ...]``, on every device of a job of several processes."""
    if is_tracer(array) or is_live_box(array) or not layout.spans_processes:
        return array[0]
    return _together("take the first replica's value", layout, lambda: _compiled_first(layout)(array))


@functools.lru_cache(maxsize=8)
def _compiled_whole(layout: Layout) -> Callable[..., Any]:
    return jax.jit(lambda array: array, out_shardings=layout.replicated)


def whole_stacked(array: Any, layout: Layout) -> Any:
    """``[replicas, ...]`` as one array that this process can read, whatever processes hold its parts."""
    if not layout.spans_processes:
        return array
    return _together("take all replicas' values", layout, lambda: _compiled_whole(layout)(array))


def gather_stacked(array: Any, axis: int, layout: Layout) -> Any:
    """Concatenates the components of ``[replicas, ...]`` along `axis`, in replica order."""
    if is_tracer(array) or is_live_box(array):
        return on_all_devices(_concatenated(array, axis), layout)
    placed = jax.device_put(array, layout.sharded)
    return _together("gather", layout, lambda: _compiled_gather(axis, layout)(placed))
