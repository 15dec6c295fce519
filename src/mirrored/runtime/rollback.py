"""Atomic assignments: rolls back the variable assignments of a run or `merge_call` that raises an exception.

A variable is assigned in one of two places: staged in the variable store of the context, or stored in its storage. Each
place rolls back its own assignments: `VariableStore.with_staged_rollback` and `state_lock.with_storage_rollback`.
`with_rollback` does both. `mirrored.variables` is in a higher layer, and registers the second one here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

from mirrored.runtime.ambient import ambient

T = TypeVar("T")


class Rollback(Protocol):
    """Protocol of wrappers that call a function and, after an exception, undo the function's variable assignments."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Calls `call` and returns its result; undoes the variable assignments of `call` if it raises an exception."""
        ...


_storage_rollback: list[Rollback] = []


def register_storage_rollback(rollback: Rollback) -> None:
    """Registers the function with which `with_rollback` restores variables' stored values after an exception."""
    _storage_rollback[:] = [rollback]


def with_rollback(call: Callable[[], T]) -> T:
    """Calls a function and returns its result; after an exception, undoes the function's variable assignments.

    Merges are such calls: user code can catch their exceptions, and must not find half of their assignments.
    """
    store = ambient().store
    if store is None or not store.captures:  # plain variables have no staged values in an eager run
        for rollback in _storage_rollback:
            call = functools.partial(rollback, call)
    return call() if store is None else store.with_staged_rollback(call)
