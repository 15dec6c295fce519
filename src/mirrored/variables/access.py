"""Reads and assigns a variable in each context: implements the table in `rules`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array, is_key
from mirrored.collectives.host_allgather import host_allgather
from mirrored.collectives.stacked import first_stacked, reduce_stacked
from mirrored.errors import ContextError, VariableError
from mirrored.runtime.ambient import Ambient, ambient
from mirrored.runtime.lockstep import Merge, ReplicaRunner
from mirrored.runtime.variable_store import VariableStore
from mirrored.values.distributed_values import LocalPerReplica, Mirrored, PerReplica, stack_components
from mirrored.variables.rules import (
    Assignment,
    VariableAggregation,
    aggregation_name,
    check_kind,
    check_readable,
    check_same_everywhere,
    check_strategy,
    check_writable,
    reduction_of,
    store_of,
)
from mirrored.variables.storage import aligned, lock, near, own, placed, turn, uncommitted

# Reads a variable in each context: implements the read column of the table in `rules`.


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


# Assigns the components of sync-on-read variables in cross-replica context.


def write_components(assignment: Assignment, value: Any, store: VariableStore | None, here: Ambient) -> None:
    """Assigns all components: from a per-replica value component by component, or from one value (see `rules`)."""
    _check_determines_all(assignment, value)
    variable = assignment.variable
    if here.runner is not None and store is not None:
        _stage_locals(assignment, value, store, here.runner)
        return
    if store is not None:
        every = range(variable.num_replicas)
        parts = list(value.values) if isinstance(value, PerReplica) else [_share(assignment, value, k) for k in every]
        olds = list(store.whole(variable))
        new = [assignment.combined(old, part) for old, part in zip(olds, parts, strict=True)]
        store.set_whole(variable, jnp.stack(new), assignment.where)
        return
    local_replicas = variable.device_assignment.addressable_replicas
    value = _checked(assignment, value)
    one_each = isinstance(value, PerReplica)
    parts = list(value.values) if one_each else [_share(assignment, value, replica) for replica in local_replicas]
    with turn(), lock:  # no other thread may assign between the read of the old values and the store
        olds = [None if assignment.replaces else variable.stored_component(k) for k in range(len(local_replicas))]
        new = [assignment.combined(old, near(part, old)) for old, part in zip(olds, parts, strict=True)]
        variable.store(stack_components(new, variable.device_assignment))


def _checked(assignment: Assignment, value: Any) -> Any:
    """Returns one value for all components: checked equal on all workers, and on the host of this one."""
    if isinstance(value, PerReplica) or not assignment.variable.device_assignment.spans_processes:
        return value
    check_same_everywhere(assignment, value)
    return value if is_key(value) else np.asarray(value)  # which cannot hold typed keys


def _check_determines_all(assignment: Assignment, value: Any) -> None:
    """Refuses a single value that does not determine every component."""
    aggregation = assignment.variable.aggregation
    undefined = aggregation is VariableAggregation.NONE
    cannot_add = aggregation is VariableAggregation.SUM and not assignment.replaces
    if isinstance(value, PerReplica) or not (undefined or cannot_add):
        return
    raise VariableError(
        assignment.called,
        found=f"sync-on-read variable {assignment.variable.name!r} with aggregation {aggregation_name(aggregation)}, "
        "in cross-replica context",
        rule="an assignment there must determine every replica's component: SUM divides an assigned value among the "
        "replicas and does not support assign_add or assign_sub; NONE defines no rule",
        remedy="assign inside run, or assign a per-replica value",
    )


def _stage_locals(assignment: Assignment, value: Any, store: VariableStore, runner: ReplicaRunner) -> None:
    """Stages the components of the local replicas, in a merge."""
    variable = assignment.variable
    for k in range(runner.num_local):
        if isinstance(value, PerReplica):
            part = runner.component(value, k)
        else:
            part = _share(assignment, value, _replica_index(runner, k))
        store.set_local(variable, k, assignment.combined(store.local(variable, k), part), assignment.where)


def _replica_index(runner: ReplicaRunner, local: int) -> Any:
    """Returns the replica id of a local replica.

    Where one program runs on all devices (SPMD), the id differs per device, so it is a value of the running program.
    """
    if not runner.stands_for_others:
        return runner.device_assignment.addressable_replicas[local]
    indices = range(runner.device_assignment.num_replicas)
    return runner.component(PerReplica([jnp.asarray(index) for index in indices], runner.device_assignment), local)


def _share(assignment: Assignment, value: Any, replica: Any) -> Any:
    """The part of a value assigned in cross-replica context that one replica's component gets."""
    variable = assignment.variable
    if variable.share_of is not None and assignment.replaces:
        return variable.share_of(value, replica)
    if variable.aggregation is not VariableAggregation.SUM:
        return value
    count = variable.num_replicas
    check_kind(value, variable.dtype, f"{variable.name}.assign", variable.name)
    value = as_array(value, variable.dtype)
    if jnp.issubdtype(variable.dtype, jnp.integer):
        # The first replicas get the remainder, so that the components sum to the assigned value.
        return value // count + (replica < value % count).astype(value.dtype)
    return value / count


