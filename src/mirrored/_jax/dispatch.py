"""Protects calls of jitted functions from interrupts, copies JAX's thread state, and disables some XLA passes."""

from __future__ import annotations

import contextvars
import dataclasses
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, Final

import jax

from mirrored._jax.division import connect_division
from mirrored._jax.fused_attention import connect_fused_attention, deterministic_attention
from mirrored._jax.private import config as _config
from mirrored._jax.private import lib_utils as _logging
from mirrored._jax.private import mesh as _mesh
from mirrored._jax.private import source_info_util as _source_info
from mirrored._jax.products import connect_products
from mirrored._threads import Claim, is_refusal, start

# Dispatching a jitted function so that its results survive an exception in the calling thread.
#
# CPython runs signal handlers and raises injected exceptions only in Python bytecode: after a call, at the start of a
# Python function, and where a loop jumps back. It never does so inside a C call that runs no Python code, unless the C
# function itself checks for signals while it waits, as `Lock.acquire` does. An exception that arrives between the
# dispatch of a donating program, which deletes its arguments, and the instruction that stores its results would lose
# both. Two mechanisms close that gap:
#
# - On JAX's fast path the call is pure C++. `consume` runs it and stores its results from within one C call that runs
#   no Python code.
# - On a cache miss (the first call, another sharding, another setting) JAX traces, compiles and executes in Python.
#   That part runs in a separate thread, which receives neither signals nor exceptions that are injected into the
#   caller. The caller waits for it, and defers an exception that interrupts the wait. If Python cannot start another
#   thread, that part runs in the caller, unprotected.
#
# Supports JAX 0.10 to 0.12: `PjitFunction.__getstate__` and `__setstate__`, with the entry ``cache_miss``.


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
        self._claim = Claim()  # taken by its thread when it begins, or by `settle` to cancel the call
        self._is_done = False
        # A lock is written in C. `threading.Event` is written in Python, so an exception that interrupts `wait` can
        # leave its lock held, which `set` needs.
        self._running = threading.Lock()
        self._running.acquire()
        self._state = capture_thread_state()
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
                self.settle()
            except BaseException as error:
                self.interruption = self.interruption or error

    def settle(self) -> None:
        """Waits until the call has ended, or cancels a call that has not begun if the wait was interrupted."""
        may_cancel = self.interruption is not None or self._thread.ident is None
        if may_cancel and self._claim.take("waiting"):
            self.error = self.interruption or RuntimeError("the call was cancelled before it began")
            self._is_done = True
        while not self._is_done:
            with self._running:  # the thread holds it until the call is done
                pass

    def _main(self) -> None:
        if not self._claim.take("running"):
            return
        function, args, kwargs = self._call
        try:
            adopt_thread_state(self._state)
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
    """Traces, compiles and executes a jitted function in another thread when its fast path has no entry for a call.

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
    """JAX's thread-local state objects. They are searched for again whenever more modules have been imported."""

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
class ThreadState:
    """A snapshot of one thread's JAX settings and context, to be applied in another thread."""

    values: tuple[tuple[Any, Any], ...]
    legacy_mesh: tuple[Any, Any]
    source_context: Any


def capture_thread_state() -> ThreadState:
    """Returns a snapshot of this thread's JAX settings and context, for `adopt_thread_state`."""
    values = tuple((state, local) for state in _states.all() if (local := state.get_local()) is not _ext.unset)
    resources = _mesh.thread_resources
    return ThreadState(values, (list(resources.stack), resources.env), _source_info._source_info_context.context)


def adopt_thread_state(state: ThreadState) -> None:
    """Sets the JAX settings and context of this new thread to the values that `capture_thread_state` returned."""
    for holder, value in state.values:
        holder.set_local(value)
    resources = _mesh.thread_resources
    resources.stack[:], resources.env = state.legacy_mesh
    _source_info._source_info_context.context = state.source_context


