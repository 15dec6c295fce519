"""Context managers whose entry and exit can be interrupted, as by Ctrl-C, without leaving changed state behind.

Python delivers a signal where a function that is written in Python begins, and after the call of one that is written in
C. The context managers of `contextlib.contextmanager` begin a block by calling `next`: an interrupt after this call
leaves the generator at its ``yield``, and the state changed until the generator is collected. A notebook keeps the
traceback, and with it the generator.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import starmap
from types import TracebackType
from typing import Final, Generic, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class _Block(contextlib._GeneratorContextManager[T]):
    def __enter__(self) -> T:
        try:
            return super().__enter__()
        except BaseException:
            self.gen.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        try:
            return super().__exit__(kind, error, where)
        except BaseException:
            self.gen.close()  # no effect, unless an interrupt came before the generator went on
            raise


_EXIT_OF_BLOCK: Final = _Block.__exit__.__code__


def contextmanager(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Decorator like `contextlib.contextmanager`, whose blocks end if an interrupt comes at their entry or exit.

    The generator function must change state inside its ``try`` block, and must begin ``finally`` with the assignment
    that restores it: an interrupt where a Python function begins would skip a restoration inside that function.
    """
    begin = cast(Callable[..., Generator[T, None, None]], function)

    @functools.wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Block(begin, args, kwargs)

    return block


def end_blocks(error: BaseException) -> None:
    """Ends the blocks of `contextmanager` whose exit an exception has interrupted, from the innermost to the outermost.

    A signal handler can raise an exception where `__exit__` begins, before its ``try`` statement. Then the block has
    not ended, and the traceback refers to it. When the exception is dropped, Python finalizes the generator. Its
    ``finally`` would then overwrite whatever the state is at that moment. A caller that restores state after an
    exception therefore calls this function first.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        frames, trace = [], at.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        for frame in reversed(frames):
            if frame.f_code is _EXIT_OF_BLOCK:
                frame.f_locals["self"].gen.close()  # no effect if the generator has ended
        at = at.__context__


class setting(Generic[T]):
    """Context manager that sets a context variable, which has a value or a default, during a ``with`` block."""

    __slots__ = ("_before", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._before = self._variable.get()
        try:
            self._variable.set(self._value)
        except BaseException:
            self._variable.set(self._before)
            raise

    def __exit__(self, *_: object) -> None:
        self._variable.set(self._before)


class Lock(Protocol):
    """Protocol of locks: those of `threading`, which are written in C."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Acquires the lock, or returns False after `timeout` seconds."""
        ...

    def release(self) -> None:
        """Releases the lock."""
        ...


class acquiring:
    """Context manager that acquires a lock, waits no longer than `timeout` seconds, and yields whether it succeeded."""

    __slots__ = ("_lock", "_results", "_timeout")

    def __init__(self, lock: Lock, timeout: float) -> None:
        self._lock, self._timeout = lock, timeout

    def __enter__(self) -> bool:
        self._results: list[bool] = []
        try:
            # C code acquires the lock and stores the result, so that an interrupt comes before both or after both.
            self._results.extend(starmap(self._lock.acquire, ((True, self._timeout),)))
        except BaseException:
            self.__exit__()
            raise
        return self._results[0]

    def __exit__(self, *_: object) -> None:
        if self._results and self._results[0]:
            self._lock.release()
