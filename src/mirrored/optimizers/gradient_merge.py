"""Sums gradients over replicas in one reduction, clips them, and applies one update for all replicas."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mirrored._jax import arrays
from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import current_trace, is_eval, recording_parent
from mirrored._typing import Operand
from mirrored.collectives.host_allgather import host_allgather
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ArgumentError
from mirrored.optimizers.pairs import Pair, no_gradients, with_gradients
from mirrored.runtime.ambient import ambient
from mirrored.runtime.merge import Merge, run_merge, same_object
from mirrored.runtime.replica_runner import ReplicaRunner
from mirrored.strategies import get_replica_context, get_strategy
from mirrored.values.distributed_values import Mirrored, PerReplica
from mirrored.variables import Variable

# Sums the replicas' gradients in one merge, and computes the update once for all replicas.

Update = Callable[[Sequence[Any]], None]


def update_with_sums(gradients: Sequence[Any], update: Update, called: str, owner: object) -> None:
    """Sums gradients over replicas in one all-reduce, and calls `update` with the sums in cross-replica context.

    In replica context this is one merge. The update is computed once per device for all virtual replicas of that device
    (in eager mode, once for all replicas), so its results are replicated by construction.

    Args:
        gradients: This replica's gradients.
        update: Receives the sums.
        called: The caller's name, for messages.
        owner: The object whose method calls this function. All replicas must call the method of the same object.
    """
    if not ambient().is_in_replica_context:
        update(_sums(gradients))
        return
    arrays = [as_array(gradient) for gradient in gradients]
    runner = ambient().runner
    if runner is None:
        update(arrays)
        return

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        rows = [list(components) for components in zip(*payloads, strict=True)]
        update(runner.reduce(ReduceOp.SUM, rows))
        runner.note_summed(called, rows)  # not for an update that raises
        return [[]] * len(payloads)

    run_merge(Merge(called, run, given=(same_object(owner, type(owner).__name__),)), arrays)


def update_with_sums_of(
    pairs: Sequence[Pair],
    extra: Sequence[Any],
    update: Callable[[Sequence[Pair], Sequence[Any]], None],
    called: str,
    owner: object,
) -> tuple[str, ...]:
    """Sums each variable's gradient over replicas, with zeros for missing ones, and calls `update` with the sums.

    Gradients of different replicas are matched by variable, not by position in the list.

    Args:
        pairs: This replica's pairs, with None for a missing gradient.
        extra: Arrays that are also summed over replicas.
        update: Receives the (sum, variable) pairs and the sums of `extra`, in cross-replica context.
        called: The caller's name, for messages.
        owner: The object whose method calls this function. All replicas must call the method of the same object.

    Returns:
        The names of the variables for which no replica has a gradient.

    Raises:
        ArgumentError: No replica has any gradient.
    """
    here = ambient()
    runner = here.runner
    if runner is None or not here.is_in_replica_context:
        present, absent = with_gradients(pairs, called)

        def with_variables(sums: Sequence[Any]) -> None:
            variables = [variable for _, variable in present]
            update(list(zip(sums[: len(present)], variables, strict=True)), sums[len(present) :])

        update_with_sums([*(gradient for gradient, _ in present), *extra], with_variables, called, owner)
        return absent

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        variables, rows, absent = _aligned([own for own, _ in payloads], runner, called)
        extras = [list(components) for components in zip(*(others for _, others in payloads), strict=True)]
        sums = runner.reduce(ReduceOp.SUM, [*rows, *extras])
        update(list(zip(sums[: len(rows)], variables, strict=True)), sums[len(rows) :])
        runner.note_summed(called, rows)  # not for an update that raises
        return [absent] * len(payloads)

    own = [(None if gradient is None else as_array(gradient), variable) for gradient, variable in pairs]
    merge = Merge(called, run, given=(same_object(owner, type(owner).__name__),))
    return tuple(run_merge(merge, [own, [as_array(value) for value in extra]]))


def note_summed(called: str, gradients: Sequence[Any]) -> None:
    """Records the gradients that an optimizer of another library sums over replicas, so that their scale is checked.

    Context: replica context, in all replicas, directly before the sum. It has an effect in compiled runs only, and not
    under a transform, where replicas cannot wait for each other.
    """
    runner = ambient().runner
    if runner is None or is_eval(current_trace()) or recording_parent(current_trace()) is not runner.base_trace:
        return

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        runner.note_summed(called, [list(row) for row in zip(*payloads, strict=True)])
        return [[]] * len(payloads)

    run_merge(Merge(called, run), list(gradients))


def _aligned(
    replicas: Sequence[Sequence[Pair]], runner: ReplicaRunner, called: str
) -> tuple[list[Variable], list[list[Any]], tuple[str, ...]]:
    """Returns the variables that any replica has a gradient for, their gradients, and the names of the others."""
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
    return [jnp.zeros(variable.component_shape, dtype) if gradient is None else gradient for gradient in row]


def _sums(gradients: Sequence[Any]) -> list[jax.Array]:
    """Sums per-replica gradients in one reduction and returns the others unchanged. Context: cross-replica."""
    per_replica = [gradient for gradient in gradients if isinstance(gradient, PerReplica)]
    sums = iter(get_strategy().reduce(ReduceOp.SUM, per_replica, axis=None))
    return [next(sums) if isinstance(gradient, PerReplica) else as_array(gradient) for gradient in gradients]


def as_they_are(gradients: Sequence[Any], called: str) -> list[jax.Array]:
    """Returns already summed gradients unchanged, after checking that none is a per-replica value.

    Raises:
        ArgumentError: A gradient is a per-replica value.
    """
    if any(isinstance(gradient, PerReplica) for gradient in gradients):
        raise ArgumentError(
            called,
            found="the gradients are per-replica values, and their aggregation is skipped",
            rule="without aggregation, the gradient of a mirrored variable must be one array, equal on all replicas",
            remedy="omit skip_gradients_aggregation, or reduce the gradients first with strategy.reduce",
        )
    return [as_array(gradient) for gradient in gradients]


def as_array(gradient: Operand) -> jax.Array:
    """Converts a gradient, which may be a mirrored value or a variable, to a JAX array."""
    if isinstance(gradient, Mirrored):
        gradient = gradient.value
    return arrays.as_array(gradient.read_value() if isinstance(gradient, Variable) else payload_of(gradient))


def once(make: Callable[[], None]) -> None:
    """Calls `make` in cross-replica context, and only once if all replicas of a run call this function."""
    context = get_replica_context()
    if context is None:
        make()
    else:
        context.merge_call(lambda strategy: make())


def scope_of(variables: Sequence[Variable]) -> AbstractContextManager[Any]:
    """Returns the `scope()` of the strategy to which variables belong; an empty context if a scope is already open.

    Gradients that `strategy.run` returned may be applied outside every scope.
    """
    owner = next((variable.strategy for variable in variables if variable.strategy is not None), None)
    if owner is None or ambient().strategies:
        return nullcontext()
    scope: AbstractContextManager[Any] = owner.scope()
    return scope


# Gradient clipping. In replica context it acts on the all-reduced gradient, not on each replica's own.

Gradients = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Clipping:
    """The gradient clipping of an optimizer: by norm, by global norm, by value, or none.

    Attributes:
        clipnorm: Upper bound on the norm of each variable's gradient.
        global_clipnorm: Upper bound on the global norm of all gradients of one `apply_gradients` call.
        clipvalue: Upper bound on the absolute value of each element.
    """

    clipnorm: float | None = None
    global_clipnorm: float | None = None
    clipvalue: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        for name, value in given.items():
            if not (math.isfinite(value) and value > 0):
                raise ArgumentError(
                    "Optimizer",
                    found=f"{name}={value!r}",
                    rule="a clipping bound must be a finite number greater than 0",
                    remedy=f"omit {name}= to disable clipping",
                )
        if len(given) > 1:
            raise ArgumentError(
                "Optimizer",
                found=" and ".join(f"{name}={value!r}" for name, value in given.items()),
                rule="an optimizer can apply at most one kind of clipping",
                remedy="pass one of clipnorm, global_clipnorm, clipvalue; chain optax's transforms to combine them",
            )

    def apply(self, gradients: Gradients) -> Gradients:
        """Returns the gradients clipped to the given bounds, with unchanged shapes and dtypes."""
        if self.clipvalue is not None:
            return _transformed(optax.clip(self.clipvalue), gradients)
        if self.global_clipnorm is not None:
            return _transformed(optax.clip_by_global_norm(self.global_clipnorm), gradients)
        if self.clipnorm is not None:
            return {name: _clip_norm(gradient, self.clipnorm) for name, gradient in gradients.items()}
        return gradients


def _transformed(transform: optax.GradientTransformation, gradients: Gradients) -> Gradients:
    clipped = transform.update(gradients, transform.init(gradients))[0]
    return {name: clipped[name].astype(gradient.dtype) for name, gradient in gradients.items()}


def _clip_norm(gradient: jax.Array, bound: float) -> jax.Array:
    norm = optax.global_norm(gradient)
    return jnp.where(norm <= bound, gradient, gradient / norm.astype(gradient.dtype) * bound)
