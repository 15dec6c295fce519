"""Public functions that restore this thread's state after an exception, and whose tracebacks hide internal frames."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mirrored._jax import caches
from mirrored._jax.source_lines import boundary
from mirrored._jax.traces import restore_trace_context, trace_context
from mirrored.runtime.ambient import thread

F = TypeVar("F", bound=Callable[..., Any])


def restoring(function: F) -> F:
    """Wraps a function so that, after an exception, this thread's context and JAX's trace state are as before.

    Blocks inside the function restore them, too. But an exception that interrupts the beginning or the end of such a
    block, such as Ctrl-C, can prevent that, in JAX's own blocks as well.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        context, trace, tokens = thread.current, trace_context(), caches.tokens()
        try:
            return function(*args, **kwargs)
        except BaseException:
            thread.current = context
            restore_trace_context(trace)
            caches.restore_tokens(tokens)
            raise

    return call  # type: ignore[return-value]


def entry_point(function: F) -> F:
    """Wraps a public function by `restoring`; tracebacks hide internal frames, and Ctrl-C raises KeyboardInterrupt."""
    return boundary(restoring(function))
