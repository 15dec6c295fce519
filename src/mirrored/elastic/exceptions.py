"""Functions on exceptions that interrupt elastic training: find causes, and free the arrays that tracebacks hold."""

from __future__ import annotations

import traceback


def chain(error: BaseException | None) -> list[BaseException]:
    """Returns a list of an exception and its causes: follows `__cause__`, or `__context__` if there is no cause."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def drop_frames(error: BaseException) -> None:
    """Deletes the tracebacks of an exception and its causes, because their stack frames may hold arrays on devices."""
    for one in chain(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
        one.__cause__ = one.__context__ = None
