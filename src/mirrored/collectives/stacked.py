"""Reduces and gathers stacked arrays outside of `run`: arrays with one row per replica, sharded over the devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from mirrored._jax.array_types import keeping_width_of
from mirrored._jax.arrays import is_key_dtype
from mirrored._jax.bit_identical import jit
from mirrored._jax.boxes import is_live_box
from mirrored._jax.placement import unplaced
from mirrored._jax.source_lines import user_lines
from mirrored._jax.traces import Tracer, current_trace, is_eval_below
from mirrored.collectives.equal_rows import first_row_of_any_dtype
from mirrored.collectives.host_allgather import host_allgather
from mirrored.collectives.reduce_op import ReduceOp, as_reduce_op, check_types, log_label, type_of
from mirrored.collectives.summation import Group
from mirrored.runtime.component_reads import existing_stack
from mirrored.topology.device_assignment import AXIS, DeviceAssignment
from mirrored.values.stacking import gathered, whole_rows
from mirrored.watchdog.collective_log import collective_log

if TYPE_CHECKING:
    from mirrored.collectives.algorithm import CrossDeviceOps
    from mirrored.values.distributed_values import PerReplica


def group_of(device_assignment: DeviceAssignment) -> Group:
    """Returns the replicas of a device assignment as a `Group`, for use inside `shard_map`."""
    devices = len(device_assignment.devices)
    return Group(
        AXIS if devices > 1 else None,
        devices,
        device_assignment.local,
        device_assignment.spans_processes,
        device_assignment.slots.padded,
    )


def over_devices(
    body: Callable[..., Any],
    device_assignment: DeviceAssignment,
    num_inputs: int,
    *,
    equal: bool,
    as_rows: bool = False,
) -> Callable[..., Any]:
    """Wraps `body` in a `shard_map` over the devices; the inputs are stacked arrays with one row per replica slot.

    Args:
        body: Maps the shards to a list of arrays.
        device_assignment: The devices.
        num_inputs: The number of stacked inputs.
        equal: Whether the results are replicated. Otherwise they are shards of stacked results.
        as_rows: Whether replicated results leave as equal rows, so that their cotangents are not divided
            (`equal_rows`).
    """
    if len(device_assignment.devices) == 1:
        return body
    sharded = PartitionSpec(AXIS)
    mesh = device_assignment.mesh
    mapped = jax.shard_map(
        (lambda *shards: [one[None] for one in body(*shards)]) if as_rows else body,
        mesh=mesh,
        in_specs=(sharded,) * num_inputs,
        out_specs=PartitionSpec() if equal and not as_rows else sharded,
        check_vma=False,
    )
    if as_rows:
        return lambda *inputs: [unplaced(first_row_of_any_dtype(mesh, one)) for one in mapped(*inputs)]
    return (lambda *inputs: [unplaced(one) for one in mapped(*inputs)]) if equal else mapped


def _reduction(
    algorithm: CrossDeviceOps,
    op: ReduceOp,
    device_assignment: DeviceAssignment,
    num_inputs: int,
    *,
    is_traced: bool = False,
) -> Callable[..., Any]:
    group = group_of(device_assignment)
    as_rows = is_traced and algorithm.requires_bit_identity

    def body(*locals_: Any) -> Any:
        return algorithm.reduce_arrays(
            op, [[local[k] for k in range(device_assignment.local)] for local in locals_], group
        )

    return over_devices(body, device_assignment, num_inputs, equal=True, as_rows=as_rows)


# Process-wide: an entry keeps the algorithm, the device assignment and the compiled program alive until it is replaced.


@functools.lru_cache(maxsize=256)
def _compiled_reduction(
    algorithm: CrossDeviceOps, op: ReduceOp, device_assignment: DeviceAssignment, num_inputs: int
) -> Callable[..., Any]:
    reduction = _reduction(algorithm, op, device_assignment, num_inputs)
    compiled: Callable[..., Any] = jit(
        reduction, bit_identical=algorithm.requires_bit_identity, out_shardings=device_assignment.replicated
    )
    return compiled


def check_components(called: str, values: Sequence[PerReplica], device_assignment: DeviceAssignment) -> None:
    """Raises an error if the components of a value differ in shape or dtype, before a reduction outside of `run`.

    With several workers, this is a host all-gather: stacking needs no other worker, and a collective of arrays that
    differ hangs, or reads the bits of one dtype as those of another. Stacked values need no host all-gather, because
    each of them is one array of all workers.

    Raises:
        StructureError: Shapes or dtypes differ, on all workers.
    """
    spans = device_assignment.spans_processes  # another worker may not have made the stacked array of its components
    unknown = [value for value in values if not (value.is_stacked if spans else existing_stack(value) is not None)]
    own = [[type_of(component) for component in value.values] for value in unknown]
    if not own:
        return
    everyone: Sequence[Any] = [own]
    traced = (isinstance(one, Tracer) for value in unknown for one in value.values)
    if spans and not any(traced):
        everyone = host_allgather(called, f"{called}: compare the types of {len(own)} values", own)
    for columns in zip(*everyone, strict=True):
        check_types(called, [(dtype, tuple(shape)) for column in columns for dtype, shape in column])


def reduce_stacked(
    algorithm: CrossDeviceOps,
    op: ReduceOp | str | Callable[[Any], Any],
    arrays: Sequence[Any],
    device_assignment: DeviceAssignment,
) -> list[Any]:
    """Reduces stacked arrays, which have one row per replica, with a given all-reduce algorithm.

    One program reduces all arrays.

    Context: cross-replica, eager or traced.
    """
    if not arrays:
        return []
    op = as_reduce_op(op)
    if any(is_live_box(array) for array in arrays):
        one_device = Group(axis=None, devices=1, local=device_assignment.num_replicas)
        together = _on_same_devices(arrays, device_assignment)
        lists = [_components(array, device_assignment) for array in together]
        return [
            on_all_devices(reduced, device_assignment) for reduced in algorithm.reduce_arrays(op, lists, one_device)
        ]
    with keeping_width_of(arrays):
        # JAX refuses the compiler options of a bit-identical program in a trace, so arrays that a traced function
        # closes over are reduced in its program, too.
        if any(isinstance(array, Tracer) for array in arrays) or not is_eval_below(current_trace()):
            return list(_reduction(algorithm, op, device_assignment, len(arrays), is_traced=True)(*arrays))
        return _reduced_now(algorithm, op, arrays, device_assignment)


def _reduced_now(
    algorithm: CrossDeviceOps, op: ReduceOp, arrays: Sequence[Any], device_assignment: DeviceAssignment
) -> list[Any]:
    # The user's Python code runs at every eager call: a cached trace would keep the state that it read at the first one
    # (a global, an attribute of the object behind a bound method).
    calls_user_code = op.calls_user_code or algorithm.calls_user_code
    if calls_user_code and not device_assignment.spans_processes:
        one_device = Group(axis=None, devices=1, local=device_assignment.num_replicas)
        near = [jax.device_put(array, device_assignment.devices[0]) for array in arrays]
        lists = [_components(array, device_assignment) for array in near]
        return [
            jax.device_put(reduced, device_assignment.replicated)
            for reduced in algorithm.reduce_arrays(op, lists, one_device)
        ]
    placed = [_over_devices(array, device_assignment) for array in arrays]
    compile_ = _compiled_reduction.__wrapped__ if calls_user_code else _compiled_reduction
    compiled = compile_(algorithm, op, device_assignment, len(placed))
    label = f"reduce {log_label(op)}"
    if device_assignment.spans_processes:
        label = f"{label} of {', '.join(f'{array.dtype}{list(array.shape[1:])}' for array in placed)}"
    return list(_logged(label, device_assignment, lambda: compiled(*placed)))


def _over_devices(stacked: jax.Array, device_assignment: DeviceAssignment) -> Any:
    if device_assignment.spans_processes and is_key_dtype(stacked.dtype):
        return stacked  # made over all devices; `jax.device_put` of PRNG keys takes only devices of this process
    return jax.device_put(stacked, device_assignment.sharded)


def _components(stacked: jax.Array, device_assignment: DeviceAssignment) -> list[Any]:
    """Splits a stacked array into the replicas' values, in replica order; skips rows without a replica."""
    return [stacked[device_assignment.slots.of(replica)] for replica in range(device_assignment.num_replicas)]


