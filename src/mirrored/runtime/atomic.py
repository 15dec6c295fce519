"""Atomic assignments: undoes all variable assignments of a run or `merge_call` that raises an exception.

Assignments are staged in the variable store of the context, or go to the storage of variables. The store undoes its
own; `mirrored.variables`, which is in a higher layer, registers the guard for storage.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

from mirrored.runtime.ambient import ambient

T = TypeVar("T")


class Guard(Protocol):
    """A function that calls another function and undoes its variable assignments if it raises an exception."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Returns the result of `call`, and undoes its assignments if it raises."""
        ...


_storage_guard: list[Guard] = []


def guard_storage(guard: Guard) -> None:
    """Registers the function that undoes assignments to stored variable values after an exception."""
    _storage_guard[:] = [guard]


def or_undone(call: Callable[[], T]) -> T:
    """Calls a function and returns its result; after an exception, undoes the function's variable assignments.

    Merges are such calls: user code can catch their exceptions, and must not find half of their assignments.
    """
    store = ambient().store
    if store is None or not store.captures:  # plain variables have no staged values in an eager run
        for guard in _storage_guard:
            call = functools.partial(guard, call)
    return call() if store is None else store.or_undone(call)
