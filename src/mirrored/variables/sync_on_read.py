"""Sync-on-read variables in cross-replica context: reads aggregate all replicas' values, assignments set them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array, is_key
from mirrored._jax.traces import Tracer
from mirrored._typing import Operand
from mirrored.collectives.algorithm import reduced_single_replica
from mirrored.collectives.host_allgather import check_equal, host_allgather
from mirrored.collectives.reduce_op import as_reduce_op
from mirrored.collectives.stacked import first_stacked, reduce_stacked
from mirrored.errors import ContextError, VariableError
from mirrored.runtime.ambient import Ambient
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.runtime.variable_store import VariableStore, refuse_64_bits
from mirrored.values.distributed_values import PerReplica
from mirrored.values.stacking import stack_components, whole_rows
from mirrored.variables.rules import VariableAggregation, aggregation_name, check_kind, reduction_of
from mirrored.variables.state_lock import assignment_lock, lock
from mirrored.variables.storage import near

if TYPE_CHECKING:
    from mirrored.variables.assignment import Assignment
    from mirrored.variables.variable import Variable


def aggregate(variable: Variable, store: VariableStore | None, here: Ambient) -> Any:
    """Aggregates all replicas' values of a sync-on-read variable to its value in cross-replica context.

    Raises:
        VariableError: The variable has aggregation NONE.
    """
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.NONE:
        raise VariableError(
            f"reading {variable.name}",
            found=f"sync-on-read variable {variable.name!r} with aggregation NONE was read in cross-replica context",
            rule="outside run a sync-on-read variable is read as one value, so its components must be aggregated",
            remedy="set aggregation=VariableAggregation.SUM (or MEAN, ...), or read the components, variable.values",
        )
    if store is not None and store.aggregates:
        return store.whole(variable)
    only_first = aggregation is VariableAggregation.ONLY_FIRST_REPLICA
    runner = here.runner
    if runner is not None and store is not None:
        locals_ = [store.local(variable, index) for index in range(runner.num_local)]
        one = runner.first(locals_) if only_first else runner.reduce(reduction_of(aggregation), [locals_])[0]
        return store.on_device_of_merge(one)
    stacked = variable.stored() if store is None else store.whole(variable)
    if store is None and variable.device_assignment.spans_processes:
        # If only some workers read, the device collective below would deadlock. The host all-gather detects that.
        host_allgather(f"reading {variable.name}", f"read the sync-on-read variable {variable.name!r}")
    if only_first:
        return first_stacked(stacked, variable.device_assignment)
    if variable.num_replicas == 1:
        return reduced_single_replica(
            as_reduce_op(reduction_of(aggregation)), first_stacked(stacked, variable.device_assignment)
        )
    algorithm = variable.strategy.cross_device_ops
    if store is not None:
        store.note_reduction(bit_identical=algorithm.requires_bit_identity)
    return reduce_stacked(algorithm, reduction_of(aggregation), [stacked], variable.device_assignment)[0]


def row_of(variable: Variable, replica: int, here: Ambient) -> int:
    """Returns the index of a replica's row in the variable's stacked value, in the current context.

    Raises:
        ContextError: The program runs on several workers, on which the index stands for different replicas.
    """
    if variable.device_assignment is not None and variable.device_assignment.spans_processes:
        raise ContextError(
            f"values[{replica}] of {variable.name}",
            found=f"a component of sync-on-read variable {variable.name!r} is used in a compiled function, or under a "
            "tape around a merge, on several workers",
            rule="an element of values is the component of a replica of its own worker, but all workers run the same "
            "program",
            remedy="use values outside of compiled functions, or the variable itself: in the replica function it is "
            "the replica's own component, elsewhere the aggregate of all components",
        )
    if here.runner is not None and here.runner.store.captures:
        return replica
    return replica if variable.device_assignment is None else int(variable.device_assignment.slots.of(replica))


def row_in(whole: jax.Array, variable: Variable, replica: int, here: Ambient) -> Any:
    """Returns one replica's row of a sync-on-read variable's stacked value, without changing its bits."""
    row = row_of(variable, replica, here)
    if here.runner is None and variable.device_assignment is not None:
        whole = whole_rows(whole, variable.device_assignment)
    return whole[row]


def write_components(assignment: Assignment, value: Operand, store: VariableStore | None, here: Ambient) -> None:
    """Assigns all replicas' values of a sync-on-read variable, from a per-replica value or one value for all."""
    _check_determines_all(assignment, value)
    variable = assignment.variable
    if store is not None and store.aggregates:
        old = None if assignment.replaces else store.whole(variable)
        store.set_whole(variable, assignment.combined(old, value), assignment.where)
        return
    if here.runner is not None and store is not None:
        _stage_locals(assignment, value, store, here.runner)
        return
    if store is not None:
        every = range(variable.num_replicas)
        parts = list(value.values) if isinstance(value, PerReplica) else [_share(assignment, value, k) for k in every]
        slots = variable.device_assignment.slots
        olds: list[Any] = [None for _ in every]
        if not assignment.replaces:
            olds = list(slots.rows(whole_rows(store.whole(variable), variable.device_assignment)))
        new = [assignment.combined(old, part) for old, part in zip(olds, parts, strict=True)]
        store.set_whole(variable, slots.stacked(jnp.stack(new)), assignment.where)
        return
    local_replicas = variable.device_assignment.addressable_replicas
    value = _checked(assignment, value)
    one_each = isinstance(value, PerReplica)
    parts = list(value.values) if one_each else [_share(assignment, value, replica) for replica in local_replicas]
    with assignment_lock(), lock:  # no other thread may assign between the read of the old values and the store
        olds = [None if assignment.replaces else variable.stored_component(k) for k in range(len(local_replicas))]
        new = [assignment.combined(old, near(part, old)) for old, part in zip(olds, parts, strict=True)]
        variable.store(stack_components(new, variable.device_assignment))


