"""Moves the values of plain variables to the devices of the program that uses them.

A plain variable belongs to no strategy. A compiled run leaves its value on the devices of the run, where the next step
finds it and may donate it. Programs for other devices cannot take it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import Tracer
from mirrored.compilation.dispatch import is_of_devices
from mirrored.variables.state_lock import assign_all_stored, lock
from mirrored.variables.storage import is_committed, placed, placed_by

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment

T = TypeVar("T")


def moving_plain(
    launch: Callable[[Sequence[Any]], T], arrays: Sequence[Any], plain: Sequence[Any], where: DeviceAssignment | None
) -> T:
    """Calls `launch`, which runs or lowers a program; moves plain variables if their values are on other devices.

    JAX checks the devices of the operands before it donates or computes anything. So the values are moved only after
    it has refused them, and steps whose variables are in place need no check.

    Args:
        launch: Reads the variables and calls the program with `arrays`.
        arrays: Its operands that are no variables.
        plain: The plain variables that the program reads.
        where: The devices of the program; None if it follows its operands.
    """
    if not plain:
        return launch(arrays)
    try:
        return launch(arrays)
    except ValueError as error:
        if not is_of_devices(error) or not _moved(plain, where, arrays):
            raise
    return launch(arrays)


def _moved(plain: Sequence[Any], where: DeviceAssignment | None, arrays: Iterable[Any]) -> bool:
    """Moves plain variables to the devices `where`, else to those of the first committed operand.

    Returns whether a value has been moved.
    """
    with lock:
        values = [variable.borrowed() for variable in plain]
        sharding = next(map(_replicated, filter(is_committed, map(payload_of, (*arrays, *values)))), None)
        if where is not None:
            sharding = where.replicated
        if sharding is None:
            return False
        moving = [
            (variable, _local(value))
            for variable, value in zip(plain, values, strict=True)
            if is_committed(value) and value.sharding != sharding
        ]
        moved = [
            placed_by(value, sharding) if where is None else placed(value, where, per_replica=False)
            for _, value in moving
        ]
        for variable, _ in moving:
            variable.mark_shared()  # on devices of both, the new array may have the buffers of the old one
        assign_all_stored([variable for variable, _ in moving], moved)
    return bool(moved)


def _replicated(array: jax.Array) -> Any:
    """Returns the sharding of a copy on each device of an array; None if the order of the devices is unknown."""
    if len(array.sharding.device_set) == 1:
        return array.sharding
    return NamedSharding(array.sharding.mesh, PartitionSpec()) if isinstance(array.sharding, NamedSharding) else None


def _local(value: jax.Array) -> jax.Array:
    """Returns this process's copy of a replicated array of several processes; other values are returned unchanged."""
    if isinstance(value, Tracer) or value.is_fully_addressable or not value.is_fully_replicated:
        return value
    return value.addressable_data(0)
