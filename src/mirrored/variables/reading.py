"""Reads a variable in each context: implements the read column of the table in `rules`."""

from __future__ import annotations

from typing import Any

from mirrored.collectives.host_allgather import host_allgather
from mirrored.collectives.stacked import first_stacked, reduce_stacked
from mirrored.errors import VariableError
from mirrored.runtime.ambient import Ambient, ambient
from mirrored.runtime.variable_store import VariableStore
from mirrored.variables.contexts import check_readable, check_strategy, store_of
from mirrored.variables.rules import VariableAggregation, reduction_of


def read(variable: Any) -> Any:
    """Returns the value in the current context."""
    here = ambient()
    store = store_of(variable, here)
    check_readable(variable, store, here)
    if here.replica is None:
        if variable.per_replica:
            return aggregate(variable, store, here)
        return variable.stored() if store is None else store.whole(variable)
    return _read_in_replica(variable, store, here)


def _read_in_replica(variable: Any, store: VariableStore | None, here: Ambient) -> Any:
    index = here.replica.local_index
    if store is not None:
        check_strategy(variable, here, f"reading {variable.name}")
        return store.local(variable, index)
    if variable.per_replica:
        return variable.stored_component(index)
    # A plain variable in an eager run: its value is copied to this replica's device for this read.
    return variable.stored() if here.runner is None else here.runner.component(variable.stored(), index)


def component(variable: Any, replica: int) -> Any:
    """Returns one replica's component, without aggregation."""
    here = ambient()
    store = store_of(variable, here)
    check_readable(variable, store, here)
    if store is None:
        return variable.stored_component(replica)
    if here.replica is not None and here.replica.local_index == replica:
        return store.local(variable, replica)
    whole = store.whole(variable)
    return whole[replica] if variable.per_replica else whole


def aggregate(variable: Any, store: VariableStore | None, here: Ambient) -> Any:
    """Aggregates a sync-on-read variable's components to one value. Cross-replica context.

    Raises:
        VariableError: The variable has aggregation NONE.
    """
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.NONE:
        raise VariableError(
            f"reading {variable.name}",
            found=f"sync-on-read variable {variable.name!r} with aggregation NONE, in cross-replica context",
            rule="outside run a sync-on-read variable is read as one value, so its components must be aggregated",
            remedy="set aggregation=VariableAggregation.SUM (or MEAN, ...), or read the components, variable.values",
        )
    only_first = aggregation is VariableAggregation.ONLY_FIRST_REPLICA
    runner = here.runner
    if runner is not None and store is not None:
        locals_ = [store.local(variable, index) for index in range(runner.num_local)]
        return runner.first(locals_) if only_first else runner.reduce(reduction_of(aggregation), [locals_])[0]
    stacked = variable.stored() if store is None else store.whole(variable)
    if store is None and variable.device_assignment.spans_processes:
        # If only some workers read, the device collective below would deadlock. The host all-gather detects that.
        host_allgather(f"reading {variable.name}", f"read the sync-on-read variable {variable.name!r}")
    if only_first or variable.num_replicas == 1:
        return first_stacked(stacked, variable.device_assignment)
    algorithm = variable.strategy.cross_device_ops
    return reduce_stacked(algorithm, reduction_of(aggregation), [stacked], variable.device_assignment)[0]