def _checked(assignment: Assignment, value: object) -> Any:
    """Checks that a single value for all replicas is equal on all workers, and returns the value."""
    if isinstance(value, PerReplica) or not assignment.variable.device_assignment.spans_processes:
        return value
    check_same_everywhere(assignment, value)
    return value if is_key(value) else np.asarray(value)  # NumPy cannot hold typed keys


def check_same_everywhere(assignment: Assignment, value: object) -> None:
    """Raises an error if workers assign different values to a variable.

    An array over the devices of all workers passes without a comparison: one program on all workers computed it.

    Raises:
        DisagreementError: The values differ; the message names the workers.
    """
    device_assignment = assignment.variable.device_assignment
    if device_assignment is None or not device_assignment.spans_processes or isinstance(value, Tracer):
        return
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return
    check_equal(
        assignment.called,
        {f"the value for variable {assignment.variable.name!r}": value},
        rule="a variable has one value on all workers",
        remedy="compute it from the same data on all workers, or from the result of strategy.reduce or strategy.gather",
    )


def _check_determines_all(assignment: Assignment, value: object) -> None:
    """Raises an error if an assigned value does not define every replica's value.

    The variable is sync-on-read. One value for all replicas defines their values only under some aggregations.
    """
    aggregation = assignment.variable.aggregation
    undefined = aggregation is VariableAggregation.NONE
    cannot_add = aggregation is VariableAggregation.SUM and not assignment.replaces
    if isinstance(value, PerReplica) or not (undefined or cannot_add):
        return
    raise VariableError(
        assignment.called,
        found=f"one value was passed for all components of sync-on-read variable {assignment.variable.name!r} with "
        f"aggregation {aggregation_name(aggregation)}, in cross-replica context",
        rule="outside run, one value can be assigned only if the aggregation determines every component: SUM divides "
        "the value among the replicas, but cannot do so for assign_add and assign_sub; NONE defines nothing",
        remedy="assign inside run, or assign a per-replica value",
    )


def _stage_locals(assignment: Assignment, value: object, store: VariableStore, runner: ReplicaRunner) -> None:
    """Assigns a sync-on-read variable in the variable store of a run: sets the value of each local replica."""
    variable = assignment.variable
    for k in range(runner.num_local):
        if isinstance(value, PerReplica):
            part = runner.component(value, k)
        else:
            part = _share(assignment, value, _replica_index(runner, k))
        old = None if assignment.replaces else store.local(variable, k)  # a lost value can be assigned, but not read
        new = assignment.combined(old, near(part, old))
        if old is None:
            new = runner.reduced_component(new, k)
        store.set_local(variable, k, new, assignment.where)


def _replica_index(runner: ReplicaRunner, local: int) -> Any:
    """Returns the global replica id of the replica with the local index `local`.

    Where one program runs on all devices (SPMD), the id differs per device, so it is a value of the running program.
    """
    if not runner.stands_for_others:
        return runner.device_assignment.addressable_replicas[local]
    indices = range(runner.device_assignment.num_replicas)
    return runner.component(PerReplica([jnp.asarray(index) for index in indices], runner.device_assignment), local)


def _share(assignment: Assignment, value: object, replica: int | jax.Array) -> Any:
    """Returns the share of one replica's component when a single value is assigned or added to a variable.

    With aggregation SUM, the shares of all replicas add up to the value.
    """
    variable = assignment.variable
    if variable.share_of is not None and assignment.replaces:
        return variable.share_of(value, replica)
    if variable.aggregation is not VariableAggregation.SUM:
        return value
    count = variable.num_replicas
    check_kind(value, variable.dtype, f"{variable.name}.assign", variable.name)
    refuse_64_bits(variable, f"{variable.name}.assign")
    value = as_array(value, variable.dtype)
    if jnp.issubdtype(variable.dtype, jnp.integer):
        # The first replicas get the remainder, so that the components sum to the assigned value.
        return value // count + (replica < value % count).astype(value.dtype)
    return value / count


def component_error(called: str, name: str) -> ContextError:
    """Returns the error for assigning, in a compiled run, a sync-on-read variable that belongs to no strategy."""
    return ContextError(
        called,
        found=f"the replicas assign {name!r}, a sync-on-read variable with aggregation SUM that was created "
        "outside of strategy.scope()",
        rule="each replica assigns its own component, and only a variable created in the scope has components",
        remedy="create the variable (or the metric that owns it) inside `with strategy.scope():`",
    )
