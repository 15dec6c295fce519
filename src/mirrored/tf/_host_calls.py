"""Omits host callbacks (`tf.print`, assertions) from programs of `tf.saved_model`, which cannot contain callbacks."""

from __future__ import annotations

import contextvars
from contextlib import AbstractContextManager

from mirrored._blocks import setting

_omitted: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("omitted", default=None)


def record_if_omitted(called: str) -> bool:
    """Returns whether the current trace omits host callbacks; if so, records the name of the omitted callback."""
    omitted = _omitted.get()
    if omitted is None:
        return False
    omitted.add(called)
    return True


def without_host_calls(omitted: set[str]) -> AbstractContextManager[None]:
    """A context manager that omits host callbacks, such as `tf.print`, from traces; adds their names to `omitted`."""
    return setting(_omitted, omitted)
