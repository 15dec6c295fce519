"""The lock-step runner: one replica at a time, merges when all have arrived, everything unwound after an error."""

from __future__ import annotations

import contextvars
import functools
import logging
import signal
import threading
import time

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.errors import MergeError
from mirrored.runtime import lockstep as lockstep_module
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.lockstep import LockStep
from mirrored.runtime.merge import Merge

SUM = Merge("sum", lambda payloads: [sum(payloads)] * len(payloads))


def run(bodies):
    lockstep = LockStep("test")
    return lockstep, lockstep.run([body(lockstep) for body in bodies], [ambient().fork() for _ in bodies])


def meeting(index, log=None, rounds=1):
    def body(lockstep):
        def call():
            total = index
            for _ in range(rounds):
                if log is not None:
                    log.append(f"before {index}")
                total = lockstep.run_merge(SUM, total)
                if log is not None:
                    log.append(f"after {index}")
            return total + index

        return call

    return body


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.enumerate()
    yield
    assert set(threading.enumerate()) <= set(before)  # a timer of pytest-timeout may have ended meanwhile


def test_results_in_order():
    assert run([meeting(i) for i in range(4)])[1] == [6, 7, 8, 9]


def test_strict_turns():
    log = []
    run([meeting(i, log) for i in range(3)])
    assert log == [f"{when} {index}" for when in ("before", "after") for index in range(3)]


def test_many_rounds():
    assert run([meeting(i, rounds=5) for i in range(2)])[1] == [16, 17]


def test_the_merge_runs_once_in_the_starting_thread():
    threads = []

    def merge(payloads):
        threads.append(threading.current_thread())
        return payloads[::-1]

    bodies = [lambda lockstep, i=i: lambda: lockstep.run_merge(Merge("swap", merge), i) for i in range(2)]
    assert run(bodies)[1] == [1, 0]
    assert threads == [threading.current_thread()]


@pytest.mark.parametrize("error", [KeyError("boom"), KeyboardInterrupt("boom"), SystemExit("boom")], ids=repr)
@pytest.mark.parametrize("when", ["at once", "after a merge"])
@pytest.mark.parametrize("who", [0, 1, 2])
def test_an_exception_unwinds_and_joins_all(error, when, who):
    cleaned, seen = [], []

    def failing(index):
        def body(lockstep):
            def call():
                try:
                    if when == "after a merge":
                        lockstep.run_merge(SUM, 1)
                    if index == who:
                        raise error
                    lockstep.run_merge(SUM, 1)
                except Exception as seen_by_user:
                    seen.append(seen_by_user)
                    raise
                finally:
                    cleaned.append(index)

            return call

        return body

    with pytest.raises(type(error), match="boom") as caught:
        run([failing(index) for index in range(3)])
    assert caught.value is error
    # The unwinding of the others is no Exception that user code would catch.
    assert all(one is error for one in seen)
    # Those that had not started yet have nothing to clean up.
    assert set(cleaned) == set(range(who + 1)) | (set() if when == "at once" else {0, 1, 2})


def test_an_exception_in_the_merge_reaches_the_starter():
    def merge(payloads):
        raise ZeroDivisionError("in the merge")

    with pytest.raises(ZeroDivisionError, match="in the merge"):
        run([lambda lockstep: lambda: lockstep.run_merge(Merge("bad", merge), 1)] * 2)


def in_cleanup(act):
    """A replica that calls `act` while a failure of another replica unwinds it."""

    def body(lockstep):
        def call():
            try:
                lockstep.run_merge(SUM, 1)
            finally:
                act(lockstep)

        return call

    return body


def fail(error):
    raise error


def test_an_exception_in_the_cleanup_of_an_unwound_replica_does_not_hide_the_first():
    with pytest.raises(KeyError, match="first"):
        run([in_cleanup(lambda _: fail(ValueError("in the cleanup"))), lambda _: lambda: fail(KeyError("first"))])


def test_a_replica_that_meets_again_while_unwinding_ends_too():
    with pytest.raises(KeyError, match="boom"):
        run([in_cleanup(lambda lockstep: lockstep.run_merge(SUM, 2)), lambda _: lambda: fail(KeyError("boom"))])


def test_unequal_numbers_of_merges():
    with pytest.raises(
        MergeError, match=r"test: replica 1 waits at sum, but replicas \[0, 2\] returned without calling it"
    ):
        run([lambda _: lambda: None, meeting(1), lambda _: lambda: None])


def test_different_merges():
    other = Merge("product", lambda payloads: payloads)
    with pytest.raises(MergeError, match="replica 0 called sum while replica 1 called product"):
        run([meeting(0), lambda lockstep: lambda: lockstep.run_merge(other, 1)])


