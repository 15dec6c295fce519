"""Checks that a per-replica value has one component for each replica of the strategy that uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from mirrored._jax.traces import Tracer
from mirrored.errors import StructureError, ValuesError
from mirrored.values.distributed_values import LocalPerReplica, PerReplica
from mirrored.values.stacking import check_rows

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment


class HasReplicas(Protocol):
    """Protocol of objects that have replicas on devices, such as strategies."""

    @property
    def device_assignment(self) -> DeviceAssignment | None:
        """The assignment of replicas to devices; None for the default strategy."""
        ...


def check_components(called: str, strategy: HasReplicas, values: Iterable[Any]) -> None:
    """Checks that each per-replica value among `values` has one component for each replica of a strategy.

    Otherwise components would be lost, or the rows of empty slots would be read as components.

    Raises:
        ValuesError: A value is on the replicas of another device assignment, or has another number of components.
    """
    for value in values:
        if isinstance(value, PerReplica):
            check_placement(called, strategy, value, value.device_assignment)


def none_or_complete(called: str, value: PerReplica) -> PerReplica | None:
    """Returns None for a per-replica value whose components are all None, and any other value unchanged.

    Args:
        called: What the user called, for messages.
        value: The per-replica value, whose components are to be combined.

    Raises:
        StructureError: Some components are None, and others are not.
    """
    components = () if value.is_stacked else value.local if isinstance(value, LocalPerReplica) else value.values
    missing = [replica for replica, one in enumerate(components) if one is None]
    if not missing:
        return value
    if len(missing) == len(components):
        return None
    raise StructureError(
        called,
        found=f"a per-replica value is None on {_listed(missing)}, and not on the other ones of {len(components)}",
        rule="a value to combine is None on all replicas, and then the result is None, or on no replica",
        remedy="return zeros from the replicas that lack the value; or call all_reduce in the replica function, which "
        "takes None for zeros",
    )


def _listed(replicas: list[int]) -> str:
    return f"replica{'s' if len(replicas) > 1 else ''} {', '.join(map(str, replicas))}"


def check_placement(called: str, strategy: HasReplicas, value: Any, where: DeviceAssignment | None) -> None:
    """Raises an error unless a per-replica value has one component for each replica of `strategy`.

    Args:
        called: What the user called, for messages.
        strategy: The strategy that uses the value.
        value: A per-replica value, or a sync-on-read variable.
        where: Its device assignment; None if unknown.

    Raises:
        ValuesError: The value has another number of components, or is on the replicas of another strategy; or
            `jax.tree.map` has changed the rows of its stacked array.
    """
    own = strategy.device_assignment
    is_placed = where is not None and (not isinstance(value, PerReplica) or value.is_placed)
    if is_placed and (where is own or where == own or _is_one(where) and _is_one(own)):
        if where is not None and isinstance(value, PerReplica) and value.is_stacked:
            check_rows(called, value.first(), where)
        return
    if not is_placed and has_one_each(value, own):
        return
    kind = "a per-replica value" if isinstance(value, PerReplica) else f"variable {value.name!r}"
    count = len(value) if isinstance(value, PerReplica) else value.num_replicas
    devices = "" if where is None or not is_placed else f" on the replicas of {where!r}"
    raise ValuesError(
        called,
        found=f"{kind} with {count} component{'s' * (count != 1)}{devices} was given to {strategy!r}",
        rule="a strategy can use only values that have one component for each of its own replicas",
        remedy="use the strategy that made the value, or make the value with this strategy (its run, distributed "
        "datasets or distribute_values_from_function); take components by local_results(value)",
    )


def _is_one(where: DeviceAssignment | None) -> bool:
    return where is None or where.num_replicas == 1


def has_one_each(value: PerReplica, own: DeviceAssignment | None) -> bool:
    """Returns whether a per-replica value has one component for each replica of this process.

    The value has no device assignment, and `own` is that of the strategy; None means one replica.
    """
    if own is None:
        return len(value) == 1
    # A trace has the components of the replicas of all processes.
    is_traced = any(isinstance(component, Tracer) for component in value.values)
    return len(value) == (own.num_replicas if is_traced else len(own.addressable_replicas))
