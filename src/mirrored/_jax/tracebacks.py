"""Filters the errors that reach the user: removes internal stack frames, and preserves KeyboardInterrupt.

JAX's own traceback filter removes this package's frames along with those of JAX. The setting `jax_traceback_filtering`
(JAX_TRACEBACK_FILTERING) controls it: ``off`` shows all frames.

Supports JAX 0.10 to 0.12: `jax._src.traceback_util.api_boundary` and `register_exclusion`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

from jax._src import traceback_util as _traceback_util

F = TypeVar("F", bound=Callable[..., Any])

_traceback_util.register_exclusion(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# jaxlib compares the keys of its caches in C++ and converts any exception of `__eq__`, including Ctrl-C, to a
# ValueError that has the traceback as its text or the exception as its cause.
_COMPARING = re.compile(r"comparable using __eq__|checking equality of metadata fields")
_INTERRUPTED = re.compile(r"^KeyboardInterrupt\b", re.MULTILINE)


def interruptible(function: F) -> F:
    """Wraps `function` to raise KeyboardInterrupt instead of the ValueError to which JAX's caches convert it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            if _is_interrupt(error):
                raise KeyboardInterrupt from error
            raise

    return call  # type: ignore[return-value]


def _is_interrupt(error: ValueError) -> bool:
    if not _COMPARING.search(str(error)):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt) or _INTERRUPTED.search(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def boundary(function: F) -> F:
    """Wraps `function` as an API boundary: tracebacks show only user frames below it, and interrupts are preserved."""
    bounded: F = _traceback_util.api_boundary(interruptible(function))
    return bounded
