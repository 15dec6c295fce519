"""Steps of a strategy for the tests of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def step_of(way: Any, update: Callable[[], Any]) -> Any:
    """Returns a step that calls `update` on every replica, and returns nothing."""

    def replica_step() -> None:
        update()

    return way.compile(lambda: way.strategy.run(replica_step))
