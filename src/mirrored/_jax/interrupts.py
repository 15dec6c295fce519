"""Protects calls of jitted functions from interrupts, and copies JAX's settings from one thread to another."""

from __future__ import annotations

import contextvars
import dataclasses
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import jax

from mirrored._jax.bit_identical import BitIdenticalJit, bit_identical_compilation
from mirrored._jax.private import config as _config
from mirrored._jax.private import mesh as _mesh
from mirrored._jax.private import source_info_util as _source_info
from mirrored._threads import Claim, is_refusal, start

# Dispatching a jitted function so that its results survive an exception in the calling thread.
#
# CPython runs signal handlers and raises injected exceptions only in Python bytecode: after a call, at the start of a
# Python function, and where a loop jumps back. It never does so inside a C call that runs no Python code, unless the C
# function itself checks for signals while it waits, as `Lock.acquire` does. An exception that arrives between the
# dispatch of a donating program, which deletes its arguments, and the instruction that stores its results would lose
# both. Two mechanisms close that gap:
#
# - On JAX's fast path the call is pure C++. A C iterator (`consume`, or `deque` itself) runs it and stores its results
#   within one C call that runs no Python code.
# - On a cache miss (the first call, another sharding, another setting) JAX traces, compiles and executes in Python.
#   That part runs in a separate thread, which receives neither signals nor exceptions that are injected into the
#   caller. It evaluates the jaxpr of the user's function, which was traced before, in the caller. The caller waits for
#   it, and defers an exception that interrupts the wait. If Python cannot start another thread, that part runs in the
#   caller, unprotected.
#
# Supports JAX 0.10 to 0.12: `PjitFunction.__getstate__` and `__setstate__`, with the entry ``cache_miss``; the
# attribute `_fun`, which `jax.jit` sets.


def consume(iterator: Iterable[Any]) -> None:
    """Runs an iterator to its end in one C call, without a Python loop that a signal could interrupt."""
    deque(iterator, 0)


class DispatchJob:
    """A function call in a separate thread, so that Ctrl-C in the calling thread cannot abort the call.

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
        self._claim = Claim()  # taken by its thread when it begins, or by `wait_or_cancel` to cancel the call
        self._is_done = False
        # A lock is written in C. `threading.Event` is written in Python, so an exception that interrupts `wait` can
        # leave its lock held, which `set` needs.
        self._running = threading.Lock()
        self._running.acquire()
        self._state = capture_thread_settings()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._main,), name="mirrored-dispatch", daemon=True)

    def run(self) -> None:
        """Starts the call in its thread and waits until it is done, even if exceptions interrupt the wait."""
        try:
            start(self._thread)
        except BaseException as error:
            if is_refusal(error):
                self._main()
            else:
                self.interruption = error
        while not self._is_done:
            try:
                self.wait_or_cancel()
            except BaseException as error:
                self.interruption = self.interruption or error

    def wait_or_cancel(self) -> None:
        """Waits until the call is done; if an interrupt arrived before the call began, cancels the call instead.

        Also cancels a call whose thread was not started.
        """
        may_cancel = self.interruption is not None or self._thread.ident is None
        if may_cancel and self._claim.take("waiting"):
            self.error = self.interruption or RuntimeError("the call was cancelled before it began")
            self._is_done = True
        while not self._is_done:
            with self._running:  # held since the constructor; the thread releases it when the call is done
                pass

    def _main(self) -> None:
        if not self._claim.take("running"):
            return
        function, args, kwargs = self._call
        try:
            adopt_thread_settings(self._state)
            self.result = function(*args, **kwargs)
        except BaseException as error:
            self.error = error
        finally:
            # The caller goes on before this thread ends, and must be able to free the function and its variables.
            del function, args, kwargs
            self._call = self._state = None  # type: ignore[assignment]
            self._is_done = True
            self._running.release()


class Dispatch:
    """A jitted function whose cache misses run in a separate thread, where no signal interrupts them.

    A cache miss is tracing, compilation and the execution of that call. Later calls on the fast path run in the caller.

    Args:
        jitted: The result of `jax.jit`, for a function that returns a list.
        handler: Creates the handler of cache misses from the jitted function's own.

    Attributes:
        function: The jitted function to call.
    """

    def __init__(self, jitted: Any, handler: Callable[[Callable[..., Any]], CacheMisses] | None = None) -> None:
        state = dict(jitted.__getstate__())
        self._misses = state["cache_miss"] = (handler or CacheMisses)(state["cache_miss"])
        kind: Any = type(jitted)  # a C++ class without a public name
        self.function: Any = kind.__new__(kind)
        self.function.__setstate__(state)
        # The state lacks what JAX calls again, under `jax_debug_nans`, to name the operation that has computed a NaN.
        self.function._fun = jitted._fun

    @property
    def job(self) -> DispatchJob | None:
        """The `DispatchJob` of the latest cache miss; set it to None before a call to see whether the call misses."""
        return self._misses.job

    @job.setter
    def job(self, job: DispatchJob | None) -> None:
        self._misses.job = job

    def forget(self) -> None:
        """Clears the jitted function's fast-path cache after an error, so that JAX uses the fast path again."""
        self.function._clear_cache()


