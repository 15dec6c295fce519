"""Starts threads so that an exception in the starting thread cannot leave one half started; shows where one is."""

from __future__ import annotations

import _thread
import sys
import threading
import traceback
from queue import SimpleQueue
from types import FrameType
from typing import Final

_REFUSALS: Final = ("can't start new thread", "can't create new thread")


def start(*threads: threading.Thread) -> None:
    """Starts threads so that an exception that interrupts the call leaves no thread half-started.

    `Thread.start` is written in Python, so a signal handler or an injected exception can interrupt it. The new thread
    then dies before it calls its target (``del _limbo[self]`` fails), or waits forever for the lock of its start event,
    or the caller receives a `KeyError` in place of the exception. A helper thread, which receives no such exceptions,
    therefore calls `Thread.start`. One C call starts the helper.

    A caller that continues after an exception prevents the late beginning of a thread by a `Claim`.

    Raises:
        RuntimeError: The interpreter starts no more threads (see `is_refusal`).
    """
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()

    def begin() -> None:
        try:
            for thread in threads:
                thread.start()
        except BaseException as error:
            outcome.put(error)
        else:
            outcome.put(None)

    _thread.start_new_thread(begin, ())
    error = outcome.get()
    if error is not None:
        raise error


def is_refusal(error: BaseException) -> bool:
    """Returns whether an exception means that Python cannot start another thread.

    It shuts down, or there are too many threads.
    """
    return isinstance(error, RuntimeError) and str(error).startswith(_REFUSALS)


def place_of(thread: threading.Thread | None) -> str:
    """Returns the innermost stack frames of a thread as formatted text."""
    frame = _frame_of(thread)
    return "".join(traceback.format_stack(frame, limit=3)) if frame is not None else "  (it has ended)\n"


def runs_jax_or_debugger(thread: threading.Thread) -> bool:
    """Returns whether a thread is in a function of JAX, such as the compilation of a program, or in a debugger."""
    frame = _frame_of(thread)
    if frame is not None and _package_of(frame) in ("jax", "jaxlib"):
        return True
    while frame is not None and _package_of(frame) != "bdb":  # the module of the standard library under pdb and ipdb
        frame = frame.f_back
    return frame is not None


def _frame_of(thread: threading.Thread | None) -> FrameType | None:
    ident = None if thread is None else thread.ident
    return None if ident is None else sys._current_frames().get(ident)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


class Claim:
    """A flag that only one thread can claim: either a new thread, to start its work, or its creator, to cancel it."""

    def __init__(self) -> None:
        self._taken: dict[None, str] = {}

    def take(self, by: str) -> bool:
        """Claims the flag for `by` (a name), and returns whether `by` was the first to claim it."""
        return self._taken.setdefault(None, by) == by
