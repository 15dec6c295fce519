"""Reading a variable in each context: the read column of the table in `rules`, as code."""

from __future__ import annotations

from typing import Any

from mirrored.collectives.host_allgather import agree
from mirrored.collectives.stacked import first_stacked, reduce_stacked
from mirrored.errors import VariableError
from mirrored.runtime.ambient import Ambient, ambient
from mirrored.runtime.variable_store import Frame
from mirrored.variables.contexts import check_readable, check_strategy, frame_of
from mirrored.variables.rules import VariableAggregation, reduction_of


def read(variable: Any) -> Any:
    """The value as the current context sees it."""
    here = ambient()
    frame = frame_of(variable, here)
    check_readable(variable, frame, here)
    if here.replica is None:
        if variable.per_replica:
            return aggregate(variable, frame, here)
        return variable.stored() if frame is None else frame.whole(variable)
    return _read_in_replica(variable, frame, here)


def _read_in_replica(variable: Any, frame: Frame | None, here: Ambient) -> Any:
    index = here.replica.local_index
    if frame is not None:
        check_strategy(variable, here, f"reading {variable.name}")
        return frame.local(variable, index)
    if variable.per_replica:
        return variable.stored_component(index)
    # A plain variable in an eager run: on this replica's device for once.
    return variable.stored() if here.runner is None else here.runner.component(variable.stored(), index)


def component(variable: Any, replica: int) -> Any:
    """One replica's component, without aggregation."""
    here = ambient()
    frame = frame_of(variable, here)
    check_readable(variable, frame, here)
    if frame is None:
        return variable.stored_component(replica)
    if here.replica is not None and here.replica.local_index == replica:
        return frame.local(variable, replica)
    whole = frame.whole(variable)
    return whole[replica] if variable.per_replica else whole


def aggregate(variable: Any, frame: Frame | None, here: Ambient) -> Any:
    """A sync-on-read variable's components as one value. Cross-replica context.

    Raises:
        VariableError: It has aggregation NONE.
    """
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.NONE:
        raise VariableError(
            f"reading {variable.name}",
            found=f"sync-on-read variable {variable.name!r} with aggregation NONE, in cross-replica context",
            rule="outside run a sync-on-read variable is read as one value, so its components must be aggregated",
            remedy="give aggregation=VariableAggregation.SUM (or MEAN, ...), or read variable.values one by one",
        )
    only_first = aggregation is VariableAggregation.ONLY_FIRST_REPLICA
    session = here.runner
    if session is not None and frame is not None:
        locals_ = [frame.local(variable, index) for index in range(session.num_local)]
        return session.first(locals_) if only_first else session.reduce(reduction_of(aggregation), [locals_])[0]
    stacked = variable.stored() if frame is None else frame.whole(variable)
    if frame is None and variable.layout.spans_processes:
        # A worker that reads alone would wait in the collective for the others, which nothing ends.
        agree(f"reading {variable.name}", f"read the sync-on-read variable {variable.name!r}")
    if only_first or variable.num_replicas == 1:
        return first_stacked(stacked, variable.layout)
    algorithm = variable.strategy.cross_device_ops
    return reduce_stacked(algorithm, reduction_of(aggregation), [stacked], variable.layout)[0]
