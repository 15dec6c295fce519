"""Reads and assigns variables in each context, according to their synchronization and aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mirrored._jax.boxes import BOXES, payload_of
from mirrored._jax.sequences import without_lists_of_arrays
from mirrored._jax.source_lines import user_line
from mirrored._jax.traces import Tracer, current_trace, is_eval, is_eval_below, trace_below_tapes
from mirrored._typing import Number
from mirrored.collectives.algorithm import reduced_single_replica
from mirrored.collectives.reduce_op import as_reduce_op
from mirrored.collectives.stacked import check_components, first_stacked, reduce_stacked
from mirrored.errors import ContextError, TransformError, VariableError
from mirrored.runtime.ambient import Ambient, ambient, announce_write
from mirrored.runtime.entry_point import restoring
from mirrored.runtime.merge import Merge, same_object
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.runtime.variable_store import VariableStore
from mirrored.values.belonging import check_placement, none_or_complete
from mirrored.values.distributed_values import LocalPerReplica, Mirrored, PerReplica
from mirrored.variables.assigned import as_result
from mirrored.variables.assignment import Assignment
from mirrored.variables.rules import VariableAggregation, aggregation_name, check_kind, no_strategy_error, reduction_of
from mirrored.variables.state_lock import assignment_lock, lock
from mirrored.variables.storage import donatable, on_replica_devices, placed, uncommitted
from mirrored.variables.sync_on_read import aggregate, check_same_everywhere, component_error, row_in, write_components

if TYPE_CHECKING:
    from mirrored.variables.variable import Variable

# Resolves the variable store of the current context, and refuses reads and writes that the context does not allow.


def store_of(variable: Variable, here: Ambient) -> VariableStore | None:
    """Returns the variable store of the current `run` or trace; None if the variable's own storage holds the value.

    In an eager run the replicas share a plain variable and run one after another. It has no copies to stage, so they
    use its storage directly. What an optimizer updates in the replicas is staged nevertheless, and so are the slots of
    an optimizer that was made outside of the scope: one step must update them once.
    """
    store = here.store
    if store is not None and variable.device_assignment is None and not variable.internal:
        return store if store.captures or store.is_assigned(variable) else None
    return store


def eager_replica(variable: Variable) -> int | None:
    """Returns this replica's local index if `variable` is sync-on-read and the `run` is eager; otherwise None.

    If the result is not None, an assignment returns the component object, as in TensorFlow, and not an array.
    """
    here = ambient()
    eager_run = here.replica is not None and here.store is not None and not here.store.captures
    return here.replica.local_index if eager_run and variable.per_replica else None


def check_strategy(variable: Variable, here: Ambient, called: str) -> None:
    """Raises an error if a variable belongs to a strategy other than the current strategy."""
    if variable.device_assignment is None or not here.strategies or variable.strategy is here.strategies[-1]:
        return
    raise ContextError(
        called,
        found=f"variable {variable.name!r} belongs to {variable.strategy!r}, but {here.strategies[-1]!r} is current",
        rule="a run or scope can use only variables of its own strategy, and those created outside of any scope",
        remedy="create the variable in the scope of the strategy that uses it",
    )


_READ_UNDER: Final = "was read under a JAX transform"


def is_read_error(error: TransformError) -> bool:
    """Returns whether `check_readable` raised the error."""
    return _READ_UNDER in error.found


def check_readable(variable: Variable, store: VariableStore | None, here: Ambient) -> None:
    """Raises an error if a JAX transform would turn the variable's value into a constant of the traced program.

    An eager `jax.grad` or `jax.vmap` computes at once, with the current value. It may read variables that have no
    gradient and belong to no strategy, such as the loss scale of a Keras optimizer.
    """
    if here.listeners or (store is not None and store.captures):
        return
    trace = trace_below_tapes(current_trace())
    if is_eval(trace):
        return
    if not variable.trainable and variable.device_assignment is None and is_eval_below(trace):
        return
    raise TransformError(
        f"reading {variable.name}",
        found=f"the value of variable {variable.name!r} {_READ_UNDER} ({_transform()})",
        rule="a transform outside mirrored.function and GradientTape would turn the value into a constant",
        remedy="use mirrored.function instead of jax.jit (models and variables are its globals or closure variables, "
        "not its arguments) and GradientTape instead of jax.grad, or pass variable.read_value() as an argument",
    )


def check_writable(variable: Variable, store: VariableStore | None, called: str) -> None:
    """Raises an error if the caller is under a JAX transform, because the transform cannot record an assignment."""
    _check_writable(variable, store, called, trace_below_tapes(current_trace()))


def _check_writable(variable: Variable, store: VariableStore | None, called: str, trace: Any) -> None:
    if trace is store.base_trace if store is not None and store.captures else is_eval(trace):
        return
    raise TransformError(
        called,
        found=f"variable {variable.name!r} was assigned under a JAX transform ({_transform()})",
        rule="an assignment inside jit, grad, scan, cond or vmap would happen once, during tracing, "
        "and not when the program runs",
        remedy="use mirrored.function instead of jax.jit and GradientTape instead of jax.grad, "
        "or return the new value from the transformed function and assign it outside",
    )


def _transform() -> str:
    return type(trace_below_tapes(current_trace())).__name__.removesuffix("Trace")


# Reads


def read(variable: Variable) -> Any:
    """Returns a variable's value in the current context: the mirrored value, this replica's value, or the aggregate."""
    return _read(variable, ambient())


def read_all(variables: Sequence[Variable]) -> list[Any]:
    """Returns the values of several variables, without notifying tapes and other read listeners."""
    here = ambient()
    return [_read(variable, here) for variable in variables]


def _read(variable: Variable, here: Ambient) -> Any:
    store = store_of(variable, here)
    check_readable(variable, store, here)
    if here.shapes is not None and store is None:
        variable.stored_shape()  # records its use: the trace contains what a `tf.init_scope` block has read
    if here.replica is None:
        if variable.per_replica:
            if here.runner is not None:  # it would reduce as many components as the run has replicas
                check_strategy(variable, here, f"reading {variable.name}")
            return aggregate(variable, store, here)
        return variable.stored() if store is None else store.whole(variable)
    return _read_in_replica(variable, store, here)


def _read_in_replica(variable: Variable, store: VariableStore | None, here: Ambient) -> Any:
    index = here.replica.local_index
    if store is not None or variable.per_replica:
        check_strategy(variable, here, f"reading {variable.name}")
    if store is not None:
        return store.local(variable, index)
    if variable.per_replica:
        return variable.stored_component(index)
    # A plain variable in an eager run: its value is copied to this replica's device for this read.
    return variable.stored() if here.runner is None else here.runner.component(variable.stored(), index)


def component(variable: Variable, replica: int) -> Any:
    """Returns one replica's value of a variable, without aggregating over replicas."""
    here = ambient()
    store = store_of(variable, here)
    check_readable(variable, store, here)
    if store is None:
        return variable.stored_component(replica)
    # In a compiled run a local replica stands for those of all devices, so it may not be the one that is asked for.
    is_own = here.replica is not None and here.replica.local_index == replica
    if is_own and not (variable.per_replica and here.runner is not None and here.runner.stands_for_others):
        return store.local(variable, replica)
    if variable.per_replica and not store.captures and variable.device_assignment.spans_processes:
        value = store.local(variable, replica)
    else:
        whole = store.whole(variable)
        value = row_in(whole, variable, replica, here) if variable.per_replica else whole
    if here.replica is None or here.runner is None or store.captures:
        return value
    return here.runner.component(value, here.replica.local_index)  # a copy on the device of the replica that reads


