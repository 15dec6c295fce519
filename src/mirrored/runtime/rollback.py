"""Atomic assignments: rolls back the variable assignments of a run or `merge_call` that raises an exception.

A variable is assigned in one of two places: staged in the variable store of the context, or stored in its storage. Each
place rolls back its own assignments: `StagedRollback.with_staged_rollback` and `state_lock.with_storage_rollback`.
`with_rollback` does both. `mirrored.variables` is in a higher layer, and registers the second one here.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

from mirrored._jax import caches
from mirrored.runtime.ambient import ambient
from mirrored.runtime.staged_values import VariableLike

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


class StagedRollback(abc.ABC):
    """Base class of variable stores: restores staged values after an exception.

    Replicas in lock-step share a store, and a merge that they call can be in a call of each. So each replica restores
    only its own values, in whatever order their calls end. A call in cross-replica context restores all values.
    """

    # The open calls' functions that restore a variable, by local replica (None: cross-replica), then by variable id.
    _undo: dict[int | None, dict[int, Callable[[], None]]] | None = None

    def with_staged_rollback(self, call: Callable[[], T]) -> T:
        """Calls a function and returns its result; after an exception, drops the function's assignments.

        Calls can be nested.
        """
        undos = self._undo = {} if self._undo is None else self._undo
        replica = _local_replica()
        outer, undo = undos.get(replica), dict[int, Callable[[], None]]()
        undos[replica] = undo
        try:
            result = call()
        except BaseException:
            for restore in undo.values():
                restore()
            caches.renew()  # helpers that were traced in the call may have captured what is dropped
            raise
        finally:
            if outer is None:
                del undos[replica]
            else:
                undos[replica] = outer
        if outer is not None:
            outer.update({key: restore for key, restore in undo.items() if key not in outer})
        return result

    def note(self, variable: VariableLike) -> None:
        """Saves a variable's value before an assignment, so that `with_staged_rollback` can restore the value."""
        if not self._undo:
            return
        here = _local_replica()
        for replica, undo in self._undo.items():
            if (here is None or replica in (here, None)) and id(variable) not in undo:
                restore = self.restoring(variable) if replica is None else self.restoring_local(variable, replica)
                undo[id(variable)] = restore

    @abc.abstractmethod
    def restoring(self, variable: VariableLike) -> Callable[[], None]:
        """Returns a function that resets `variable` to its value in this variable store at the time of this call."""

    def restoring_local(self, variable: VariableLike, replica: int) -> Callable[[], None]:
        """Returns a function that undoes one replica's assignment to a variable.

        The function of this base class resets the values of all replicas.
        """
        return self.restoring(variable)


def _local_replica() -> int | None:
    replica = ambient().replica
    return None if replica is None else replica.local_index
