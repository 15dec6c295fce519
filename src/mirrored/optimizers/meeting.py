"""Bringing the replicas' gradients together, and updating once for all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax.traces import unboxed
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ArgumentError
from mirrored.replicas.ambient import ambient, within
from mirrored.replicas.merging import Merge, meet
from mirrored.replicas.values import Mirrored, PerReplica
from mirrored.strategies import get_replica_context, get_strategy
from mirrored.variables import Variable

Update = Callable[[Sequence[Any]], None]


def update_with_sums(gradients: Sequence[Any], update: Update, called: str) -> None:
    """Sums gradients over replicas, all in one reduction, and calls `update` with the sums, in cross-replica context.

    In replica context that is one merge: the update is computed once for all replicas of a device (and in eager mode
    once for all of them), and its results are equal on all replicas by construction.
    """
    if get_replica_context() is None:
        update(_sums(gradients))
        return
    arrays = [as_array(gradient) for gradient in gradients]
    session = ambient().runner
    if session is None:
        update(arrays)
        return

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        with within(replica=None):
            update(session.reduce(ReduceOp.SUM, [list(components) for components in zip(*payloads, strict=True)]))
        return [[]] * len(payloads)

    meet(Merge(called, run), arrays)


def _sums(gradients: Sequence[Any]) -> list[jax.Array]:
    """In cross-replica context: per-replica gradients summed in one reduction, all others as they are."""
    per_replica = [gradient for gradient in gradients if isinstance(gradient, PerReplica)]
    sums = iter(get_strategy().reduce(ReduceOp.SUM, per_replica, axis=None))
    return [next(sums) if isinstance(gradient, PerReplica) else as_array(gradient) for gradient in gradients]


def as_they_are(gradients: Sequence[Any], called: str) -> list[jax.Array]:
    """The gradients without any aggregation.

    Raises:
        ArgumentError: A gradient is a per-replica value.
    """
    if any(isinstance(gradient, PerReplica) for gradient in gradients):
        raise ArgumentError(
            called,
            found="per-replica gradients, and aggregation skipped",
            rule="a mirrored variable is updated by one gradient, the same for all replicas",
            remedy="leave skip_gradients_aggregation out, or reduce them first with strategy.reduce",
        )
    return [as_array(gradient) for gradient in gradients]


def as_array(gradient: Any) -> jax.Array:
    """A gradient as a plain array."""
    if isinstance(gradient, Mirrored):
        gradient = gradient.value
    return jnp.asarray(gradient.read_value() if isinstance(gradient, Variable) else unboxed(gradient))


def once(make: Callable[[], None]) -> None:
    """Runs `make` once, in cross-replica context, whatever number of replicas ask for it together."""
    context = get_replica_context()
    if context is None:
        make()
    else:
        context.merge_call(lambda strategy: make())


def scope_of(variables: Sequence[Variable]) -> AbstractContextManager[Any]:
    """The scope of the variables' strategy, if no strategy is in force: gradients that left `run` are applied in it."""
    owner = next((variable.strategy for variable in variables if variable.strategy is not None), None)
    if owner is None or ambient().strategies:
        return nullcontext()
    scope: AbstractContextManager[Any] = owner.scope()
    return scope