def test_a_merge_from_a_foreign_thread():
    def body(lockstep):
        def call():
            caught = []

            def foreign():
                try:
                    lockstep.run_merge(SUM, 1)
                except MergeError as error:
                    caught.append(error)

            thread = threading.Thread(target=foreign, name="mine")
            thread.start()
            thread.join()
            raise caught[0]

        return call

    with pytest.raises(MergeError, match=r"sum: it was called in thread 'mine', which is not a replica thread"):
        run([body])


def test_ambient_context_and_context_variables_go_along():
    label = contextvars.ContextVar("label", default="none")
    label.set("mine")

    def body(lockstep):
        def call():
            with within(replica="inner"):
                lockstep.run_merge(SUM, 1)
            return ambient().replica, label.get()

        return call

    lockstep = LockStep("test")
    contexts = [ambient().fork(replica=f"replica {i}") for i in range(2)]
    assert lockstep.run([body(lockstep)] * 2, contexts) == [("replica 0", "mine"), ("replica 1", "mine")]
    assert ambient().replica is None


SETTINGS = {
    "matmul precision": (
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.config.jax_default_matmul_precision,
    ),
    "x64": (lambda: jax.enable_x64(True), lambda: jnp.arange(2).dtype),
    "default device": (lambda: jax.default_device(jax.devices()[2]), lambda: jnp.ones(1).devices()),
    "debug nans": (lambda: jax.debug_nans(True), lambda: jax.config.jax_debug_nans),
    "strict promotion": (
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.config.jax_numpy_dtype_promotion,
    ),
    "disabled jit": (jax.disable_jit, lambda: jax.config.jax_disable_jit),
    "mesh": (
        lambda: jax.set_mesh(jax.make_mesh((2,), ("m",), devices=jax.devices()[:2])),
        lambda: jax.sharding.get_abstract_mesh().axis_names,
    ),
    "named scope": (lambda: jax.named_scope("outer"), lambda: _scope_of_an_equation()),
    "key reuse": (lambda: jax.debug_key_reuse(True), lambda: jax.config.jax_debug_key_reuse),
    "log compiles": (lambda: jax.log_compiles(False), lambda: jax.config.jax_log_compiles),
}


def _scope_of_an_equation():
    return "outer" in jax.jit(lambda x: x + 1).lower(1.0).as_text(debug_info=True)


@pytest.mark.parametrize("name", SETTINGS)
def test_jax_state_of_the_starting_thread_reaches_every_replica(name):
    enter, look = SETTINGS[name]

    def body(lockstep):
        def call():
            first = look()
            lockstep.run_merge(SUM, 1)
            return first, look()

        return call

    with enter():
        here = look()
        assert run([body] * 3)[1] == [(here, here)] * 3


def test_settings_changed_by_a_replica_stay_its_own():
    def body(lockstep):
        def call():
            with jax.default_matmul_precision("float32"):
                lockstep.run_merge(SUM, 1)
                return jax.config.jax_default_matmul_precision

        return call

    def other(lockstep):
        def call():
            lockstep.run_merge(SUM, 1)
            return jax.config.jax_default_matmul_precision

        return call

    before = jax.config.jax_default_matmul_precision
    assert run([body, other])[1] == ["float32", before]
    assert jax.config.jax_default_matmul_precision == before


def test_replicas_are_traced_into_one_program():
    def program(x):
        bodies = [lambda lockstep, i=i: lambda: lockstep.run_merge(SUM, x * i) for i in range(3)]
        return run(bodies)[1][0]

    assert float(jax.jit(program)(2.0)) == 6.0
    jaxpr = str(jax.make_jaxpr(program)(2.0))
    assert jaxpr.count(" mul ") == 3


def test_tracebacks_show_the_replicas_line():
    def body(lockstep):
        def call():
            return _raise_here()

        return call

    with pytest.raises(KeyError, match="here") as caught:
        run([body])
    assert "_raise_here" in [entry.name for entry in caught.traceback]


def _raise_here():
    raise KeyError("here")


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("started", [0, 1, 2])
@pytest.mark.parametrize("is_alive", [True, False])
def test_an_interrupt_while_threads_are_started_ends_the_run(monkeypatch, started, is_alive):
    start, calls = threading.Thread.start, []

    def interrupted(self):
        calls.append(self)
        if len(calls) > started:
            if is_alive:
                start(self)
            raise Interrupt
        start(self)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(Interrupt):
        run([meeting(index) for index in range(3)])
    monkeypatch.undo()
    for thread in calls:
        if thread.ident is not None:
            thread.join()
    assert run([meeting(index) for index in range(3)])[1] == [3, 4, 5]


