"""Dispatching a jitted function so that its results survive an exception in the calling thread.

Python checks for signals and injected exceptions after each call. An exception that arrives between the dispatch of a
donating program, which deletes its arguments, and the instruction that stores its results would lose both. Two
mechanisms close that gap:

- On JAX's fast path the call is pure C++. `consume` runs it and stores its results from within one C call, where Python
  makes no such check.
- On a cache miss (the first call, another sharding, another setting) JAX traces, compiles and executes in Python. That
  part runs in a separate thread, which receives neither signals nor exceptions that are injected into the caller. The
  caller waits for it, and defers an exception that interrupts the wait.

Supports JAX 0.10 to 0.12: `PjitFunction.__getstate__` and `__setstate__`, with the entry ``cache_miss``.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mirrored._jax.thread_state import adopt_thread_state, capture_thread_state


def consume(iterator: Iterable[Any]) -> None:
    """Runs an iterator to its end in one C call."""
    deque(iterator, 0)


class DispatchJob:
    """A call that runs in a separate thread.

    Attributes:
        result: The result of the call, once it is done.
        error: The exception that it raised.
        interruption: The first exception that interrupted the wait for it.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.interruption: BaseException | None = None
        self._call: Any = (function, args, kwargs)
        self._claimed = threading.Lock()  # acquired by its thread when it begins, or by `settle` to cancel the call
        self._done = threading.Event()
        self._state = capture_thread_state()
        run = contextvars.copy_context().run
        # An exception inside `Thread.start` can leave the lock of the new thread's start event held, and the new thread
        # waiting for it forever. A daemon does not keep the process from ending.
        self._thread = threading.Thread(target=run, args=(self._main,), name="mirrored-dispatch", daemon=True)

    def run(self) -> None:
        """Starts the call and waits until it is done, even if exceptions interrupt the wait."""
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter shuts down and starts no more threads
            self._main()
        except BaseException as error:
            self.interruption = error
        while not self._done.is_set():
            try:
                self.settle()
            except BaseException as error:
                self.interruption = self.interruption or error

    def settle(self) -> None:
        """Waits until the call is done. Cancels a call whose thread was never started."""
        if self._thread.ident is None and self._claimed.acquire(blocking=False):
            self.error = self.interruption
            self._done.set()
        self._done.wait()

    def _main(self) -> None:
        if not self._claimed.acquire(blocking=False):
            return
        function, args, kwargs = self._call
        try:
            adopt_thread_state(self._state)
            self.result = function(*args, **kwargs)
        except BaseException as error:
            self.error = error
        finally:
            self._call = self._state = None  # type: ignore[assignment]
            self._done.set()


class Dispatch:
    """A jitted function whose cache misses run in a separate thread.

    Args:
        jitted: The result of `jax.jit`, for a function that returns a list.
        compiling: Returns the context manager in which the function is traced and compiled.

    Attributes:
        job: The cache miss of the newest call; None if it had none.
        function: The jitted function to call.
    """

    def __init__(self, jitted: Any, compiling: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.job: DispatchJob | None = None
        self._compiling = compiling
        state = dict(jitted.__getstate__())
        self._missed = state["cache_miss"]
        state["cache_miss"] = self._miss
        kind: Any = type(jitted)  # a C++ class without a public name
        self.function: Any = kind.__new__(kind)
        self.function.__setstate__(state)

    def forget(self) -> None:
        """Re-enables JAX's fast path, which JAX disables permanently when a cache miss raises."""
        self.function._clear_cache()

    def _miss(self, *args: Any, **kwargs: Any) -> Any:
        job = self.job = DispatchJob(self._compiled, args, kwargs)
        job.run()
        if job.error is not None:
            raise job.error
        return job.result

    def _compiled(self, *args: Any, **kwargs: Any) -> Any:
        with self._compiling():
            return self._missed(*args, **kwargs)