def _on_same_devices(arrays: Sequence[Any], device_assignment: DeviceAssignment) -> Sequence[Any]:
    """Moves the arrays to the first replica's device if they are on different devices, so that they can be combined.

    Components that a tape outside `run` tracks are stacked on the first device, other components over all devices. An
    algorithm may pass all arrays to one operation. Tracers are returned unchanged.
    """
    if (
        any(isinstance(array, Tracer) for array in arrays)
        or len({frozenset(array.sharding.device_set) for array in arrays}) == 1
    ):
        return arrays
    return [jax.device_put(array, device_assignment.devices[0]) for array in arrays]


def on_all_devices(array: jax.Array, device_assignment: DeviceAssignment) -> Any:
    """Copies an array from one device to the devices of all replicas; returns tracers unchanged.

    A tape records the transfer, so that the backward pass moves the cotangent back to the one device. Tracers are
    returned unchanged, because JAX's own rule would leave their cotangents on all devices.
    """
    if len(device_assignment.devices) == 1 or isinstance(array, Tracer):
        return array
    return jax.device_put(array, device_assignment.replicated)


def _logged(label: str, device_assignment: DeviceAssignment, compute: Callable[[], Any]) -> Any:
    """Runs an eager collective; records it in the watchdog's collective log if the devices span several processes.

    In a trace, it becomes a part of the traced program, whose calls are recorded.
    """
    if not device_assignment.spans_processes or not is_eval_below(current_trace()):
        return compute()
    collective_log.arrive(label, user_lines())
    result_array = None
    try:
        result = compute()
        result_array = jax.tree.leaves(result)[0]
        return result
    finally:
        collective_log.depart(result_array)


