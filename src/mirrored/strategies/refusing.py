"""Checks that a strategy's method is called in the right context."""

from __future__ import annotations

from typing import Any

from mirrored.errors import ContextError
from mirrored.runtime.ambient import ambient


def refuse_in_replica(method: str) -> None:
    """Raises an error if a method that needs the cross-replica context is called inside a replica.

    Raises:
        ContextError: The call is inside a replica.
    """
    if ambient().replica is None:
        return
    raise ContextError(
        f"Strategy.{method}",
        found="it was called inside a replica",
        rule="it needs the cross-replica context",
        remedy="call it outside the function given to run, or inside get_replica_context().merge_call(fn)",
    )


def refuse_mixing(strategy: Any, method: str) -> None:
    """Raises an error if a strategy is used inside the scope of another one.

    Raises:
        ContextError: Another strategy is current.
    """
    strategies = ambient().strategies
    if not strategies or strategies[-1] is strategy:
        return
    raise ContextError(
        f"Strategy.{method}",
        found=f"{strategy!r} inside the scope of {strategies[-1]!r}",
        rule="scopes and runs of different strategies cannot be nested",
        remedy="leave the other strategy's scope first, or use one strategy for both",
    )
