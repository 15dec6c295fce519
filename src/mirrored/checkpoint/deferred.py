"""State that comes after a restore: who is waiting for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_waiting: weakref.WeakKeyDictionary[Any, weakref.WeakMethod[Callable[[], None]]] = weakref.WeakKeyDictionary()


def expect(checkpoint: Any, resume: Callable[[], None] | None) -> None:
    """Has `resume` (a method of `checkpoint`) called when an object may have got more state; None: no more."""
    if resume is None:
        _waiting.pop(checkpoint, None)
    else:
        _waiting[checkpoint] = weakref.WeakMethod(resume)


def state_came() -> None:
    """Tells those that wait. Objects that can notice a new attribute call it."""
    for method in list(_waiting.values()):
        resume = method()
        if resume is not None:
            resume()


def is_anyone_waiting() -> bool:
    """Whether `state_came` would do anything; cheap."""
    return bool(_waiting)