def write_component(assignment: Assignment, replica: int, value: Any) -> Any:
    """Assigns one component.

    Raises:
        VariableError: The variable is mirrored.
        ContextError: Inside `run`.
    """
    variable, here = assignment.variable, ambient()
    _check_has_components(assignment)
    store = store_of(variable, here)
    check_writable(variable, store, assignment.called)
    check_strategy(variable, here, assignment.called)
    if here.runner is not None:
        raise ContextError(
            assignment.called,
            found=f"an assignment to replica {replica}'s component inside run",
            rule="inside run each replica assigns its own component, through the variable",
            remedy=f"write {variable.name}.assign(value) in the replica function",
        )
    if store is None:
        with turn(), lock:
            return _store_component(assignment, replica, value)
    whole = store.whole(variable)
    new = assignment.combined(whole[replica], value)
    store.set_whole(variable, whole.at[replica].set(new), assignment.where)
    return new


def _store_component(assignment: Assignment, replica: int, value: Any) -> Any:
    variable = assignment.variable
    if variable.device_assignment.spans_processes:
        parts = [variable.stored_component(k) for k in range(len(variable.device_assignment.addressable_replicas))]
        parts[replica] = new = assignment.combined(parts[replica], near(value, parts[replica]))
        variable.store(stack_components(parts, variable.device_assignment))
        return new
    whole = variable.stored()
    new = assignment.combined(whole[replica], value)
    variable.store(jax.device_put(whole.at[replica].set(new), variable.device_assignment.sharded))
    return new


def _check_has_components(assignment: Assignment) -> None:
    if assignment.variable.per_replica:
        return
    raise VariableError(
        assignment.called,
        found=f"an assignment to one copy of mirrored variable {assignment.variable.name!r}",
        rule="the copies of a mirrored variable are equal at all times, so no single copy can be assigned",
        remedy="assign the variable itself, or create it with synchronization=VariableSynchronization.ON_READ",
    )


# Assigns a variable in each context: implements the assign column of the table in `rules`.


def check_assignable(variable: Any, called: str) -> None:
    """Refuses an assignment under a transform, where it would happen during tracing and not when the program runs."""
    check_writable(variable, store_of(variable, ambient()), called)


def write(assignment: Assignment, value: Any) -> Any:
    """Assigns according to the rules, and returns the new value in the current context."""
    here = ambient()
    variable = assignment.variable
    store = store_of(variable, here)
    check_writable(variable, store, assignment.called)
    check_strategy(variable, here, assignment.called)
    if isinstance(value, Mirrored):
        value = value.value
    if here.replica is not None:
        return _write_in_replica(assignment, value, store, here)
    if not variable.per_replica:
        return _write_whole(assignment, value, store, here)
    write_components(assignment, value, store, here)
    if variable.aggregation is VariableAggregation.NONE or not assignment.read_value:
        return None
    return aggregate(variable, store, here)


# Cross-replica context


def _write_whole(assignment: Assignment, value: Any, store: VariableStore | None, here: Ambient) -> Any:
    variable = assignment.variable
    if isinstance(value, PerReplica):
        value = _reduced(assignment, value, here)
    if store is None:
        check_same_everywhere(assignment, value)
        # The lock makes read and store atomic: no other thread assigns between them.
        with turn(), lock:
            new = assignment.combined(assignment.old(), aligned(value, variable.device_assignment))
            stored = placed(own(new), variable.device_assignment, per_replica=False)
            variable.store(stored, shared=assignment.read_value)
        return stored
    new = assignment.combined(store.whole(variable), aligned(value, variable.device_assignment))
    store.set_whole(variable, new, assignment.where)
    return store.whole(variable)


