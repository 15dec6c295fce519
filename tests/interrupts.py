"""Helpers for tests that interrupt a call at a chosen place, as Ctrl-C and signals do at any moment."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import mirrored

SOURCE = (str(Path(mirrored.__file__).parent), contextlib.__file__)


class TooSlowError(RuntimeError):
    """What signal handlers raise; a `RuntimeError`, because Python raises those for threads that do not start."""


def acted_at(
    event_number: int, action: Callable[[], object], call: Callable[[], Any], files: Collection[str] | None = None
) -> tuple[bool, Any]:
    """Makes a call, with an action at the n-th line or return of the Python code that it runs.

    CPython runs signal handlers also after the C function that a line calls, and before the line returns: hence the
    returns.

    Args:
        event_number: The number of the line or return, from 0.
        action: What happens there, once.
        call: The call.
        files: The source files whose lines and returns count; all by default, also those of the standard library.

    Returns:
        Whether the action happened, and the call's result.
    """
    left = event_number

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if files is not None and frame.f_code.co_filename not in files:
            return None
        if event in ("line", "return"):
            left -= 1
            if left < 0:
                sys.settrace(None)
                action()
        return trace

    before = sys.gettrace()
    gc.disable()  # Python ignores exceptions in `__del__`, which may be that of an object of an earlier test
    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(before)
        gc.enable()
    return left < 0, result


def interrupted_at(
    event_number: int, call: Callable[[], Any], files: Collection[str] | None = None
) -> tuple[bool, Any]:
    """Makes a call, with a KeyboardInterrupt at its n-th line or return.

    Returns:
        Whether the interrupt came, and the call's result, None if it was interrupted.
    """

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    try:
        return acted_at(event_number, interrupt, call, files)
    except KeyboardInterrupt:
        return True, None


def interrupted_in(place: int, call: Callable[[], object]) -> BaseException | None:
    """Makes a call with an interrupt where CPython may deliver one in mirrored or `contextlib`.

    These places are the beginning of a function and the instruction after a call of a function that is written in C.
    Before the first instruction of `__exit__`, nothing can handle it. Where a generator goes on, it is in the
    generator's ``try`` block, but CPython 3.11 does not treat an exception from here like that.

    Args:
        place: The number of the place, from 0.
        call: The call.

    Returns:
        The interrupt; None after the last place.
    """
    left = [place]

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE) or event not in ("call", "c_return"):
            return
        goes_on = bool(code.co_flags & inspect.CO_GENERATOR) and frame.f_lineno != code.co_firstlineno
        if event == "c_return" or not (code.co_name == "__exit__" or goes_on):
            left[0] -= 1
            if left[0] < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt(f"{code.co_filename}:{frame.f_lineno} {event}")

    gc.disable()  # Python ignores exceptions in `__del__`
    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.setprofile(None)
        gc.enable()
    return None


def raised_at(place: int, call: Callable[[], Any]) -> bool:
    """Runs `call` and raises at a call or return in it, by number. Returns whether there is one of that number."""
    events = [0]

    def profile(frame: FrameType, kind: str, argument: Any) -> None:
        name = getattr(argument, "__name__", "")
        # Python delivers nothing between the `__enter__` of a lock and the block, nor between `__exit__` and its end.
        if kind == "c_call" or name in ("__enter__", "__exit__", "setprofile"):
            return
        if "weakref" in frame.f_code.co_filename:  # Python ignores exceptions in the callbacks of weak references
            return
        events[0] += 1
        if events[0] > place:
            sys.setprofile(None)
            raise TooSlowError("too slow")

    gc.disable()  # Python ignores exceptions in callbacks of the garbage collector, and JAX has one
    try:
        sys.setprofile(profile)
        call()
    except TooSlowError:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    assert events[0] <= place, "the exception does not reach the caller"
    return False


def each_place(call: Callable[[], Any]) -> Iterator[None]:
    """Runs `call`, raising at its first call or return, then at the second, and so on. Yields after each."""
    place = 0
    while raised_at(place, call):
        yield
        place += 1
    assert place > 5
