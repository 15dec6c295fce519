"""Where a strategy's methods may not be called."""

from __future__ import annotations

from typing import Any

from mirrored.errors import ContextError
from mirrored.runtime.ambient import ambient


def refuse_in_replica(method: str) -> None:
    """Refuses what needs the cross-replica context.

    Raises:
        ContextError: This code runs inside a replica.
    """
    if ambient().replica is None:
        return
    raise ContextError(
        f"Strategy.{method}",
        found="it was called inside a replica",
        rule="it needs the cross-replica context, where all replicas are seen at once",
        remedy="call it outside the function given to run, or inside get_replica_context().merge_call(fn)",
    )


def refuse_mixing(strategy: Any, method: str) -> None:
    """Refuses to use a strategy inside the scope of another.

    Raises:
        ContextError: Another strategy is current.
    """
    strategies = ambient().strategies
    if not strategies or strategies[-1] is strategy:
        return
    raise ContextError(
        f"Strategy.{method}",
        found=f"{strategy!r} inside the scope of {strategies[-1]!r}",
        rule="one strategy at a time: scopes and runs of different strategies are not mixed",
        remedy="leave the other strategy's scope first, or use one strategy for both",
    )
