"""Assigns a variable in each context: implements the assign column of the table in `rules`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrored._jax.putting import as_array
from mirrored.collectives.stacked import first_stacked, reduce_stacked
from mirrored.errors import ContextError, VariableError
from mirrored.runtime.ambient import Ambient, ambient
from mirrored.runtime.merging import Merge, ReplicaRunner
from mirrored.runtime.variable_store import VariableStore
from mirrored.values.distributed_values import LocalPerReplica, Mirrored, PerReplica
from mirrored.variables.assignment import Assignment, aggregation_name
from mirrored.variables.comparing import check_same_everywhere
from mirrored.variables.component_writing import write_components
from mirrored.variables.contexts import check_strategy, check_writable, store_of
from mirrored.variables.placement import aligned, own, placed, uncommitted
from mirrored.variables.reading import aggregate
from mirrored.variables.rules import VariableAggregation, reduction_of
from mirrored.variables.state_lock import lock, turn


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