# Assignments


def check_writable_here(variable: Variable, called: str) -> None:
    """Calls `check_writable` for the current context: raises an error if the caller is under a JAX transform."""
    check_writable(variable, store_of(variable, ambient()), called)


def operand_of(value: object) -> Any:
    """Prepares a value for assignment to a variable.

    A list that contains arrays is stacked, and an array that a tape tracks is unwrapped.
    """
    if isinstance(value, (list, tuple)):
        return without_lists_of_arrays(value)
    return payload_of(value) if type(value) in BOXES else value


@restoring
def write(assignment: Assignment, value: object) -> Any:
    """Assigns a value according to the variable's synchronization and aggregation, and returns the new value."""
    return _write(assignment, value, ambient(), trace_below_tapes(current_trace()))


def assign_all(variables: Sequence[Variable], values: Sequence[object], *, aggregates: bool = True) -> None:
    """Assigns `values` to `variables` one by one, like `Variable.assign`.

    Args:
        variables: The variables.
        values: One value for each variable.
        aggregates: Whether the variables' aggregations apply. If not, all replicas must assign equal values.
    """
    announce_write(variables)
    here, where, trace = ambient(), user_line(), trace_below_tapes(current_trace())
    for variable, value in zip(variables, map(operand_of, values), strict=True):
        _write(Assignment(variable, "assign", where, f"{variable.name}.assign", False, aggregates), value, here, trace)


