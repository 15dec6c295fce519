"""Reads per-replica values and sync-on-read variables by operations that gradient tapes record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import jax.numpy as jnp

from mirrored._jax.placement import movable
from mirrored._jax.traces import current_trace, is_eval_below
from mirrored._typing import PyTree
from mirrored.runtime.ambient import ReadableVariable, ReadListener, ambient, announce_read, is_tracked
from mirrored.values.distributed_values import LocalPerReplica, PerReplica
from mirrored.values.stacking import (
    note_stack,
    register_tracing_check,
    register_tracked_read,
    stack_components,
    whole_rows,
)

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment


@jax.custom_jvp
def with_gradients_to(stacked: jax.Array, one: jax.Array) -> Any:
    """Returns the array `stacked`, but lets gradients of the result flow to the array `one`.

    The array `stacked` holds the values of a sync-on-read variable, one per replica, and `one` represents the variable.
    The gradient with respect to such a variable is the sum of those with respect to its components.
    """
    return stacked


@with_gradients_to.defjvp
def _with_gradients_to_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    # The function itself: a second derivative flows to `one`, too.
    return with_gradients_to(*primals), jnp.broadcast_to(tangents[1], primals[0].shape)


def announced_components(variable: ReadableVariable, stacked: jax.Array) -> Any:
    """Notifies tapes that a sync-on-read variable is read, and returns the stacked values of all replicas."""
    if not jnp.issubdtype(variable.dtype, jnp.inexact):
        return stacked
    return with_gradients_to(stacked, announce_read(variable, jax.lax.stop_gradient(stacked[0])))


def component_of(value: PerReplica, local: int) -> Any:
    """Returns one local replica's value from a per-replica value, by an operation that gradient tapes record.

    If a tape tracks a stacked value, that operation is the indexing of the stacked value.
    """
    if value.is_stacked and is_tracked(value.first()):
        device_assignment = value.device_assignment
        return value.first()[local if device_assignment is None else device_assignment.slots.of(local)]
    return value.values[local]


def _components_tracked(stacked: jax.Array, device_assignment: DeviceAssignment | None) -> tuple[Any, ...] | None:
    """Returns the rows of a tracked stacked value, each on its replica's device, or None.

    None if no tape tracks the value, if it has no device assignment, or if its devices belong to several processes.
    """
    if device_assignment is None or device_assignment.spans_processes or not is_tracked(stacked):
        return None
    rows = whole_rows(stacked, device_assignment)
    return tuple(
        movable(jax.device_put(rows[device_assignment.slots.of(replica)], device_assignment.device_of(replica)))
        for replica in range(device_assignment.num_replicas)
    )


register_tracked_read(_components_tracked)
register_tracing_check(lambda: ambient().store is not None and ambient().runner is None)


def as_stored(structure: PyTree, like: PyTree) -> PyTree:
    """Returns a pytree whose per-replica values are stacked where those of `like`, of the same structure, are stacked.

    The other per-replica values have components. A pytree of another structure is returned unchanged.
    """
    flat: tuple[list[Any], Any] = jax.tree.flatten(structure, is_leaf=_is_per_replica)
    leaves, treedef = flat
    others = jax.tree.leaves(like, is_leaf=_is_per_replica)
    if len(leaves) != len(others) or not any(map(_is_per_replica, others)):
        return structure
    pairs = zip(leaves, others, strict=True)
    return treedef.unflatten([_stored_as(one, other) if _is_per_replica(one) else one for one, other in pairs])


def _is_per_replica(leaf: object) -> TypeGuard[PerReplica]:
    return isinstance(leaf, PerReplica)


def _stored_as(value: PerReplica, other: object) -> PerReplica:
    if not isinstance(other, PerReplica) or value.is_stacked is other.is_stacked or len(value) != len(other):
        return value
    if not other.is_stacked:
        return PerReplica.of_components(value.values, value.device_assignment)
    device_assignment = other.device_assignment
    return value if device_assignment is None else other.with_stacked(stacked_of(value, device_assignment))


def existing_stack(value: PerReplica) -> jax.Array | None:
    """Returns the stacked array of a per-replica value if it has been made already; None if a tape must record that."""
    stacked = value.kept_stack()
    if stacked is None or value.is_stacked or not ambient().listeners:  # no tape: the common case
        return stacked
    return None if any(map(is_tracked, value.values)) else stacked


def stacked_of(
    value: PerReplica, device_assignment: DeviceAssignment, tapes: Sequence[ReadListener] | None = None
) -> Any:
    """Returns a per-replica value as one stacked array with a row per replica; tapes record the stacking.

    `PerReplica.stacked` keeps the array for later calls; no tape would connect it with the components.

    Args:
        value: The per-replica value.
        device_assignment: The devices of the replicas.
        tapes: The tapes that may track components; None: those of this thread's context.
    """
    if value.is_stacked:
        return value.stacked(device_assignment)
    components = value.values
    listeners = ambient().listeners if tapes is None else tapes
    if any(listener.tracks(component) for listener in listeners for component in components):
        return stack_components(components, device_assignment, is_tracked=True)
    stacked = value.stacked(device_assignment)
    if ambient().store is not None:
        note_stack(stacked, components, device_assignment)
    return stacked


def is_stackable_in_trace(value: PerReplica) -> bool:
    """Returns whether code that is traced gets a per-replica value whose components are arrays of one type.

    It makes one stacked array of them (`stacked_of`), since it cannot move arrays between devices.
    """
    if value.is_stacked or isinstance(value, LocalPerReplica) or is_eval_below(current_trace()):
        return False
    components = value.values
    are_arrays = all(isinstance(one, jax.Array) for one in components)
    return are_arrays and len({(one.shape, one.dtype) for one in components}) == 1
