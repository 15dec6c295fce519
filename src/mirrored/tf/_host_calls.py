"""Omits host callbacks (`tf.print`, assertions) from programs of `tf.saved_model`, which cannot contain callbacks."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_omitted: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("omitted", default=None)


def record_if_omitted(called: str) -> bool:
    """Returns whether the current trace omits host callbacks; if so, records the name of the omitted callback."""
    omitted = _omitted.get()
    if omitted is None:
        return False
    omitted.add(called)
    return True


@contextlib.contextmanager
def without_host_calls(omitted: set[str]) -> Iterator[None]:
    """A context manager that omits host callbacks, such as `tf.print`, from traces; adds their names to `omitted`."""
    token = _omitted.set(omitted)
    try:
        yield
    finally:
        _omitted.reset(token)
