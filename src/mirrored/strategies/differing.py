"""Variables that the replicas of a run would make differ, or that eager and compiled runs would.

A variable made outside of any scope has no copies. In an eager run, as in TensorFlow, the replicas assign it one after
another; in a compiled run they run at once, and all must assign one value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from mirrored._jax.frames import user_stacklevel
from mirrored.errors import OutOfScopeWarning, ReplicaDivergenceError


def would_differ(variable: Any, where: Iterable[str], how: str) -> ReplicaDivergenceError:
    """The error.

    Args:
        variable: A mirrored variable, or one that was made outside of any scope.
        where: The lines that assigned it, empty for a replica that did not.
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
    """Warns that a compiled run computes a variable's new value from its old one once, not once per replica.

    Args:
        variable: One that was made outside of any scope.
        where: The lines that assigned it.
        replicas: How many replicas the run has.
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
    "a mirrored variable is equal on all replicas at all times; a value that depends on a replica's share of the "
    "batch, its id or its own state is not, until it is reduced",
    f"{_REDUCE}, create the variable with aggregation=VariableAggregation.MEAN, or make it sync-on-read "
    "(synchronization=VariableSynchronization.ON_READ)",
)
_PLAIN = (
    "variable (made outside of strategy.scope())",
    "a variable that was made outside of strategy.scope() has one value for all replicas, which all of them assign",
    f"{_REDUCE}, or make the variable (or the metric, layer or optimizer that it belongs to) inside "
    "`with strategy.scope():`, as sync-on-read if each replica is to count for itself",
)
