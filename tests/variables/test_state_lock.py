"""Threads that replace values take turns: none of them loses what another one has stored."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.variables import state_lock


class Model:
    """A mirrored variable and a sync-on-read one, to both of which everybody adds 1."""

    def __init__(self, devices: int, replicas: int) -> None:
        self.strategy = mr.MirroredStrategy([f"CPU:{index}" for index in range(devices)], num_replicas=replicas)
        with self.strategy.scope():
            self.v = mr.Variable(0.0)
            self.total = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
            self.optimizer = mr.optimizers.SGD(1.0)
            self.optimizer.build([self.v])

    def add(self) -> None:
        """In a replica."""
        self.v.assign(self.v + 1.0)
        self.total.assign_add(1.0 / self.strategy.num_replicas_in_sync)

    def found(self) -> tuple[float, float]:
        return float(self.v), float(self.total)


def compiled(model: Model, **options: Any) -> Callable[[], Any]:
    return mr.function(lambda: model.strategy.run(model.add), **options)


def taped(model: Model) -> Callable[[], Any]:
    function = compiled(model)

    def call() -> None:
        with mr.GradientTape():
            function()

    return call


def assigned(model: Model) -> None:
    model.v.assign_add(1.0)
    model.total.values[0].assign_add(1.0)


def optimized(model: Model) -> None:
    model.optimizer.apply_gradients([(jnp.float32(-1.0), model.v)])
    count = model.strategy.num_replicas_in_sync
    shares = [jnp.float32(1.0 / count)] * count
    model.total.assign_add(mr.PerReplica(shares, model.strategy.device_assignment))


OTHERS: dict[str, Callable[[Model], Callable[[], Any]]] = {
    "compiled": compiled,
    "compiled, not donating": lambda model: compiled(model, donate=False),
    "compiled, under a tape": taped,
    "assignments": lambda model: lambda: assigned(model),
    "an optimizer": lambda model: lambda: optimized(model),
    "an eager run": lambda model: lambda: model.strategy.run(model.add),
}


def in_thread(call: Callable[[], Any], errors: list[BaseException]) -> threading.Thread:
    def guarded() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    return thread


@pytest.mark.first(3)
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("other", OTHERS)
def test_an_eager_run_and_another_thread_lose_no_update(other, devices, replicas):
    """The other thread comes while the run has read its values, and not stored the new ones."""
    model = Model(devices, replicas)
    call = OTHERS[other](model)
    call()  # nothing is traced below
    model.v.assign(0.0)
    model.total.assign(0.0)
    begun, ended, errors = threading.Event(), threading.Event(), []

    def call_meanwhile() -> None:
        assert begun.wait(20)
        call()
        ended.set()

    def replica() -> None:
        old = model.v.read_value()
        model.total.assign_add(1.0 / replicas)
        begun.set()
        ended.wait(0.2)  # in vain: the other one waits for the end of the run
        model.v.assign(old + 1.0)

    thread = in_thread(call_meanwhile, errors)
    model.strategy.run(replica)
    thread.join(20)
    assert not thread.is_alive()
    assert errors == []
    assert model.found() == (2.0, 2.0)


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_two_threads_that_step_at_the_same_time_count_exactly(replicas):
    model, errors = Model(replicas, replicas), []
    step, count = compiled(model), 150

    def eagerly() -> None:
        for _ in range(count):
            model.strategy.run(model.add)

    def compiled_steps() -> None:
        for _ in range(4 * count):
            step()

    threads = [in_thread(body, errors) for body in (eagerly, compiled_steps)]
    for thread in threads:
        thread.join(50)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)
    assert model.found() == pytest.approx((5.0 * count, 5.0 * count))
    assert float(model.v) == 5.0 * count


def test_functions_that_are_traced_beside_an_eager_run_do_not_deadlock():
    model, errors = Model(1, 1), []
    begun = threading.Event()

    def traced_in_the_run() -> Any:
        begun.set()
        return mr.function(lambda: model.v.assign_add(1.0))()

    def traced_beside_it() -> None:
        assert begun.wait(20)

        @mr.function
        def step() -> Any:
            if not made:
                made.append(mr.Variable(1.0))  # assigned at once, while the function is traced
            return model.v.assign_add(1.0)

        step()

    made: list[Any] = []
    thread = in_thread(traced_beside_it, errors)
    for _ in range(10):
        model.strategy.run(traced_in_the_run)
    thread.join(20)
    assert not thread.is_alive()
    assert errors == []
    assert float(model.v) == 11.0


def test_a_program_that_only_reads_does_not_wait_for_an_eager_run():
    """Such a function may be a part of the input that the run waits for."""
    model, errors, found = Model(2, 2), [], []
    read = mr.function(lambda x: x + model.v)
    read(1.0)
    begun, ended = threading.Event(), threading.Event()

    def meanwhile() -> None:
        assert begun.wait(20)
        found.append(float(read(1.0)))
        ended.set()

    def replica() -> None:
        begun.set()
        assert ended.wait(20)

    thread = in_thread(meanwhile, errors)
    model.strategy.run(replica)
    thread.join(20)
    assert errors == []
    assert found == [1.0]


def test_a_checkpoint_beside_an_eager_run_of_one_replica_is_of_whole_steps():
    with mr.OneDeviceStrategy("CPU:0").scope():
        a, b = mr.Variable(0.0), mr.Variable(0.0)
    checkpoint = Checkpoint(a=a, b=b)
    checkpoint.snapshot()
    begun, ended, errors, taken = threading.Event(), threading.Event(), [], []

    def save() -> None:
        assert begun.wait(20)
        taken.append(checkpoint.snapshot())
        ended.set()

    def replica() -> None:
        a.assign_add(1.0)
        begun.set()
        ended.wait(0.5)  # in vain: the other one waits for the end of the run
        b.assign_add(1.0)

    thread = in_thread(save, errors)
    a.strategy.run(replica)
    thread.join(30)
    assert errors == []
    assert [float(taken[0].leaves[name].value) for name in ("a", "b")] == [1.0, 1.0]


@pytest.mark.parametrize("replicas", [1, 2])
def test_threads_of_replicas_belong_to_the_run(replicas):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=replicas)
    found = []
    strategy.run(lambda: found.append(state_lock.thread.excused))
    assert found == [replicas > 1] * replicas
    assert not state_lock.thread.excused


def test_a_trace_that_fails_leaves_the_thread_to_take_turns():
    def fails() -> None:
        assert state_lock.thread.excused
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mr.function(fails)()
    assert not state_lock.thread.excused


def test_an_assignment_in_a_callback_is_refused_and_does_not_deadlock():
    v, other = mr.Variable(0.0), mr.Variable(0.0)
    errors: list[str] = []

    def look(_: Any) -> None:
        try:
            other.assign(1.0)
        except mr.errors.ContextError as error:
            errors.append(str(error))

    @mr.function
    def step() -> None:
        v.assign_add(1.0)
        jax.debug.callback(look, v.read_value())

    step()
    jax.effects_barrier()
    assert len(errors) == 1
    assert "is in a callback of a compiled function" in errors[0]
    assert (float(v), float(other)) == (1.0, 0.0)


# A value that a restored checkpoint has for a new variable, whose first use is in code that fails.


def undone(within: Callable[[Callable[[], None]], Any], call: Callable[[], Any]) -> None:
    """Makes a call whose assignments an exception undoes."""

    def failing() -> None:
        call()
        raise KeyError

    with pytest.raises(KeyError):
        within(failing)


def in_a_merge(failing: Callable[[], None]) -> None:
    def replica() -> None:
        with pytest.raises(KeyError):
            mr.get_replica_context().merge_call(lambda _: failing())

    mr.MirroredStrategy(["CPU:0", "CPU:1"]).run(replica)
    raise KeyError


WITHIN: dict[str, Callable[[Callable[[], None]], Any]] = {
    "with_storage_rollback": state_lock.with_storage_rollback,
    "together": state_lock.together,
    "a run of one replica": mr.OneDeviceStrategy("CPU:0").run,
    "a merge": in_a_merge,
}


@pytest.mark.parametrize("use", ["assign", "read", "read, assign"])
@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
def test_failing_code_keeps_the_value_that_a_restored_checkpoint_has_for_a_variable(tmp_path, within, use):
    class Model:
        v: mr.Variable

    saved, model = Model(), Model()
    saved.v = mr.Variable(7.0)
    checkpoint = Checkpoint(model=model)
    checkpoint.restore(Checkpoint(model=saved).save(tmp_path))
    model.v = mr.Variable(0.0)
    seen = []

    def call() -> None:
        if "read" in use:
            seen.append(float(model.v.read_value()))
        if "assign" in use:
            model.v.assign(5.0)

    undone(within, call)
    assert seen == [7.0] * ("read" in use)
    assert float(model.v) == 7.0


def test_an_assignment_that_succeeds_replaces_the_value_that_a_restored_checkpoint_has(tmp_path):
    class Model:
        v: mr.Variable

    saved, model = Model(), Model()
    saved.v = mr.Variable(7.0)
    for succeed in (state_lock.together, state_lock.with_storage_rollback, mr.OneDeviceStrategy("CPU:0").run):
        checkpoint = Checkpoint(model=model)
        checkpoint.restore(Checkpoint(model=saved).save(tmp_path))
        model.v = mr.Variable(0.0)
        succeed(lambda: (model.v.assign(5.0), None)[1])
        assert float(model.v) == 5.0


@pytest.mark.parametrize("at", range(8))
def test_an_interrupt_of_together_does_not_hold_back_later_assignments(at: int) -> None:
    w, calls = mr.Variable(0.0), 0

    def interrupting(frame: Any, event: str, argument: object) -> None:
        # Where CPython calls signal handlers: at the entry of a function that `together` calls.
        nonlocal calls
        if event == "call" and frame.f_back is not None and frame.f_back.f_code is state_lock.together.__code__:
            calls += 1
            if calls == at + 1:
                sys.setprofile(None)
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(interrupting)
    try:
        state_lock.together(lambda: w.assign(1.0))
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(before)
    w.assign(5.0)
    assert float(w.read_value()) == 5.0
