"""Assigns the components of sync-on-read variables in cross-replica context."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.keys import is_key
from mirrored._jax.putting import as_array
from mirrored.errors import ContextError, VariableError
from mirrored.runtime.ambient import Ambient, ambient
from mirrored.runtime.merging import ReplicaRunner
from mirrored.runtime.variable_store import VariableStore
from mirrored.values.distributed_values import PerReplica, stack_components
from mirrored.variables.assignment import Assignment, aggregation_name
from mirrored.variables.comparing import check_same_everywhere
from mirrored.variables.contexts import check_strategy, check_writable, store_of
from mirrored.variables.kinds import check_kind
from mirrored.variables.placement import near
from mirrored.variables.rules import VariableAggregation
from mirrored.variables.state_lock import lock, turn


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
