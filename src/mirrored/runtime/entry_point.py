"""Wraps public functions: restores this thread's state after an exception, and hides internal traceback frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from typing import Any, Self, TypeVar

from mirrored._blocks import end_blocks
from mirrored._jax.source_lines import hides_frames, is_interrupt
from mirrored._jax.traces import current_trace, eval_trace, put_trace, restore_thread_state, thread_state
from mirrored.runtime.ambient import thread

F = TypeVar("F", bound=Callable[..., Any])
Note = Callable[[], Callable[[], None]]
_notes: list[Note] = []


def restore_too(note: Note) -> None:
    """Registers a function that notes thread-local state of a framework, and returns what restores it.

    `noted_state` calls it.
    """
    _notes.append(note)


def noted_state() -> Callable[[], None]:
    """Returns a function that restores this thread's context, JAX's trace, and the thread-local state of frameworks.

    `restoring` leaves out the frameworks, because every call of a compiled step would note their state.
    """
    context, trace, restores = thread.current, current_trace(), [note() for note in _notes]

    def restore() -> None:
        thread.current = context
        put_trace(trace)
        for one in restores:
            one()

    return restore


def with_noted_state(function: F) -> F:
    """Wraps a function to restore at its end what `noted_state` notes.

    Also after a normal end: a framework may catch what has interrupted the entry or exit of one of its blocks.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        restore = noted_state()
        try:
            return function(*args, **kwargs)
        finally:
            restore()

    return call  # type: ignore[return-value]


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
            try:
                end_blocks(error)
            finally:  # also if a second interrupt comes
                thread.current = context
            restore_thread_state(state)
            if is_interrupt(error):
                raise KeyboardInterrupt from error
            raise

    return call  # type: ignore[return-value]


def entry_point(function: F) -> F:
    """Wraps a public function to restore this thread's state after exceptions and to hide internal traceback frames."""
    return hides_frames(restoring(function))


class EagerlyWithin(ContextDecorator):
    """Context manager that executes primitives immediately, and changes fields of this thread's context.

    An interrupt, such as Ctrl-C, at its entry or exit restores both.

    A generator would not do: what interrupts the entry after its ``yield`` does not end it, and Python may finalize it
    much later, when it would replace the context of that moment.
    """

    def __init__(self, **changes: Any) -> None:
        self._changes = changes

    def _recreate_cm(self) -> Self:  # a function that it decorates may call itself
        return type(self)(**self._changes)

    def changes(self) -> dict[str, Any]:
        """Returns the context fields to change, with their new values; called when the block is entered."""
        return self._changes

    def __enter__(self) -> None:
        self._context, self._trace = thread.current, current_trace()
        try:
            put_trace(eval_trace)
            thread.current = self._context.fork(**self.changes())
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            put_trace(self._trace)
        finally:
            thread.current = self._context


def outside_of_everything() -> AbstractContextManager[None]:
    """Leaves this thread's scopes, runs, tapes and traces in a ``with`` block, so that assignments run immediately."""
    return EagerlyWithin(
        strategies=(), listeners=(), creators=(), store=None, replica=None, runner=None, interceptor=None
    )
