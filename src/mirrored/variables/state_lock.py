"""The lock under which one thread at a time replaces variable values, atomically.

A donating step passes the buffers of its variables to XLA, which deletes them when the step is dispatched. Until the
results are stored, the variables hold deleted buffers. Three kinds of code must never see this state:

- *Exception handlers* in the thread that runs the step (after Ctrl-C, a signal handler that raises, or an exception
  that another thread injects). CPython runs signal handlers and raises injected exceptions only in Python bytecode,
  never inside a C call that runs no Python code (details in `mirrored._jax.interrupts`). A donating step is therefore
  one C call: it exhausts an iterator whose steps, all written in C, dispatch the program and store each result
  (`compilation.dispatch.DonatingSteps`). All other code stores several values by `store_all`, also in one C call, and a
  single value by `VariableStorage.store`, whose attribute assignments call nothing, so no handler runs between them.
- *Other threads*. A writer holds `lock`. A reader of one value takes no lock:

  1. It registers. If it hands out the value, it marks the variable as shared; if it copies the value to the host, it
     adds the variable to `state.reading`.
  2. It checks that no step is in progress (`state.step`), and that no value has been replaced since it began
     (`state.version`). Otherwise it waits for `lock` and starts again.

  A step has the same order: it registers itself in `state.step`, then looks at the registrations of readers, and
  donates copies of those variables' buffers, so that readers keep the originals. Since both register before they check,
  at least one of the two sees the other (under the GIL).
- *Code that runs after an exception during the handling of another one*, for instance after a second Ctrl-C before the
  results are stored. `state.step` is still set, and the next access finishes the step from the results that it has
  recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from operator import setitem
from typing import Any, Final, Protocol, TypeVar

from mirrored._blocks import contextmanager
from mirrored._jax.interrupts import consume
from mirrored.errors import ContextError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.rollback import register_storage_rollback

T = TypeVar("T")

lock: Final = threading.RLock()
"""Held while values are replaced, and while several values are read that must be consistent."""

tracing: Final = threading.RLock()
"""Held while a function is traced, which may create variables. Lock order: this lock before `lock`."""

running: Final = threading.RLock()
"""The assignment lock (`assignment_lock`): held while values are read and then replaced, and during an eager run.

Lock order: this lock before the other two. In an eager run, the thread that called `run` holds it: the replicas read
variables one after another, and their assignments are stored at the end. No other thread may replace values in between,
whether by a run, a compiled step, an assignment, an optimizer or a restore.
"""
_NO_LOCK: Final = nullcontext()


class StepInProgress(Protocol):
    """Interface of a running step that has donated variable buffers and whose results are not stored yet."""

    def finish(self) -> None:
        """Completes a step that was interrupted before its results were stored.

        It is called with the state lock held, when a variable is next accessed. It stores the results if there are any.
        Without results, variables whose buffers were deleted are lost: reading them raises `LostStateError`
        (`VariableLike.lose`). All others keep their values.
        """
        ...


class _StateVersion:
    """Process-wide state of variable updates: the step in progress, the number of updates, and reads in progress.

    Attributes:
        step: The step in progress, whose variables must not be read; None between steps.
        version: The number of replacements so far.
        reading: The variables that are being copied to the host, by a unique key per copy.
        calls_back: The thread that runs a program with Python callbacks; 0 without such a program.
    """

    __slots__ = ("calls_back", "reading", "step", "version")

    def __init__(self) -> None:
        self.step: StepInProgress | None = None
        self.version = 0
        self.reading: dict[object, Any] = {}
        self.calls_back = 0


state: Final = _StateVersion()


class _LockThread(threading.local):
    """One thread's uncommitted assignments, and whether the thread is exempt from taking the lock `running`.

    Attributes:
        kept_back: The variables and new values that `together` stores at its end, each with whether it is shared.
        before: The variables assigned so far inside `with_storage_rollback`, by identity, each with the value that an
            exception restores, and the callback that would have supplied its value (see `creation.Awaiting`), or None.
        excused: Whether this thread must not take `running`: it is a replica thread of an eager run, which would wait
            for its own caller, the lock's holder; or it traces and holds `tracing`, which comes later in the lock
            order. (A trace accesses storage only to create variables.)
    """

    kept_back: list[tuple[Any, Any, bool]] | None = None
    before: dict[int, tuple[Any, Any, Any]] | None = None
    excused: bool = False


thread: Final = _LockThread()


def assignment_lock() -> AbstractContextManager[Any]:
    """Returns the lock that a thread holds to read and then assign variables without interference by other threads.

    This is the lock `running`. Entering it waits while another thread holds it, for instance during an eager run. In
    a thread that needs no lock (`excuse`, `exempt_from_lock`), the result is an empty context manager.

    Raises:
        ContextError: The call is in a callback of a compiled program, which would deadlock.
    """
    if thread.excused:
        return _NO_LOCK
    refuse_callbacks("replacing the value of a variable")
    return running


def excuse() -> None:
    """Exempts this replica thread from the assignment lock, which the thread that started the replicas holds."""
    thread.excused = True


def exempt_from_lock(trace: Callable[[], T]) -> T:
    """Calls `trace`, which traces a program, while this thread is exempt from the assignment lock."""
    before = thread.excused
    try:
        thread.excused = True
        return trace()
    finally:
        thread.excused = before


def finish_step() -> None:
    """Makes sure that no step is in progress before a variable is accessed.

    Waits until a step in another thread has stored its results. Completes a step that was interrupted.
    """
    refuse_callbacks("reading a variable")
    with lock:
        if state.step is not None:
            state.step.finish()


def refuse_callbacks(called: str) -> None:
    """Raises an error in a callback of a running program, where waiting for that program would deadlock.

    Raises:
        ContextError: The call is in a callback: its thread is one of XLA's, which Python did not start, or the thread
            that waits for the program.
    """
    if not state.calls_back:
        return
    here = threading.current_thread()
    if here.ident == state.calls_back or isinstance(here, threading._DummyThread):
        raise ContextError(
            called,
            found="the call is in a callback of a compiled function (jax.debug.callback, io_callback, pure_callback)",
            rule="a callback runs while the function runs, so waiting for the function would deadlock",
            remedy="do it after the function has returned, or pass the value to the callback as an argument",
        )


def attributes_of(variables: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns the `__dict__` of each variable.

    `storing` takes them. Items of a dict are read and replaced in a third of the time of attributes, which Python looks
    up in all base classes first.
    """
    return [variable.__dict__ for variable in variables]