@functools.lru_cache(maxsize=256)
def _compiled_gather(axis: int, device_assignment: DeviceAssignment) -> Callable[..., Any]:
    gather = functools.partial(_concatenated, axis=axis, device_assignment=device_assignment)
    return jax.jit(gather, out_shardings=device_assignment.replicated)


def _concatenated(stacked: jax.Array, axis: int, device_assignment: DeviceAssignment) -> Any:
    return jnp.concatenate(_components(gathered(stacked, device_assignment), device_assignment), axis=axis)


@functools.lru_cache(maxsize=256)
def _compiled_ragged_gather(
    axis: int, sizes: tuple[int, ...], device_assignment: DeviceAssignment
) -> Callable[..., Any]:
    def gather(stacked: jax.Array) -> Any:
        components = zip(_components(gathered(stacked, device_assignment), device_assignment), sizes, strict=True)
        parts = [jax.lax.slice_in_dim(component, 0, size, axis=axis) for component, size in components]
        return jnp.concatenate(parts, axis=axis)

    return jax.jit(gather, out_shardings=device_assignment.replicated)


def gather_padded(array: jax.Array, axis: int, sizes: Sequence[int], device_assignment: DeviceAssignment) -> Any:
    """Concatenates the replicas' rows of a stacked array along `axis`, after cutting each row to its size in `sizes`.

    Each row is the component of one replica.

    Args:
        array: A concrete array ``[slots, ...]``.
        axis: The dimension of the components, not negative.
        sizes: The size along `axis` of each replica's component without padding.
        device_assignment: The devices.
    """
    compiled, placed = (
        _compiled_ragged_gather(axis, tuple(sizes), device_assignment),
        _over_devices(array, device_assignment),
    )
    with keeping_width_of([placed]):
        return _logged("gather", device_assignment, lambda: compiled(placed))


@functools.lru_cache(maxsize=256)
def _compiled_first(device_assignment: DeviceAssignment) -> Callable[..., Any]:
    return jax.jit(lambda array: array[0], out_shardings=device_assignment.replicated)


def first_stacked(array: jax.Array, device_assignment: DeviceAssignment) -> Any:
    """Returns the first replica's row of a stacked array, which has one row per replica.

    In a job of several processes it is copied to every device.
    """
    if isinstance(array, Tracer) or is_live_box(array) or not device_assignment.spans_processes:
        return whole_rows(array, device_assignment)[0]
    with keeping_width_of([array]):
        return _logged(
            "fetch the first replica's value", device_assignment, lambda: _compiled_first(device_assignment)(array)
        )


@functools.lru_cache(maxsize=8)
def _compiled_whole(device_assignment: DeviceAssignment) -> Callable[..., Any]:
    return jax.jit(device_assignment.slots.rows, out_shardings=device_assignment.replicated)


def whole_stacked(array: jax.Array, device_assignment: DeviceAssignment) -> Any:
    """Returns all rows ``[replicas, ...]`` of a stacked array; all-gathers the rows if several processes hold them."""
    with keeping_width_of([array]):
        if not device_assignment.spans_processes:
            return device_assignment.slots.rows(array)
        return _logged(
            "fetch all replicas' values", device_assignment, lambda: _compiled_whole(device_assignment)(array)
        )


def concatenated(arrays: Sequence[jax.Array], axis: int) -> jax.Array:
    """Concatenates arrays on one device along `axis`."""
    with keeping_width_of(arrays):
        return jnp.concatenate(arrays, axis)


def gather_stacked(array: jax.Array, axis: int, device_assignment: DeviceAssignment) -> Any:
    """Concatenates the rows of a stacked array, one per replica, along `axis`, in replica order."""
    if isinstance(array, Tracer) or is_live_box(array):
        return on_all_devices(_concatenated(array, axis, device_assignment), device_assignment)
    placed = _over_devices(array, device_assignment)
    with keeping_width_of([placed]):
        return _logged("gather", device_assignment, lambda: _compiled_gather(axis, device_assignment)(placed))