def _write(assignment: Assignment, value: object, here: Ambient, trace: Any) -> Any:
    variable = assignment.variable
    store = store_of(variable, here)
    if not assignment.aggregates and here.replica is not None:
        store = here.store
    _check_writable(variable, store, assignment.called, trace)
    check_strategy(variable, here, assignment.called)
    if isinstance(value, Mirrored):
        value = value.value
    if isinstance(value, PerReplica) and here.replica is None and variable.device_assignment is not None:
        check_placement(assignment.called, variable.strategy, value, value.device_assignment)
        value = none_or_complete(assignment.called, value)
    assignment.refuse_none(value)
    if here.replica is not None:
        return _write_in_replica(assignment, value, store, here)
    if not variable.per_replica:
        return _write_whole(assignment, value, store, here)
    write_components(assignment, value, store, here)
    if variable.aggregation is VariableAggregation.NONE or not assignment.read_value:
        return None
    return aggregate(variable, store, here)


# Assignments in cross-replica context


def _write_whole(assignment: Assignment, value: object, store: VariableStore | None, here: Ambient) -> Any:
    variable = assignment.variable
    if isinstance(value, PerReplica):
        value = _aggregate_per_replica(assignment, value, here)
    if store is None:
        check_same_everywhere(assignment, value)
        # The lock makes read and store atomic: no other thread assigns between them.
        with assignment_lock(), lock:
            new = assignment.combined(assignment.old(), on_replica_devices(value, variable.device_assignment))
            stored = placed(donatable(new), variable.device_assignment, per_replica=False)
            variable.store(stored, shared=assignment.read_value)
        return as_result(stored, variable.device_assignment) if assignment.read_value else None
    old = None if assignment.replaces else store.whole(variable)
    here_too = value if isinstance(value, Tracer) else on_replica_devices(value, variable.device_assignment)
    store.set_whole(variable, assignment.combined(old, here_too), assignment.where)
    return store.whole(variable) if assignment.read_value else None


