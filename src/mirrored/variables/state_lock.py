"""The state lock: one thread at a time replaces the values of variables, in one piece.

A donating step hands the buffers of its variables to XLA, which deletes them when it is dispatched. Between that moment
and the one in which the results are stored the variables hold nothing. Three parties must not notice:

- *Exceptions* in the thread that steps (Ctrl-C, handlers that raise, exceptions injected by another thread). Python
  delivers them between bytecodes, so values are stored by `store_all`: one C call.
- *Other threads*. What replaces values holds `lock`. Reading takes no lock: a reader first registers (the variable's
  mark for a value that is handed out, `state.reading` for a copy to the host), then makes sure that no step is in
  progress and that none has ended meanwhile (`state.version`). A step announces itself first (`state.step`), then looks
  for registered readers, whose buffers it copies. Under the GIL at least one of the two sees the other.
- *Whoever comes after an exception in the narrow remainder* (an exception while another one is being handled):
  `state.step` is still set, and the next access finishes the step from what it has recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from typing import Any, Final, Protocol, TypeVar

from mirrored._jax.dispatch import consume
from mirrored.errors import ContextError

T = TypeVar("T")

lock: Final = threading.RLock()
"""Held while values are replaced, and while several are read that must belong together."""

tracing: Final = threading.RLock()
"""Held while a function is traced, which may create variables. Whoever needs both locks takes this one first."""

running: Final = threading.RLock()
"""Held during an eager run, by the thread that called `run`. It is taken before the other two, by `turn`.

The replicas of a run read variables one after another, and their assignments are stored at the end. Nothing in another
thread must replace values in between: no other run, compiled step, assignment, optimizer or restore.
"""
_NO_TURN: Final = nullcontext()


class StepInProgress(Protocol):
    """A step in progress."""

    def finish(self) -> None:
        """Stores its results, or finds that it has not begun. Called with the lock held, by whoever comes first."""
        ...


class _StateVersion:
    """The state of all variables of this process.

    Attributes:
        step: The step in progress whose variables must not be read.
        version: Counts replacements.
        reading: The variables that are being copied to the host, by a key of each copy's own.
        calls_back: The thread that runs a program which calls back into Python, 0 if none does.
    """

    __slots__ = ("calls_back", "reading", "step", "version")

    def __init__(self) -> None:
        self.step: StepInProgress | None = None
        self.version = 0
        self.reading: dict[object, Any] = {}
        self.calls_back = 0


state: Final = _StateVersion()


class _LockThread(threading.local):
    """What belongs to this thread.

    Attributes:
        kept_back: What `together` keeps back: variables with their new values.
        before: What `or_undone` restores after an exception: the variables assigned so far, by identity, each with its
            former value.
        excused: Whether what this thread does is a part of what has its turn already: it is a replica's thread of an
            eager run, or it traces. A trace holds `tracing`, and reaches storage only to make variables.
    """

    kept_back: list[tuple[Any, Any]] | None = None
    before: dict[int, tuple[Any, Any]] | None = None
    excused: bool = False


thread: Final = _LockThread()


def turn() -> AbstractContextManager[Any]:
    """What to hold while values are read and replaced by others that depend on them.

    Threads that do so take turns. A thread waits here for an eager run of another one.

    Raises:
        ContextError: In a callback of a compiled program, which has its turn.
    """
    if thread.excused:
        return _NO_TURN
    refuse_callbacks("replacing the value of a variable")
    return running


def excuse() -> None:
    """Lets this thread, one of a replica, take no turns: the thread that runs the replicas has it."""
    thread.excused = True


def without_turns(trace: Callable[[], T]) -> T:
    """The result of `trace`, which traces a function: this thread takes no turns meanwhile."""
    before = thread.excused
    try:
        thread.excused = True
        return trace()
    finally:
        thread.excused = before


def settle() -> None:
    """Waits for the step in progress in another thread; finishes one that an exception cut short."""
    refuse_callbacks("reading a variable")
    with lock:
        if state.step is not None:
            state.step.finish()


def refuse_callbacks(called: str) -> None:
    """Refuses what waits for the running program in a callback of that program: it would deadlock.

    Raises:
        ContextError: This thread is not Python's own, or waits for the program: so it runs a callback.
    """
    if not state.calls_back:
        return
    here = threading.current_thread()
    if here.ident == state.calls_back or isinstance(here, threading._DummyThread):
        raise ContextError(
            called,
            found="the call is in a callback of a compiled function (jax.debug.callback, io_callback, pure_callback)",
            rule="a callback runs while the function does, and must not wait for it",
            remedy="do it after the function has returned, or pass the callback what it needs as an argument",
        )


def storing(variables: Sequence[Any], values: Iterable[Any]) -> Iterable[Any]:
    """An iterator that stores `values` as it is consumed."""
    return map(object.__setattr__, variables, repeat("_array"), values)


def store_all(variables: Sequence[Any], values: Iterable[Any]) -> None:
    """Replaces the values of several variables: all of them, or none.

    No exception and no other thread comes in between: it is one C call.

    Args:
        variables: Which.
        values: The whole value of each, in the form in which it is stored; more of them are ignored.
    """
    assignments = storing(variables, values)
    with lock:
        if state.step is not None:
            state.step.finish()
        if thread.before is not None:
            note_former(variables)
        state.version += 1
        consume(assignments)


def note_former(variables: Iterable[Any]) -> None:
    """Keeps the values of variables that are about to be assigned within `or_undone`. Called with the lock held."""
    before = thread.before
    assert before is not None
    for variable in variables:
        if id(variable) not in before:
            variable.mark_shared()  # a step that donates the value copies it first
            before[id(variable)] = variable, variable.initial()


def or_undone(call: Callable[[], Any]) -> Any:
    """The result of `call`; an exception in it leaves all variables that this thread has assigned as they were.

    What `call` reads are the new values, as anywhere outside of runs of several replicas.
    """
    if thread.before is not None:
        return call()
    before: dict[int, tuple[Any, Any]] = {}
    thread.before = before
    try:
        return call()
    except BaseException:
        thread.before = None
        variables, values = [variable for variable, _ in before.values()], [value for _, value in before.values()]
        for variable in variables:
            variable.mark_shared()
        store_all(variables, values)
        raise
    finally:
        thread.before = None


def together(assign: Callable[[], None]) -> None:
    """Calls `assign`; what it assigns in storage is stored when it has returned, all at once, or not at all.

    What `assign` reads in the meantime are the old values.
    """
    if thread.kept_back is not None:
        assign()
        return
    kept: list[tuple[Any, Any]] = []
    with turn():
        thread.kept_back = kept
        try:
            assign()
        finally:
            thread.kept_back = None
        store_all([variable for variable, _ in kept], [value for _, value in kept])
