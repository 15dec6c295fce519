"""Probes of what `dispatch` relies on in JAX: the cache miss of a jitted function, and the state of a thread."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax import caches
from mirrored._jax.interrupts import (
    Dispatch,
    DispatchJob,
    adopt_thread_settings,
    capture_thread_settings,
    consume,
)
from mirrored._jax.traces import trace_settings

# The cache miss of a jitted function


def misses(dispatch: Dispatch, *args: object) -> tuple[object, bool]:
    """The result of a call, and whether the call missed the cache."""
    dispatch.job = None
    (result,) = dispatch.function(*args)
    return result, dispatch.job is not None


def test_only_cache_misses_run_in_another_thread() -> None:
    threads = []

    def step(x):
        threads.append(threading.current_thread().name)
        return [x + 1.0]

    dispatch = Dispatch(jax.jit(step))
    assert misses(dispatch, np.float32(1.0)) == (2.0, True)
    assert misses(dispatch, np.float32(3.0)) == (4.0, False), "JAX's fast path is off: each step starts a thread"
    assert misses(dispatch, np.ones(2, np.float32))[1]
    assert threads == ["mirrored-dispatch"] * 2


def test_the_original_function_is_unchanged() -> None:
    jitted = jax.jit(lambda x: [x * 2.0])
    dispatch = Dispatch(jitted)
    assert jitted(3.0) == [6.0]
    assert dispatch.job is None


def test_an_error_of_a_cache_miss_is_raised_and_the_fast_path_comes_back() -> None:
    fails = [True]

    def step(x):
        if fails:
            raise KeyError("fails")
        return [x]

    dispatch = Dispatch(jax.jit(step))
    with pytest.raises(KeyError, match="fails"):
        dispatch.function(1.0)
    dispatch.forget()
    fails.clear()
    assert misses(dispatch, 1.0) == (1.0, True)
    assert misses(dispatch, 1.0) == (1.0, False)


class _LeftOpen(contextlib.AbstractContextManager[None]):
    """The lock of a `DispatchJob`, after whose release the job's thread goes on only when the test lets it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.may_end = threading.Event()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def release(self) -> None:
        self._lock.release()
        assert self.may_end.wait(30)


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_has_not_ended_keeps_nothing_of_its_call(fails: bool) -> None:
    """On a busy machine the caller goes on before the thread ends, and must free what it drops."""

    class Model:
        def __call__(self, given: object) -> None:
            if fails:
                raise ValueError("this call fails")

    function, given = Model(), Model()
    held = [weakref.ref(function), weakref.ref(given)]
    job = DispatchJob(function, (given,), {})
    job._running = lock = _LeftOpen(job._running)  # type: ignore[assignment]
    job.run()
    assert (job.error is not None) == fails
    job.error = None
    del function, given
    alive = [one() for one in held]
    lock.may_end.set()
    job._thread.join(30)
    assert alive == [None, None]


def test_donated_arguments_are_deleted_and_results_stored_in_one_call() -> None:
    dispatch = Dispatch(jax.jit(lambda x: [x + 1.0], donate_argnums=0))
    stored: list[object] = []
    argument = jnp.zeros(2)
    for _ in range(2):
        consume(map(stored.append, map(dispatch.function, [argument])))
        assert argument.is_deleted()
        ((argument,),) = stored[-1:]
    assert argument.tolist() == [2.0, 2.0]


# The state of a thread

SETTINGS = {
    "x64": lambda: jax.enable_x64(True),
    "matmul precision": lambda: jax.default_matmul_precision("highest"),
    "default device": lambda: jax.default_device(jax.devices()[1]),
    "nans": lambda: jax.debug_nans(True),
    "promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "mesh": lambda: jax.set_mesh(jax.make_mesh((2,), ("m",), devices=jax.devices()[:2])),
    "legacy mesh": lambda: jax.make_mesh((2,), ("m",), devices=jax.devices()[:2]),
    "user context": lambda: caches.using("mine"),
}


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_thread_that_adopts_the_state_traces_alike(name: str) -> None:
    with SETTINGS[name]():
        here, state = trace_settings(), capture_thread_settings()

        def adopted():
            adopt_thread_settings(state)
            return trace_settings(), capture_thread_settings()

        assert in_thread(adopted) == (here, state), "replica threads compute under other settings than their caller"


def test_a_new_thread_has_none_of_it() -> None:
    with jax.default_matmul_precision("highest"):
        assert in_thread(trace_settings) != trace_settings()


def test_the_name_scope_is_part_of_the_state() -> None:
    def traced(x):
        with jax.named_scope("outer"):
            state = capture_thread_settings()

        def adopted():
            adopt_thread_settings(state)
            return x + 1.0

        return in_thread(adopted) * 2.0

    in_scope, outside = jax.make_jaxpr(traced)(1.0).eqns
    assert str(in_scope.source_info.name_stack) == "outer"
    assert str(outside.source_info.name_stack) == ""