def test_an_interrupt_while_a_replica_runs_or_is_unwound_ends_the_run(monkeypatch):
    """Ctrl-C hits the main thread, which waits; then again, while it unwinds."""
    main, interrupts = threading.main_thread(), []

    def body(lockstep):
        def call():
            for _ in range(2):
                interrupts.append(1)
                signal.pthread_kill(main.ident, signal.SIGUSR1)
                time.sleep(0.05)
            return lockstep.run_merge(SUM, 1)

        return call

    def handle(*_):
        raise Interrupt

    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(Interrupt):
            run([body, body])
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert len(interrupts) == 2


def in_lockstep(replica):
    run([lambda lockstep: lambda: replica(lambda: lockstep.run_merge(SUM, 1))] * 2)


def in_run(step, replica):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    step(lambda: strategy.run(lambda: replica(lambda: mr.get_replica_context().all_reduce("SUM", jnp.ones(2)))))()


@pytest.mark.parametrize(
    "start", [in_lockstep, functools.partial(in_run, lambda step: step), functools.partial(in_run, mr.function)],
    ids=["lock-step", "eager", "compiled"],
)  # fmt: skip
def test_a_replica_that_runs_after_its_run_was_given_up_ends_at_its_next_merge(start):
    main, is_given_up, ended, began = threading.main_thread(), threading.Event(), [], []

    def replica(merge):
        began.append(threading.current_thread())
        while not is_given_up.wait(0.05):
            signal.pthread_kill(main.ident, signal.SIGUSR1)
        try:
            merge()
            ended.append("merged")
        except Exception as error:
            ended.append(error)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    def handle(*_):
        raise Interrupt

    previous = signal.signal(signal.SIGUSR1, handle)
    before = set(threading.enumerate())
    try:
        with pytest.raises(Interrupt):
            start(replica)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        is_given_up.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(5.0)
    finally:
        is_given_up.set()
        signal.signal(signal.SIGUSR1, previous)
    assert len(began) == 1
    assert ended == ["_Unwind"]


class Releasing(logging.Handler):
    """Collects warnings; each one releases a lock, so that the run goes on."""

    def __init__(self, lock):
        super().__init__()
        self.held, self.messages = lock, []  # `lock` is the handler's own

    def emit(self, record):
        self.messages.append(record.getMessage())
        self.held.release()


@pytest.fixture
def releasing(monkeypatch):
    monkeypatch.setattr(lockstep_module, "_BLOCKED_SECONDS", 0.2)
    handler = Releasing(threading.Lock())
    logging.getLogger("mirrored").addHandler(handler)
    yield handler
    logging.getLogger("mirrored").removeHandler(handler)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_replica_that_waits_for_a_lock_of_another_one_is_reported(releasing, compiled):
    """The run waited forever, without a message."""
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)

    def replica():
        releasing.held.acquire()
        return mr.get_replica_context().all_reduce("SUM", jnp.ones(2))

    step = lambda: strategy.run(replica)  # noqa: E731
    result = (mr.function(step) if compiled else step)()
    assert [one.tolist() for one in strategy.experimental_local_results(result)] == [[2.0, 2.0]] * 2
    (message,) = releasing.messages
    assert "replica 1 has been at one place, while replica 0 waits in ReplicaContext.all_reduce" in message
    assert "releasing.held.acquire()" in message
    assert "a replica must not hold a lock there" in message
    assert "release it before the collective" in message


def test_a_replica_that_waits_for_a_lock_of_the_caller_is_reported(releasing):
    releasing.held.acquire()

    def body(lockstep):
        return lambda: releasing.held.acquire()

    assert run([body])[1] == [True]
    (message,) = releasing.messages
    assert "replica 0 has been at one place, while the thread that called run waits for it" in message


def test_an_unwound_replica_that_waits_for_a_lock_is_reported(releasing):
    def holds(lockstep):
        def call():
            try:
                lockstep.run_merge(SUM, 1)
            finally:
                releasing.held.acquire()

        return call

    def fails(lockstep):
        def call():
            releasing.held.acquire()
            raise KeyError("boom")

        return call

    with pytest.raises(KeyError, match="boom"):
        run([holds, fails])
    assert len(releasing.messages) == 1


@pytest.mark.parametrize("module", ["jax._src.compiler", "bdb"])
def test_compilations_and_debuggers_are_not_reported(releasing, module):
    names = {"__name__": module, "sleep": time.sleep}
    exec("def wait(): sleep(0.6)", names)
    assert run([lambda lockstep: names["wait"]])[1] == [None]
    assert not releasing.messages


def test_a_replica_that_computes_is_not_reported(releasing, monkeypatch):
    places = []
    monkeypatch.setattr(lockstep_module, "place_of", lambda thread: places.append(thread) or f"line {len(places)}")
    run([lambda lockstep: lambda: time.sleep(0.6)])
    assert len(places) > 1
    assert not releasing.messages
