"""Records the results of assignments outside `run`, to look up each replica's copy of a result later.

`assign` returns one array. `Strategy.experimental_local_results` finds it here by its identity, and returns the copies.
An array has no reference to its variable; a tape knows the arrays that it tracks (`tape.record.Recorder`), and
`variables.slicing` those that were read by indexing.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import jax

from mirrored._jax.arrays import is_key
from mirrored._jax.traces import Tracer
from mirrored.variables.storage import components

if TYPE_CHECKING:
    from mirrored.topology.device_assignment import DeviceAssignment

_results: Final[dict[int, tuple[weakref.ref[Any], DeviceAssignment]]] = {}


def as_result(value: Any, device_assignment: DeviceAssignment | None) -> Any:
    """Returns an assigned value as an array whose per-replica copies can be looked up later.

    The lookup is `copies_of_result`. Returns `value` itself for a plain variable or a single replica, and if it is a
    tracer or an array of PRNG keys.

    Args:
        value: The stored array. The result is another object with the same buffers, because a read returns this object.
        device_assignment: The devices of the variable's replicas; None for a plain variable.
    """
    if device_assignment is None or device_assignment.num_replicas == 1 or isinstance(value, Tracer) or is_key(value):
        return value
    shards = [shard.data for shard in value.addressable_shards]
    result = jax.make_array_from_single_device_arrays(value.shape, value.sharding, shards)
    key = id(result)
    _results[key] = weakref.ref(result, lambda _: _results.pop(key, None)), device_assignment
    return result


def copies_of_result(value: Any) -> tuple[Any, ...] | None:
    """Returns one array per local replica if `value` is the result of an assignment outside `run`; otherwise None."""
    noted = _results.get(id(value)) if isinstance(value, jax.Array) else None
    result = None if noted is None else noted[0]()
    if noted is None or result is not value:
        return None
    return components(result, noted[1], per_replica=False)
