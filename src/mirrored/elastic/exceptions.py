"""Functions on exceptions that interrupt elastic training: find causes, and free the arrays that tracebacks hold."""

from __future__ import annotations

import traceback


def chain(error: BaseException | None) -> list[BaseException]:
    """Returns a list of an exception and those that led to it, following `__cause__`, or else `__context__`."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def drop_frames(error: BaseException) -> None:
    """Drops the local variables of an exception's stack frames, which may hold arrays on devices."""
    for one in chain(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
        one.__cause__ = one.__context__ = None
