"""Errors and warnings for assignments that would make replicas, or eager and compiled runs, diverge.

A variable that was created outside any scope has no copies. In an eager run, as in TensorFlow, the replicas assign it
one after another. In a compiled run, they run at the same time, so all must assign the same value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from mirrored._jax.frames import user_stacklevel
from mirrored.errors import OutOfScopeWarning, ReplicaDivergenceError


def would_differ(variable: Any, where: Iterable[str], how: str) -> ReplicaDivergenceError:
    """Returns the error for an assignment that would make the replicas' values of a variable diverge.

    Args:
        variable: A mirrored variable, or one that was created outside any scope.
        where: The line where each replica assigned it; empty for a replica that did not.
        how: What differs, as the end of a sentence.
    """
    lines = ", ".join(sorted({line for line in where if line})) or "one replica only"
    kind, rule, remedy = _MIRRORED if variable.device_assignment is not None else _PLAIN
    return ReplicaDivergenceError(
        f"{variable.name}.assign",
        found=f"{kind} {variable.name!r}, assigned at {lines}, would differ between replicas{how}",
        rule=rule,
        remedy=remedy,
    )


def warn_of_assignment_in_turn(variable: Any, where: Iterable[str], replicas: int) -> None:
    """Warns that a compiled run updates a variable from its old value once, not once per replica.

    Args:
        variable: A variable that was created outside any scope.
        where: The lines that assigned it.
        replicas: The number of replicas of the run.
    """
    lines = ", ".join(sorted({line for line in where if line}))
    warnings.warn(
        f"variable {variable.name!r}, made outside of strategy.scope(), is updated at {lines} by {replicas} replicas\n"
        "  rule:   a compiled run updates it once; in an eager run, as in TensorFlow, the replicas update it one after "
        "another\n"
        "  remedy: make it (or the model or optimizer that it belongs to) inside `with strategy.scope():`; or assign "
        "it once, outside of run",
        OutOfScopeWarning,
        stacklevel=user_stacklevel(),
    )


_REDUCE = "reduce it first (get_replica_context().all_reduce(ReduceOp.MEAN, value))"
_MIRRORED = (
    "mirrored variable",
    "a mirrored variable is equal on all replicas at all times; a value that depends on the per-replica batch, "
    "on the replica id or on per-replica state must be reduced first",
    f"{_REDUCE}, create the variable with aggregation=VariableAggregation.MEAN, or make it sync-on-read "
    "(synchronization=VariableSynchronization.ON_READ)",
)
_PLAIN = (
    "variable (made outside of strategy.scope())",
    "a variable that was made outside of strategy.scope() has one value for all replicas, which all of them assign",
    f"{_REDUCE}, or make the variable (or the metric, layer or optimizer that it belongs to) inside "
    "`with strategy.scope():`, as sync-on-read if each replica should have its own value",
)
