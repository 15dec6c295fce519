"""`Strategy.scope()`: an object that may be entered again, also while it is open."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from mirrored.replicas.ambient import ambient, within
from mirrored.strategies import frameworks

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


class Scope(AbstractContextManager["Strategy"]):
    """Makes a strategy the current one for the block. Made by `Strategy.scope`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._open: list[ExitStack] = []

    def __enter__(self) -> Strategy:
        self._strategy.check_scope()
        frameworks.connect()
        stack = ExitStack()
        stack.enter_context(within(strategies=(*ambient().strategies, self._strategy)))
        self._open.append(stack)
        return self._strategy

    def __exit__(self, *exception: object) -> None:
        self._open.pop().close()