# Compiles programs as written: XLA does not merge equal computations, so results are bit-identical.
#
# The number of users of a value determines which compiler rewrites apply to it: `a / broadcast(b)` becomes a product
# with 1 / b if the broadcast is the only user of b (`division` gives each division a divisor of its own). If equal
# computations of the virtual replicas of one device are merged, bits therefore depend on the number of replicas per
# device. Two parts of XLA merge them: the pass `cse`, and the round trip through Shardy, which merges constants and
# broadcast scalars and runs only for several devices *(seen in the passes' dumps: 64 broadcasts before Shardy, 50
# after)*. Such programs are therefore partitioned by GSPMD, and `cse` is disabled.
#
# On CPUs, LLVM would contract a product and a sum that XLA has put into one kernel. `products` excludes it.
#
# On CPUs, the pass `small-while-loop-hoisting` turns a small loop without collectives into one function, in which LLVM
# contracts products and sums across operations. The loop over the steps of one call has collectives only on several
# devices, so its bits would depend on the device assignment. This pass is disabled as well.
#
# XLA computes 16-bit floats in float32, and by default (`xla_allow_excess_precision`) omits the rounding between two
# operations that it fuses. Such programs round after every operation.
#
# On GPUs, the pass `dot-merger` merges the matrix products of a device's replicas that share an operand, such as a
# weight, into one product of another shape, for which XLA selects another kernel. It is disabled. Autotuning selects
# kernels by measured times, which differ between processes, so it is off as well, unless `XLA_FLAGS` sets its level.
# Some kernels, such as scatter-adds with atomic operations, are not reproducible; `xla_gpu_deterministic_ops` excludes
# them. With this option XLA fails for several fused attentions of cuDNN; `fused_attention` prevents it. Fusion remains:
# a reduction's order of sums depends on the operations that are fused into it, and these are the same for each replica,
# because the boundaries in `mirrored.collectives.summation` keep out whatever replicas share.
#
# Supports JAX 0.10 to 0.12, where GSPMD is deprecated. XLA logs a warning for every such program, which is silenced
# around the call. A JAX version without GSPMD needs another method; the probe test will fail there.

connect_division()
connect_products()
connect_fused_attention()

_COMPILER_OPTIONS: Final = "compiler_options_kvs"
_AUTOTUNING: Final = "xla_gpu_autotune_level"
_AS_WRITTEN: Final[Mapping[str, str | bool | int]] = {
    "xla_disable_hlo_passes": "cse,small-while-loop-hoisting,dot-merger",
    "xla_allow_excess_precision": False,
    "xla_gpu_deterministic_ops": True,
    _AUTOTUNING: 0,
}
_LEVELS = {"INFO": 0, "DEBUG": 0, "WARNING": 1, "ERROR": 2, "CRITICAL": 3}
_ONLY_ERRORS = 2


def _as_written() -> dict[str, str | bool | int]:
    left = {_AUTOTUNING} if _AUTOTUNING in os.environ.get("XLA_FLAGS", "") else set()
    return {name: value for name, value in _AS_WRITTEN.items() if name not in left}


class AsWritten:
    """A `jax.jit` function compiled without the XLA passes that make results depend on the number of devices.

    Args:
        function: The function. As with `jax.jit`, it is traced at the first call.
        options: Options of `jax.jit`.

    Attributes:
        jitted: The result of `jax.jit`.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.jitted = jax.jit(function, compiler_options=_as_written(), **options)

    def __call__(self, *args: Any) -> Any:
        """Runs the function. Compiles it first if necessary."""
        with _partitioned_unmerged():
            return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        """Lowers the function to StableHLO for the given arguments, like `lower` of a `jax.jit` function."""
        with _partitioned_unmerged():
            return _Lowered(self.jitted.lower(*args))


class _Lowered:
    """A lowering whose `compile` uses the same compiler settings as the call. Other attributes are forwarded."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._lowered = lowered

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        with _partitioned_unmerged():
            return self._lowered.compile(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


def without_compiler_options(params: dict[str, Any]) -> dict[str, Any]:
    """Returns a `jit` equation's parameters without compiler options, which JAX refuses in a nested `jit`."""
    return {**params, _COMPILER_OPTIONS: ()} if params.get(_COMPILER_OPTIONS) else params


def jit(function: Callable[..., Any], *, as_written: bool, **options: Any) -> Any:
    """Returns `jax.jit(function)`; if `as_written`, compiled so that results do not depend on the number of devices."""
    return AsWritten(function, **options) if as_written else jax.jit(function, **options)


def dispatch_of(jitted: AsWritten | jax.stages.Wrapped) -> Dispatch:
    """Wraps a jitted function as a `Dispatch`, so that Ctrl-C during the first call does not lose its outputs."""
    if isinstance(jitted, AsWritten):
        # The partitioner setting matters only on a cache miss, which compiles; JAX's fast path does not check it.
        return Dispatch(jitted.jitted, lambda missed: CacheMisses(missed, _partitioned_unmerged))
    return Dispatch(jitted)


@contextmanager
def _partitioned_unmerged() -> Iterator[None]:
    _logging.absl_set_min_log_level(max(_ONLY_ERRORS, _level()))
    try:
        with _config.use_shardy_partitioner(False), deterministic_attention():
            yield
    finally:
        _logging.absl_set_min_log_level(_level())


def _level() -> int:
    """Returns XLA's minimum log level, from JAX's configuration or else from the environment."""
    level = getattr(jax.config, "jax_logging_level", None)
    if level in _LEVELS:
        return _LEVELS[level]
    value = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    return int(value) if value.isdigit() else 1