def _reduced(assignment: Assignment, value: PerReplica, here: Ambient) -> Any:
    """Aggregates a per-replica value for a mirrored variable."""
    variable = assignment.variable
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.NONE:
        raise VariableError(
            assignment.called,
            found=f"a per-replica value for mirrored variable {variable.name!r} with aggregation NONE",
            rule="a mirrored variable is equal on all replicas, so values that differ must be aggregated",
            remedy="create it with aggregation=VariableAggregation.MEAN (or SUM, ...), or reduce the value first",
        )
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return (
            first_stacked(value.stacked(variable.device_assignment), variable.device_assignment)
            if here.store is None
            else value.values[0]
        )
    op, runner = reduction_of(aggregation), here.runner
    if runner is not None and (isinstance(value, LocalPerReplica) or here.store is not None):
        return runner.reduce(op, [[runner.component(value, k) for k in range(runner.num_local)]])[0]
    return reduce_stacked(
        variable.strategy.cross_device_ops, op, [value.stacked(variable.device_assignment)], variable.device_assignment
    )[0]


# Replica context


def _write_in_replica(assignment: Assignment, value: Any, store: VariableStore | None, here: Ambient) -> Any:
    variable, runner, index = assignment.variable, here.runner, here.replica.local_index
    if isinstance(value, PerReplica):
        raise VariableError(
            assignment.called,
            found=f"a per-replica value was assigned to {variable.name!r} inside a replica",
            rule="inside run each replica assigns its own component",
            remedy="pass the per-replica value to run(fn, args=(value,)) and assign the component it receives",
        )
    if store is None:
        return _write_alone(assignment, value) if runner is None else _write_shared(assignment, value, runner, index)
    alone = runner is None or runner.device_assignment.num_replicas == 1
    if runner is None or alone or variable.per_replica or variable.aggregation is VariableAggregation.NONE:
        new = assignment.combined(store.local(variable, index), value)
        store.set_local(variable, index, new, assignment.where)
        return store.local(variable, index)
    if variable.device_assignment is None and variable.is_sum_of_components:
        raise _without_components(assignment)
    _merge(assignment, value, store, runner)
    return store.local(variable, index)


def _without_components(assignment: Assignment) -> ContextError:
    variable = assignment.variable
    return ContextError(
        assignment.called,
        found=f"the replicas assign {variable.name!r}, a sync-on-read variable with aggregation SUM that was created "
        "outside of strategy.scope()",
        rule="each replica assigns its own component, and only a variable created in the scope has components",
        remedy="create the variable (or the metric that owns it) inside `with strategy.scope():`",
    )


def _write_alone(assignment: Assignment, value: Any) -> Any:
    """Assigns to storage, from the only replica."""
    variable = assignment.variable
    with turn(), lock:
        old = assignment.old()
        first = old[0] if variable.per_replica and old is not None else old
        new = assignment.combined(first, aligned(value, variable.device_assignment))
        variable.store(placed(own(new), variable.device_assignment, variable.per_replica))
    return new


def _write_shared(assignment: Assignment, value: Any, runner: ReplicaRunner, index: int) -> Any:
    """Assigns a plain variable from one replica of an eager run. The new value is computed on the replica's device."""
    with lock:
        new = assignment.combined(runner.component(assignment.old(), index), value)
        assignment.variable.store(uncommitted(new))
    return new


def _merge(assignment: Assignment, value: Any, store: VariableStore, runner: ReplicaRunner) -> None:
    """Assigns a mirrored variable from all replicas: a merge aggregates their values."""
    variable = assignment.variable

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        merged = aligned(_merged(assignment, payloads, runner), variable.device_assignment)
        store.set_whole(variable, assignment.combined(store.whole(variable), merged), assignment.where)
        return [None] * len(payloads)

    runner.run_merge(Merge(assignment.called, run), value)


def _merged(assignment: Assignment, payloads: Sequence[Any], runner: ReplicaRunner) -> Any:
    """Aggregates the values that the replicas assign."""
    aggregation, first = assignment.variable.aggregation, payloads[0]
    is_number = not hasattr(first, "dtype") and not isinstance(first, (list, tuple))
    if is_number and all(payload == first for payload in payloads):
        return _one_number(assignment, first)
    arrays = [as_array(payload) for payload in payloads]
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return runner.first(arrays)
    return runner.reduce(reduction_of(aggregation), [arrays])[0]


def _one_number(assignment: Assignment, number: Any) -> Any:
    variable = assignment.variable
    if variable.aggregation in (VariableAggregation.MEAN, VariableAggregation.ONLY_FIRST_REPLICA):
        return number
    raise VariableError(
        assignment.called,
        found=f"the Python number {number!r} for variable {variable.name!r} "
        f"with aggregation {aggregation_name(variable.aggregation)}",
        rule="a Python number is one value and not one per replica, so it cannot be reduced over replicas",
        remedy=f"assign jnp.asarray({number!r}), which is one value per replica, or use aggregation=MEAN, which "
        "keeps the number",
    )
