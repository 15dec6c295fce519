"""State that comes after a restore: who is waiting for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_waiting: weakref.WeakKeyDictionary[Any, weakref.WeakMethod[Callable[[Any], None]]] = weakref.WeakKeyDictionary()


def expect(checkpoint: Any, came: Callable[[Any], None] | None) -> None:
    """Has `came` (a method of `checkpoint`) called with every new attribute of an object; None: no more."""
    if came is None:
        _waiting.pop(checkpoint, None)
    else:
        _waiting[checkpoint] = weakref.WeakMethod(came)


def state_came(value: Any) -> None:
    """Tells those that wait of an object's new attribute. Objects that can notice one call it.

    Context: any. It is cheap if nobody waits.
    """
    for method in list(_waiting.values()):
        came = method()
        if came is not None:
            came(value)