def _aggregate_per_replica(assignment: Assignment, value: PerReplica, here: Ambient) -> Any:
    """Aggregates a per-replica value to the single value that is assigned to a mirrored variable."""
    variable = assignment.variable
    aggregation = variable.aggregation
    if aggregation is VariableAggregation.NONE:
        raise VariableError(
            assignment.called,
            found=f"a per-replica value was assigned to mirrored variable {variable.name!r} with aggregation NONE",
            rule="a mirrored variable must be equal on all replicas, so values that differ must be aggregated",
            remedy="create it with aggregation=VariableAggregation.MEAN (or SUM, ...), or reduce the value first",
        )
    if variable.device_assignment is None and here.runner is None:
        raise no_strategy_error(assignment.called, variable.name)
    # Checked before stacking, which makes arrays of the host's integers, whose range is then unknown.
    if here.store is None and not value.is_stacked:
        for component in value.values:
            check_kind(component, variable.dtype, assignment.called, variable.name)
        if variable.device_assignment is not None and variable.device_assignment.spans_processes:
            check_components(assignment.called, [value], variable.device_assignment)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        if here.store is not None:
            return value.values[0]
        return first_stacked(value.stacked(variable.device_assignment), variable.device_assignment)
    op, runner, layout = reduction_of(aggregation), here.runner, variable.device_assignment
    if runner is not None and (isinstance(value, LocalPerReplica) or here.store is not None):
        return runner.reduce(op, [[assignment.term(runner.component(value, k)) for k in range(runner.num_local)]])[0]
    algorithm = variable.strategy.cross_device_ops
    if here.store is not None:
        here.store.note_reduction(bit_identical=algorithm.requires_bit_identity)
    return reduce_stacked(algorithm, op, [assignment.term(value.stacked(layout))], layout)[0]


# Assignments in replica context


def _write_in_replica(assignment: Assignment, value: object, store: VariableStore | None, here: Ambient) -> Any:
    variable, runner, index = assignment.variable, here.runner, here.replica.local_index
    if isinstance(value, PerReplica):
        raise VariableError(
            assignment.called,
            found=f"a per-replica value was assigned to {variable.name!r} inside a replica",
            rule="inside run each replica can assign only its own component",
            remedy="pass the per-replica value to run(fn, args=(value,)) and assign the component it receives",
        )
    if store is None:
        if runner is None:
            return _write_alone(assignment, value)
        _refuse_in_trace(assignment, runner)
        return _write_shared(assignment, value, runner, index)
    alone = runner is None or runner.device_assignment.num_replicas == 1
    if runner is None or alone or variable.per_replica or not _is_aggregated(assignment):
        term = _aggregated_alone(assignment, value) if alone else value
        new = assignment.combined(None if assignment.replaces else store.local(variable, index), term)
        store.set_local(variable, index, new, assignment.where)
        if not assignment.aggregates:
            store.note_update(variable)
        return store.local(variable, index)
    if variable.device_assignment is None and variable.is_sum_of_components:
        raise component_error(assignment.called, variable.name)
    _merge(assignment, value, store, runner)
    return store.local(variable, index)


def _is_aggregated(assignment: Assignment) -> bool:
    """Returns whether the values that the replicas of a run assign to a variable are aggregated."""
    variable = assignment.variable
    if not _aggregates(assignment):
        return False
    # Eager replicas assign a plain variable in turn; only the sum of what they add is the same in a compiled run.
    if variable.device_assignment is not None or variable.internal:
        return variable.aggregation is not VariableAggregation.NONE
    adds = not assignment.replaces and variable.aggregation is VariableAggregation.SUM
    return adds or variable.is_sum_of_components  # without components, which `_write_in_replica` refuses


def _aggregates(assignment: Assignment) -> bool:
    """Returns whether a variable's aggregation applies to the values that replicas assign.

    In the function of `StrategyExtended.update` each replica assigns the value that its copy is to have, so a sum of
    these values, or a custom reduction, is not applied; the values must be equal.
    """
    is_mean = assignment.variable.aggregation in (VariableAggregation.MEAN, VariableAggregation.ONLY_FIRST_REPLICA)
    return assignment.aggregates and (is_mean or not ambient().updates)


def _aggregated_alone(assignment: Assignment, value: object) -> Any:
    """Applies a variable's custom reduction to the value of a single replica; without one, returns the value."""
    variable = assignment.variable
    is_custom = _aggregates(assignment) and not isinstance(variable.aggregation, VariableAggregation)
    if variable.device_assignment is None or variable.per_replica or not is_custom:
        return value
    return reduced_single_replica(as_reduce_op(variable.aggregation), assignment.term(value))


