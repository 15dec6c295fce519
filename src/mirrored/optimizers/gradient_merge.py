"""Sums the replicas' gradients in one merge, and computes the update once for all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax import putting
from mirrored._jax.traces import unboxed
from mirrored.collectives.host_allgather import host_allgather
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ArgumentError
from mirrored.optimizers.pairs import Pair, no_gradients, with_gradients
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.merging import Merge, ReplicaRunner, run_merge
from mirrored.strategies import get_replica_context, get_strategy
from mirrored.values.distributed_values import Mirrored, PerReplica
from mirrored.variables import Variable

Update = Callable[[Sequence[Any]], None]


def update_with_sums(gradients: Sequence[Any], update: Update, called: str) -> None:
    """Sums gradients over replicas in one reduction, and calls `update` with the sums in cross-replica context.

    In replica context this is one merge. The update is computed once per device for all virtual replicas of that device
    (in eager mode, once for all replicas), so its results are replicated by construction.
    """
    if get_replica_context() is None:
        update(_sums(gradients))
        return
    arrays = [as_array(gradient) for gradient in gradients]
    runner = ambient().runner
    if runner is None:
        update(arrays)
        return

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        runner.note_summed(called, payloads[0])
        with within(replica=None):
            update(runner.reduce(ReduceOp.SUM, [list(components) for components in zip(*payloads, strict=True)]))
        return [[]] * len(payloads)

    run_merge(Merge(called, run), arrays)


def update_with_sums_of(
    pairs: Sequence[Pair], extra: Sequence[Any], update: Callable[[Sequence[Pair], Sequence[Any]], None], called: str
) -> tuple[str, ...]:
    """Like `update_with_sums`, but each replica may lack some gradients; a missing gradient counts as zeros.

    Gradients of different replicas are matched by variable, not by position in the list.

    Args:
        pairs: This replica's pairs, with None for a missing gradient.
        extra: Arrays that are also summed over replicas.
        update: Receives the (sum, variable) pairs and the sums of `extra`, in cross-replica context.
        called: The caller's name, for messages.

    Returns:
        The names of the variables for which no replica has a gradient.

    Raises:
        ArgumentError: No replica has any gradient.
    """
    runner = ambient().runner
    if get_replica_context() is None or runner is None:
        present, absent = with_gradients(pairs, called)

        def with_variables(sums: Sequence[Any]) -> None:
            variables = [variable for _, variable in present]
            update(list(zip(sums[: len(present)], variables, strict=True)), sums[len(present) :])

        update_with_sums([*(gradient for gradient, _ in present), *extra], with_variables, called)
        return absent

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        variables, rows, absent = _aligned([own for own, _ in payloads], runner, called)
        runner.note_summed(called, [row[0] for row in rows])
        extras = [list(components) for components in zip(*(others for _, others in payloads), strict=True)]
        with within(replica=None):
            sums = runner.reduce(ReduceOp.SUM, [*rows, *extras])
            update(list(zip(sums[: len(rows)], variables, strict=True)), sums[len(rows) :])
        return [absent] * len(payloads)

    own = [(None if gradient is None else as_array(gradient), variable) for gradient, variable in pairs]
    return tuple(run_merge(Merge(called, run), [own, [as_array(value) for value in extra]]))


def _aligned(
    replicas: Sequence[Sequence[Pair]], runner: ReplicaRunner, called: str
) -> tuple[list[Variable], list[list[Any]], tuple[str, ...]]:
    """Returns variables with a gradient on any replica, their gradients per replica, and the other variables' names."""
    variables = {id(variable): variable for pairs in replicas for _, variable in pairs}
    given = [{id(variable): gradient for gradient, variable in pairs} for pairs in replicas]
    rows = {key: [gradients.get(key) for gradients in given] for key in variables}
    lacking = [key for key, row in rows.items() if all(gradient is None for gradient in row)]
    if runner.device_assignment.spans_processes:
        # Every worker must reduce the same list. A variable without a gradient here may have one on another worker.
        names = [variables[key].name for key in rows if key not in lacking]
        elsewhere = {
            name for worker in host_allgather(called, "which variables have gradients", names) for name in worker
        }
        lacking = [key for key in lacking if variables[key].name not in elsewhere]
    absent = tuple(variables[key].name for key in lacking)
    present = [variable for key, variable in variables.items() if key not in lacking]
    if not present:
        raise no_gradients(absent, called)
    return present, [_completed(rows[id(variable)], variable) for variable in present], absent


def _completed(row: Sequence[Any], variable: Variable) -> list[Any]:
    dtype = next((gradient.dtype for gradient in row if gradient is not None), variable.dtype)
    return [jnp.zeros(variable.shape, dtype) if gradient is None else gradient for gradient in row]


def _sums(gradients: Sequence[Any]) -> list[jax.Array]:
    """Sums per-replica gradients in one reduction and returns the others unchanged. Context: cross-replica."""
    per_replica = [gradient for gradient in gradients if isinstance(gradient, PerReplica)]
    sums = iter(get_strategy().reduce(ReduceOp.SUM, per_replica, axis=None))
    return [next(sums) if isinstance(gradient, PerReplica) else as_array(gradient) for gradient in gradients]


def as_they_are(gradients: Sequence[Any], called: str) -> list[jax.Array]:
    """Returns the gradients without aggregation.

    Raises:
        ArgumentError: A gradient is a per-replica value.
    """
    if any(isinstance(gradient, PerReplica) for gradient in gradients):
        raise ArgumentError(
            called,
            found="per-replica gradients with aggregation skipped",
            rule="the update of a mirrored variable takes one gradient, equal on all replicas",
            remedy="omit skip_gradients_aggregation, or reduce the gradients first with strategy.reduce",
        )
    return [as_array(gradient) for gradient in gradients]


def as_array(gradient: Any) -> jax.Array:
    """Returns a gradient as a plain array."""
    if isinstance(gradient, Mirrored):
        gradient = gradient.value
    return putting.as_array(gradient.read_value() if isinstance(gradient, Variable) else unboxed(gradient))


def once(make: Callable[[], None]) -> None:
    """Runs `make` once, in cross-replica context. In replica context all replicas call this together."""
    context = get_replica_context()
    if context is None:
        make()
    else:
        context.merge_call(lambda strategy: make())


def scope_of(variables: Sequence[Variable]) -> AbstractContextManager[Any]:
    """Returns the scope of the variables' strategy if no scope is open, else a null context.

    Gradients that `strategy.run` returned may be applied outside every scope.
    """
    owner = next((variable.strategy for variable in variables if variable.strategy is not None), None)
    if owner is None or ambient().strategies:
        return nullcontext()
    scope: AbstractContextManager[Any] = owner.scope()
    return scope