def storing(attributes: Iterable[dict[str, Any]], values: Iterable[Any]) -> Iterable[Any]:
    """Returns an iterator that stores one variable's new value at each call of ``next``.

    Args:
        attributes: The attributes of each variable (`attributes_of`).
        values: The whole value of each variable, in the form in which it is stored. Surplus values are ignored.
    """
    return map(setitem, attributes, repeat("_array"), values)


_notes_pending: Final[list[Callable[[Sequence[Any], Sequence[Any]], object]]] = []


def on_assignment(note: Callable[[Sequence[Any], Sequence[Any]], object]) -> None:
    """Registers the function that is called with variables and their new values before eager code stores these values.

    `assign_all_stored` and `VariableStorage.store` call it. If it raises, nothing is stored. There is one such
    function: a second call replaces that of the first.
    """
    _notes_pending[:] = [note]


def note_pending(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Saves the old values of variables until the new values are computed, so that a failure can restore them.

    The caller holds the state lock.
    """
    for note in _notes_pending:
        note(variables, values)


def assign_all_stored(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Stores results of eager computations in several variables atomically, even while JAX is still computing them.

    JAX computes them asynchronously. If a computation fails, all of these variables get their old values back.
    """
    with lock:
        if state.step is not None:
            state.step.finish()
        note_pending(variables, values)
        store_all(variables, values)
        for variable in variables:
            variable.release()


def store_all(variables: Sequence[Any], values: Iterable[Any]) -> None:
    """Replaces the stored values of several variables atomically.

    One C call stores all values, so neither an exception nor another thread can interrupt it.

    Args:
        variables: The variables.
        values: The whole value of each variable, in the form in which it is stored. Surplus values are ignored.
    """
    assignments = storing(attributes_of(variables), values)
    with lock:
        if state.step is not None:
            state.step.finish()
        if thread.before is not None:
            note_former(variables)
        state.version += 1
        consume(assignments)


def note_former(variables: Iterable[Any]) -> None:
    """Saves the current values of variables, so that `with_storage_rollback` can restore them after an exception."""
    before = thread.before
    assert before is not None
    for variable in variables:
        if id(variable) not in before:
            variable.mark_shared()  # a step that donates the buffer must copy it first
            before[id(variable)] = variable, variable.stored_value(), variable.awaited()


def with_storage_rollback(call: Callable[[], T]) -> T:
    """Calls a function and returns its result; after an exception, restores the variables that it assigned.

    Reads inside `call` return the new values. (In a run of several replicas assignments are staged instead, and the
    variable store undoes them.) Calls can be nested.
    """
    outer = thread.before
    before: dict[int, tuple[Any, Any, Any]] = {}
    thread.before = before
    try:
        result = call()
    except BaseException:
        thread.before = None
        for variable, *_ in before.values():
            variable.mark_shared()
        with lock:
            store_all([variable for variable, *_ in before.values()], [value for _, value, _ in before.values()])
            for variable, _, ask in before.values():
                if ask is not None:
                    variable.withhold(ask)
        raise
    finally:
        thread.before = outer
    if outer is not None:
        outer.update({key: former for key, former in before.items() if key not in outer})
    return result


register_storage_rollback(with_storage_rollback)


def locked_with_rollback(call: Callable[[], T]) -> T:
    """Calls a function with the assignment lock held; after an exception, restores the assigned variables.

    Eager calls of compiled functions thus keep all values after an error, as compiled calls do, also those of variables
    that are assigned outside of `Strategy.run`.
    """
    with assignment_lock():
        return with_storage_rollback(call)


@contextmanager
def stored_immediately() -> Iterator[None]:
    """Stores the assignments of a ``with`` block at once; an outer `with_storage_rollback` does not undo them."""
    before, kept_back = thread.before, thread.kept_back
    thread.before = thread.kept_back = None
    try:
        yield
    finally:
        thread.before, thread.kept_back = before, kept_back


def together(assign: Callable[[], None]) -> None:
    """Calls a function, then stores all its variable assignments atomically; stores none if the function raises.

    Reads inside `assign` return the old values outside of runs and traces. In a run or trace, which has a variable
    store, they return the new values of the variables that the store stages.
    """
    if thread.kept_back is not None:
        assign()
        return
    kept: list[tuple[Any, Any, bool]] = []
    with assignment_lock():
        store = ambient().store
        try:  # before the first call: a KeyboardInterrupt may be raised at the entry of any
            thread.kept_back = kept
            if store is None:
                assign()
            else:
                store.with_staged_rollback(assign)
        finally:
            thread.kept_back = None
        if kept:
            assign_all_stored([variable for variable, _, _ in kept], [value for _, value, _ in kept])
            for variable, _, is_shared in kept:
                if is_shared:
                    variable.mark_shared()