def _write_alone(assignment: Assignment, value: object) -> Any:
    """Assigns a variable in a run with a single replica, where there are no other replicas' values to aggregate."""
    variable = assignment.variable
    value = _aggregated_alone(assignment, value)
    with assignment_lock(), lock:
        old = assignment.old()
        first = old[0] if variable.per_replica and old is not None else old
        new = assignment.combined(first, on_replica_devices(value, variable.device_assignment))
        variable.store(placed(donatable(new), variable.device_assignment, variable.per_replica))
    return new


def _refuse_in_trace(assignment: Assignment, runner: ReplicaRunner) -> None:
    """Raises an error if eager code inside a trace of several replicas assigns a variable of a strategy.

    The replicas of one device would assign it, at the trace, and those of other devices would not.

    Raises:
        ContextError: The variable belongs to a strategy.
    """
    variable = assignment.variable
    if variable.device_assignment is not None and runner.device_assignment.num_replicas > 1:
        raise ContextError(
            assignment.called,
            found=f"variable {variable.name!r} of a strategy was assigned under init_scope in a traced replica",
            rule="code under init_scope runs once for each replica of one device, while the function is traced",
            remedy="assign the variable outside of init_scope, in merge_call, or outside of run",
        )


def _write_shared(assignment: Assignment, value: object, runner: ReplicaRunner, index: int) -> Any:
    """Assigns a plain variable, which belongs to no strategy, from one replica of an eager run."""
    with lock:
        new = assignment.combined(runner.component(assignment.old(), index), value)
        assignment.variable.store(uncommitted(new))
    return new


def _merge(assignment: Assignment, value: Any, store: VariableStore, runner: ReplicaRunner) -> None:
    """Aggregates the values that all replicas assign to a mirrored variable, and assigns the aggregate."""
    variable = assignment.variable
    # Read in the replica: in the merge, a sync-on-read variable has the aggregate of its components as its value.
    payload = value if _is_number(value) else assignment.term(value)

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        merged = on_replica_devices(_aggregate_local_values(assignment, payloads, runner), variable.device_assignment)
        old = None if assignment.replaces else store.whole(variable)
        store.set_whole(variable, assignment.combined(old, merged), assignment.where)
        return [None] * len(payloads)

    runner.run_merge(Merge(assignment.called, run, given=(same_object(variable, variable.name),)), payload)


def _is_number(value: object) -> bool:
    """Returns whether a value is a Python number; False for `numpy.float64`, which is treated as an array."""
    return isinstance(value, (bool, int, float, complex)) and not hasattr(value, "dtype")


def _aggregate_local_values(assignment: Assignment, payloads: Sequence[Any], runner: ReplicaRunner) -> Any:
    """Aggregates the values that the replicas assign; `payloads` has one value per local replica."""
    if all(map(_is_number, payloads)) and runner.are_equal(payloads):
        return _one_number(assignment, payloads[0])
    arrays = [assignment.term(payload) for payload in payloads]
    if assignment.variable.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return runner.first(arrays)
    return runner.reduce(reduction_of(assignment.variable.aggregation), [arrays])[0]


def _one_number(assignment: Assignment, number: Number) -> Any:
    variable = assignment.variable
    if variable.aggregation in (VariableAggregation.MEAN, VariableAggregation.ONLY_FIRST_REPLICA):
        return number
    aggregation = aggregation_name(variable.aggregation)
    raise VariableError(
        assignment.called,
        found=f"the replicas assign the Python number {number!r} to {variable.name!r} with aggregation {aggregation}",
        rule=f"A non-DistributedValues value {number!r} cannot be reduced with the given reduce op "
        f"ReduceOp.{aggregation}. A Python number is one value and not one per replica",
        remedy=f"assign jnp.asarray({number!r}), one value per replica, or use MEAN, which keeps the number",
    )
