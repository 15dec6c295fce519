"""Converts between the components of per-replica values and one stacked array, which is sharded over the devices.

The array has one row per slot (`topology.slots`). Without empty slots these are the replicas.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.array_likes import has_registered, registered_as_arrays
from mirrored._jax.array_types import keeping_width_of
from mirrored._jax.arrays import as_array, check_fit, frozen
from mirrored._jax.boxes import Array, is_live_box, payload_of
from mirrored._jax.placement import movable, unplaced
from mirrored._jax.traces import (
    Tracer,
    belongs_to,
    canonical_dtype,
    current_trace,
    eager,
    is_eval_below,
    trace_below_tapes,
)
from mirrored._typing import HostArray, Leaf
from mirrored.errors import ValuesError
from mirrored.values.attributes import attribute

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment

_TrackedRead = Callable[[jax.Array, "DeviceAssignment | None"], "tuple[Any, ...] | None"]
_tracked_reads: list[_TrackedRead] = []


def register_tracked_read(read: _TrackedRead) -> None:
    """Registers a function that splits a stacked array by operations that gradient tapes record.

    Args:
        read: Returns the components, or None if no tape tracks the stacked array.
    """
    _tracked_reads.append(read)


def read_tracked(stacked: jax.Array, device_assignment: DeviceAssignment | None) -> tuple[Any, ...] | None:
    """Splits a stacked array into its components by operations that gradient tapes record.

    Returns None if no tape tracks the array.
    """
    return next((found for read in _tracked_reads if (found := read(stacked, device_assignment)) is not None), None)


_tracing_checks: list[Callable[[], bool]] = []


def register_tracing_check(is_tracing: Callable[[], bool]) -> None:
    """Registers a function that returns whether a compiled function is being traced.

    Only a trace in cross-replica context counts. There, `whole_rows` gathers stacked arrays.
    """
    _tracing_checks.append(is_tracing)


def as_given(value: Any) -> Any:
    """Returns a read-only copy of a NumPy array.

    The caller may overwrite the original later. Any other value is returned unchanged.

    Raises:
        ArgumentError: Integers of 64 bits do not fit into 32.
    """
    check_fit(value)
    return frozen(value)


def stack_components(
    components: Sequence[Any], device_assignment: DeviceAssignment, *, is_tracked: bool = False
) -> Any:
    """Stacks the components of this process's replicas into one array, which is sharded over all devices.

    Args:
        components: The components, of one shape and dtype.
        device_assignment: The assignment of the replicas to devices.
        is_tracked: Whether a tape watches a component, so that it must record the stacking.

    Raises:
        ValuesError: The shapes or dtypes of the components differ.
    """
    if has_registered(components):
        # Variables are read where the caller is: in a compiled function, their values are tracers.
        components = registered_as_arrays(components, nullcontext)
    for component in components:
        for leaf in jax.tree.leaves(component) if isinstance(component, (list, tuple)) else ():
            check_fit(leaf)
    shapes = {np.shape(component) for component in components}
    if len(shapes) > 1:
        raise unequal_error(f"components of shapes {', '.join(str(np.shape(component)) for component in components)}")
    dtypes = [_dtype_of(component) for component in components]
    if len(set(dtypes)) > 1:
        raise unequal_error(f"components of dtypes {', '.join(map(str, dtypes))}")
    if is_tracked or any(is_live_box(component) for component in components):
        if device_assignment.spans_processes:
            raise _recording_error()
        if not is_eval_below(current_trace()):  # in a compiled function, of which the program places the array
            return device_assignment.slots.stacked(jnp.stack([as_array(component) for component in components]))
        # A tape outside `run` tracks the components. It records array operations, so they must be
        # ordinary operations on one device and not the assembly of a sharded array from per-device buffers.
        stacked = jnp.stack([jax.device_put(component, device_assignment.devices[0]) for component in components])
        return jax.device_put(device_assignment.slots.stacked(stacked), device_assignment.sharded)
    components = [payload_of(component) for component in components]
    if any(isinstance(component, Tracer) for component in components):
        return device_assignment.slots.stacked(jnp.stack([as_array(component) for component in components]))
    with eager(), keeping_width_of(components):
        return _stacked_over_devices(components, device_assignment)


def _dtype_of(component: Any) -> Any:
    dtype = attribute(component, "dtype")
    if dtype is None:
        return as_array(component).dtype
    return canonical_dtype(dtype)


_stacks: Final[dict[int, tuple[weakref.ref[Any], tuple[Any, ...], DeviceAssignment]]] = {}


def note_stack(stacked: Any, components: tuple[Any, ...], device_assignment: DeviceAssignment) -> None:
    """Records of which components a traced function has made a concrete stacked array.

    A tape around a later call of the program may watch the components. It finds the array in the program.
    """
    if type(stacked) is Array and jnp.issubdtype(stacked.dtype, jnp.inexact):
        key = id(stacked)
        _stacks[key] = weakref.ref(stacked, lambda _: _stacks.pop(key, None)), components, device_assignment


def noted_components(stacked: Any) -> tuple[tuple[Any, ...], DeviceAssignment] | None:
    """Returns the components of which `note_stack` has recorded that a stacked array is made, and their devices."""
    noted = _stacks.get(id(stacked))
    return None if noted is None or noted[0]() is not stacked else noted[1:]


def unequal_error(found: str) -> ValuesError:
    """Returns the error to raise if the components of a per-replica value cannot be stacked into one array."""
    return ValuesError(
        "PerReplica",
        found=found,
        rule="only components of equal shape and dtype can be stacked into one array",
        remedy="use the components separately in eager code, pad them to equal shapes (last_batch='pad'), or convert "
        "them to one dtype",
    )


def _recording_error() -> ValuesError:
    return ValuesError(
        "PerReplica.stacked",
        found="a tape opened outside run would have to record components of replicas of other workers",
        rule="a tape can record only the operations of its own worker",
        remedy="open the tape inside the function passed to run, or compile the whole step with mirrored.function, on "
        "per-replica batches of equal shapes (last_batch='pad' or 'drop'): a step on others runs eagerly; pass a "
        "per-replica value that the tape watches as an argument of the compiled function",
    )


def _stacked_over_devices(components: Sequence[Any], device_assignment: DeviceAssignment) -> Any:
    if not device_assignment.spans_processes and _are_on_host(components):
        # CPU devices share the host's memory: NumPy stacks the components without compiling a program.
        rows = np.stack([np.asarray(component) for component in components])
        return jax.device_put(device_assignment.slots.stacked(rows), device_assignment.sharded)
    if len(device_assignment.devices) == 1:
        return jax.device_put(jnp.stack([as_array(component) for component in components]), device_assignment.sharded)
    remaining = iter(components)
    on_devices = []
    for device in device_assignment.addressable_devices:
        own = [
            jax.device_put(as_array(component), device)
            for component in itertools.islice(remaining, len(device_assignment.replicas_on(device)))
        ]
        on_devices.append(own + own[-1:] * (device_assignment.local - len(own)))
    first = on_devices[0][0]
    if device_assignment.local == 1 and first.ndim and first.size and not device_assignment.spans_processes:
        return _by_replica(
            _one_array([on_device[0] for on_device in on_devices], device_assignment),
            device_assignment.num_replicas,
            device_assignment.sharded,
        )
    return _one_array(
        [on_device[0][None] if len(on_device) == 1 else jnp.stack(on_device) for on_device in on_devices],
        device_assignment,
    )


def _are_on_host(components: Sequence[Any]) -> bool:
    """Returns whether NumPy can stack the components unchanged: JAX arrays of one dtype in host memory."""
    return (
        all(type(component) is Array and not component.weak_type for component in components)
        and len({component.dtype for component in components}) == 1
        and all(device.platform == "cpu" for component in components for device in component.devices())
    )


def _one_array(per_device: Sequence[jax.Array], device_assignment: DeviceAssignment) -> jax.Array:
    """Builds a global array, sharded along axis 0, from its per-device shards."""
    rows = len(device_assignment.devices) * per_device[0].shape[0]
    return jax.make_array_from_single_device_arrays(
        (rows, *per_device[0].shape[1:]), device_assignment.sharded, list(per_device)
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _by_replica(rows: jax.Array, num_replicas: int, sharding: jax.sharding.Sharding) -> jax.Array:
    """Reshapes all replicas' rows, concatenated in replica order, to ``[replicas, rows, ...]``.

    It is one program for all devices. Adding the dimension on each device instead compiles one program per device
    (0.5 s for 64).
    """
    stacked_rows: jax.Array = jax.lax.with_sharding_constraint(
        rows.reshape(num_replicas, rows.shape[0] // num_replicas, *rows.shape[1:]), sharding
    )
    return stacked_rows


def gathered(stacked: jax.Array, device_assignment: DeviceAssignment) -> jax.Array:
    """All-gathers a stacked array in a traced program, so that every device holds all rows.

    XLA reads single rows of a sharded array by all-reduces with zeros, which turn -0.0 into 0.0. After the all-gather,
    reading a row does not change its bits. Outside of a trace, and on one device, the array is returned unchanged.
    """
    if len(device_assignment.devices) == 1 or is_eval_below(current_trace()):
        return stacked
    whole: jax.Array = unplaced(jax.lax.with_sharding_constraint(stacked, device_assignment.replicated))
    return whole


def whole_rows(stacked: Any, device_assignment: DeviceAssignment) -> Any:
    """All-gathers a stacked array of which a compiled function reads single rows.

    The bits of a row do not change then (`gathered`). Elsewhere the array is returned unchanged: a replica has no mesh,
    and the arguments of a plain `jax.jit` can be on other devices.
    """
    is_read_by_function = isinstance(stacked, Tracer) and any(is_tracing() for is_tracing in _tracing_checks)
    return gathered(stacked, device_assignment) if is_read_by_function else stacked


def are_readable_here(components: Iterable[Leaf], stacked: Any) -> bool:
    """Returns whether cached components of a stacked value can be used in the current trace.

    The tracers of a trace that has ended cannot.
    """
    return all(_is_readable_here(component, stacked) for component in components)


def _is_readable_here(component: Leaf, stacked: Any) -> bool:
    if stacked is None or not isinstance(component, Tracer) or belongs_to(stacked, component._trace):
        return True
    return belongs_to(component, trace_below_tapes(current_trace()))


def check_rows(called: str, stacked: jax.Array | HostArray, device_assignment: DeviceAssignment) -> None:
    """Raises ValuesError if a stacked array does not have one row per replica slot.

    `jax.tree.map` over a per-replica value applies its function to the stacked array, as to any leaf, and may thus
    return an array of other rows.

    Args:
        called: What the user called, for messages.
        stacked: The array.
        device_assignment: The devices of the replicas.
    """
    slots = device_assignment.slots
    shape = getattr(stacked, "shape", None)
    if shape and shape[0] == slots.count:
        return
    kind = f"a {type(stacked).__name__}" if shape is None else f"an array of shape {shape}"
    raise ValuesError(
        called,
        found=f"jax.tree.map or jax.tree.unflatten gave the value {kind} for {slots.replicas} replicas",
        rule=f"the leaf of a per-replica value may be one array with a row per replica, of shape ({slots.count}, ...)",
        remedy="apply the function to each replica's component: strategy.run(function, args=(value,))",
    )


def unstacked(stacked: jax.Array | np.ndarray[Any, Any], device_assignment: DeviceAssignment | None) -> tuple[Any, ...]:
    """Splits a stacked array into one array per replica.

    If the devices are known, returns the arrays of this process's replicas, each on its replica's device. The arrays
    are not committed to the devices, so that components of different replicas can be combined.
    """
    if device_assignment is not None:
        check_rows("PerReplica.values", stacked, device_assignment)
    # A callback of a compiled program receives a NumPy array, which has no shards.
    if (
        device_assignment is not None
        and isinstance(stacked, jax.Array)
        and not isinstance(stacked, Tracer)
        and not stacked.size
    ):
        # XLA replicates an empty array to every device, whatever its sharding is, so its shards are not components.
        empty = np.zeros(stacked.shape[1:], stacked.dtype)
        return tuple(
            movable(jax.device_put(empty, device_assignment.device_of(replica)))
            for replica in device_assignment.addressable_replicas
        )
    if device_assignment is None:
        return tuple(stacked[i] for i in range(stacked.shape[0]))
    if (
        not isinstance(stacked, jax.Array)
        or isinstance(stacked, Tracer)
        or len(stacked.addressable_shards) != len(device_assignment.addressable_devices)
    ):
        rows = whole_rows(stacked, device_assignment)
        return tuple(rows[device_assignment.slots.of(r)] for r in range(device_assignment.num_replicas))
    spread = stacked
    sharded = device_assignment.sharded
    # A gradient, for example, is replicated, and `jax.device_put` gives the pytree of a value any sharding.
    if len(device_assignment.devices) > 1 and not (
        stacked.sharding == sharded or stacked.sharding.is_equivalent_to(sharded, stacked.ndim)
    ):
        spread = jax.device_put(stacked, sharded)
    shards = sorted(spread.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    replicas = [device_assignment.replicas_on(device) for device in device_assignment.addressable_devices]
    return tuple(movable(shard.data[k]) for shard, own in zip(shards, replicas, strict=True) for k in range(len(own)))
