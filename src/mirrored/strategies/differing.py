"""The error for a variable whose copies a run would make differ, eager and compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mirrored.errors import SynchronyError


def would_differ(variable: Any, where: Iterable[str], how: str) -> SynchronyError:
    """The error.

    Args:
        variable: A mirrored variable, or one that was made outside of any scope.
        where: The lines that assigned it, empty for a replica that did not.
        how: What differs, as the end of a sentence.
    """
    lines = ", ".join(sorted({line for line in where if line})) or "one replica only"
    kind, rule, remedy = _MIRRORED if variable.layout is not None else _PLAIN
    return SynchronyError(
        f"{variable.name}.assign",
        found=f"{kind} {variable.name!r}, assigned at {lines}, would differ between replicas{how}",
        rule=rule,
        remedy=remedy,
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
