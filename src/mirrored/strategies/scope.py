"""`Strategy.scope()`: the context manager that makes a strategy the current one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mirrored.errors import ContextError
from mirrored.runtime import hooks
from mirrored.runtime.ambient import Ambient, ambient, thread

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


class Scope(AbstractContextManager["Strategy"]):
    """Context manager that `Strategy.scope` returns; makes the strategy the current one."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._open: list[tuple[Ambient, Ambient, hooks.Finder | None]] = []

    def __enter__(self) -> Strategy:
        self._strategy.check_scope()
        hooks.connect()
        before = ambient()
        # The default strategy is current outside any scope, too. There, and in its scope, code is in replica context.
        opened = () if self._strategy.device_assignment is None else (self._strategy,)
        inside = before.fork(strategies=(*before.strategies, *opened))
        depth, finder = len(self._open), None
        try:
            finder = hooks.watch_imports()
            self._open.append((before, inside, finder))
            thread.current = inside
            return self._strategy
        except BaseException:  # an interrupt, such as Ctrl-C: the block does not run, so that nothing would end it
            thread.current = before
            del self._open[depth:]
            hooks.end_watching(finder)
            raise

    def __exit__(self, *exception: object) -> None:
        depth = None
        try:
            depth = len(self._open)
            self._close()
        except ContextError:
            raise
        except BaseException:  # an interrupt, such as Ctrl-C
            if depth is None or len(self._open) == depth:  # before the scope was closed
                self._close()
            raise

    def _close(self) -> None:
        here = ambient()
        if not self._open:
            raise _nesting_error(
                "Variable scope nesting error", "it is not open: it was exited before, or never entered"
            )
        before, inside, finder = self._open[-1]
        if here.creators is not inside.creators:
            raise _nesting_error(
                "Variable creator scope nesting error", "a variable_creator_scope inside it is still open"
            )
        if here.strategies is not inside.strategies:
            raise _nesting_error(
                "Strategy scope nesting error", "another scope inside it is still open, or it is open in another thread"
            )
        # Restores only the strategies: a tape that was opened inside the scope may still be recording.
        outside = here.fork(strategies=before.strategies)
        try:
            hooks.end_watching(finder)
        finally:
            thread.current, self._open[-1:] = outside, ()  # no interrupt comes between two assignments


def _nesting_error(kind: str, found: str) -> ContextError:
    return ContextError(
        "Strategy.scope",
        found=f"{kind}: {found}",
        rule="each scope must be exited once, in reverse order, in the thread that entered it",
        remedy="write `with strategy.scope():` around whole blocks instead of calling __enter__ and __exit__, and "
        "without `await` or `yield` in it, during which other code of the thread opens a scope",
    )