class CacheMisses:
    """Cache-miss handler of a jitted function, which traces, compiles and executes the call in another thread.

    The jitted function holds it. It is an object of its own, without a reference to the `Dispatch`, so that a compiled
    program and its variables are freed with their last user; a reference cycle would wait for Python's collector.
    """

    def __init__(
        self, missed: Callable[..., Any], compiling: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        self.job: DispatchJob | None = None
        self.compiling = compiling
        self._missed = missed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        job = self.job = DispatchJob(self._compiled, args, kwargs)
        job.run()
        if job.error is not None:
            raise job.error
        return job.result

    def _compiled(self, *args: Any, **kwargs: Any) -> Any:
        with self.compiling():
            return self._missed(*args, **kwargs)


def dispatch_of(jitted: BitIdenticalJit | jax.stages.Wrapped) -> Dispatch:
    """Wraps a jitted function as a `Dispatch`, so that Ctrl-C during the first call does not lose its outputs."""
    if isinstance(jitted, BitIdenticalJit):
        # The partitioner setting matters only on a cache miss, which compiles; JAX's fast path does not check it.
        return Dispatch(jitted.jitted, lambda missed: CacheMisses(missed, bit_identical_compilation))
    return Dispatch(jitted)


# Copies all of JAX's thread-local state to another thread.
#
# Supports JAX 0.10 to 0.12. JAX keeps the current trace, the axis environment, the mesh, the default device, x64,
# matmul precision and a hundred other settings in `config_ext.Config` objects with one value per thread; a few older
# ones are plain `threading.local`s. A replica thread that lacked one of them would compute different values than other
# replicas.

_ext = _config.config_ext


def _states_in(module: ModuleType) -> Iterator[Any]:
    for value in list(vars(module).values()):
        if isinstance(value, _ext.Config):
            yield value
        elif isinstance(value, _config.UserConfig):
            yield value._obj


class _States:
    """Cache of JAX's thread-local state objects, which is refreshed after further modules have been imported."""

    def __init__(self) -> None:
        self._modules_seen = 0
        self._states: tuple[Any, ...] = ()

    def all(self) -> tuple[Any, ...]:
        if len(sys.modules) != self._modules_seen:
            found: dict[int, Any] = {}
            for name, module in list(sys.modules.items()):
                if module is not None and name.startswith(("jax", "mirrored")):
                    found.update((id(state), state) for state in _states_in(module))
            self._states = tuple(found.values())
            self._modules_seen = len(sys.modules)
        return self._states


_states = _States()


@dataclasses.dataclass(frozen=True)
class ThreadSettings:
    """A snapshot of one thread's JAX settings and context, to be applied in another thread."""

    values: tuple[tuple[Any, Any], ...]
    legacy_mesh: tuple[Any, Any]
    source_context: Any


def capture_thread_settings() -> ThreadSettings:
    """Returns a snapshot of this thread's JAX settings and context, for `adopt_thread_settings`."""
    values = tuple((state, local) for state in _states.all() if (local := state.get_local()) is not _ext.unset)
    resources = _mesh.thread_resources
    return ThreadSettings(values, (list(resources.stack), resources.env), _source_info._source_info_context.context)


def adopt_thread_settings(state: ThreadSettings) -> None:
    """Sets the JAX settings and context of this new thread to the values that `capture_thread_settings` returned."""
    for holder, value in state.values:
        holder.set_local(value)
    resources = _mesh.thread_resources
    resources.stack[:], resources.env = state.legacy_mesh
    _source_info._source_info_context.context = state.source_context
