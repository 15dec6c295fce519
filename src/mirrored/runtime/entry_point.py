"""Wraps public functions: restores this thread's state after an exception, and hides internal traceback frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from mirrored._jax.source_lines import hides_frames, is_interrupt
from mirrored._jax.traces import current_trace, eval_trace, put_trace, restore_thread_state, thread_state
from mirrored.runtime.ambient import thread

F = TypeVar("F", bound=Callable[..., Any])


def restoring(function: F) -> F:
    """Wraps a function to restore this thread's context and JAX's trace state if the function raises an exception.

    Ctrl-C raises KeyboardInterrupt, even where JAX's caches have turned it into a ValueError.

    Blocks inside the function restore them, too. But an exception that interrupts the beginning or the end of such a
    block, such as Ctrl-C, can prevent that, in JAX's own blocks as well.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        context, state = thread.current, thread_state()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            thread.current = context
            restore_thread_state(state)
            if is_interrupt(error):
                raise KeyboardInterrupt from error
            raise

    return call  # type: ignore[return-value]


def entry_point(function: F) -> F:
    """Wraps a public function with `restoring`, and hides internal frames in tracebacks."""
    return hides_frames(restoring(function))


class _EagerlyWithin:
    """Context manager of `eagerly_within`; an interrupt, such as Ctrl-C, at its entry or exit restores both.

    A generator would not do: what interrupts the entry after its ``yield`` does not end it, and Python may finalize it
    much later, when it would replace the context of that moment.
    """

    def __init__(self, changes: dict[str, Any]) -> None:
        self._changes = changes

    def __enter__(self) -> None:
        self._context, self._trace = thread.current, current_trace()
        try:
            put_trace(eval_trace)
            thread.current = self._context.fork(**self._changes)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            put_trace(self._trace)
        finally:
            thread.current = self._context


def eagerly_within(**changes: Any) -> AbstractContextManager[None]:
    """Executes primitives immediately, and changes fields of this thread's context, during a ``with`` block."""
    return _EagerlyWithin(changes)


def outside_of_everything() -> AbstractContextManager[None]:
    """Leaves this thread's scopes, runs, tapes and traces in a ``with`` block, so that assignments run immediately."""
    return eagerly_within(
        strategies=(), listeners=(), creators=(), store=None, replica=None, runner=None, interceptor=None
    )
