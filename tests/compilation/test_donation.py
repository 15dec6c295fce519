"""Donating steps: whatever interrupts them, the variables are those before or after the step, in every thread."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored._jax.interrupts import CacheMisses, DispatchJob
from mirrored.checkpoint.leaves import VariableLeaf
from mirrored.compilation import dispatch
from mirrored.compilation.dispatch import DonatingStep
from mirrored.errors import LostStateError
from mirrored.variables import state_lock
from mirrored.variables.state_lock import together

_PROGRAM = pathlib.Path(__file__).with_name("interrupted.py")
# Up to Python 3.11 the state of a thread that is being started carries its creator's id, so that an exception injected
# into the creator can end the new thread before it begins; `Thread.start` then waits forever.
_INJECTED = "injected" if sys.version_info >= (3, 12) else "signal"


class Interrupt(BaseException):
    pass


# Interrupts


@pytest.mark.parametrize(
    ("devices", "replicas", "mode", "kind", "steps"),
    [
        (1, 1, "compiled", "signal", 1),
        (2, 2, "compiled", "signal", 1),
        (2, 4, "compiled", "signal", 2),
        (4, 4, "compiled", "signal", 3),
        (2, 4, "deterministic", "signal", 1),
        (2, 2, "compiled", _INJECTED, 1),
        (2, 2, "eager", "signal", 1),
        (4, 4, "eager", _INJECTED, 1),
    ],
)
@pytest.mark.sampled(3)
@pytest.mark.long
def test_interrupts_at_random_moments_leave_the_state_whole(devices, replicas, mode, kind, steps):
    arguments = [str(one) for one in (devices, replicas, mode, kind, steps, 60)]
    done = subprocess.run([sys.executable, _PROGRAM, *arguments], capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("whole after 60 interrupts")


@pytest.mark.chaos
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (2, 4)])
def test_four_threads_train_read_checkpoint_and_evaluate(devices, replicas, tmp_path):
    program = str(_PROGRAM.with_name("threaded.py"))
    arguments = [str(devices), str(replicas), "20", str(tmp_path)]
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("consistent:")


def _raising_when(event):
    """A profile function that raises once, at the first call or return that `event` chooses."""
    armed = [True]

    def profile(frame, kind, argument):
        # Python delivers nothing between the `__enter__` of a lock and the block.
        if armed[0] and not (kind == "c_return" and argument.__name__ == "__enter__") and event(frame, kind):
            armed[0] = False
            sys.setprofile(None)
            raise Interrupt

    return profile


@pytest.mark.filterwarnings("ignore:Exception ignored in")  # some hit a finalizer
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("compiled", [True, False])
def test_an_interrupt_at_any_call_of_a_step_leaves_the_state_whole(devices, compiled):
    """Raises at the first call that Python makes in a step, then at the second, and so on to the last."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices])
    with strategy.scope():
        variables = [mr.Variable(jnp.zeros(3)) for _ in range(3)]

    @mr.function
    def step():
        strategy.run(lambda: [v.assign_add(jnp.ones(3)) for v in variables])

    if compiled:
        step()
    before, place, completed = float(variables[0].numpy()[0]), 0, 0
    while completed < 2 and place < 400:
        calls = [0]

        def chosen(frame, kind, calls=calls, place=place):
            calls[0] += kind in ("call", "return", "c_return")
            return calls[0] > place

        try:
            sys.setprofile(_raising_when(chosen))
            step()
            completed += 1
        except Interrupt:
            completed = 0
        finally:
            sys.setprofile(None)
        values = {float(v.numpy()[0]) for v in variables}
        assert len(values) == 1, f"half a step, interrupted at call {place}"
        (now,) = values
        assert now in (before, before + 1)
        before, place = now, place + (1 if compiled else 37)
        if not compiled:
            jax.clear_caches()
    assert place > 5


@pytest.mark.long
def test_a_program_ends_after_an_interrupt_that_hits_the_start_of_a_thread():
    """In a process of its own: threads that are half started can also keep a process from ending."""
    program = """
        import sys
        import mirrored as mr

        v = mr.Variable(0.0)
        step = mr.function(lambda: v.assign_add(1.0))

        def profile(frame, kind, argument):
            if kind == "c_return" and argument.__name__ == "start_new_thread":
                sys.setprofile(None)
                raise TimeoutError

        sys.setprofile(profile)
        try:
            step()
        except TimeoutError:
            print("interrupted", float(v))
        step()
        print("then", float(v))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() in (["interrupted 0.0", "then 1.0"], ["interrupted 1.0", "then 2.0"])


def test_an_interrupted_compilation_is_completed_and_its_step_stored():
    v = mr.Variable(jnp.zeros(3))
    step = mr.function(lambda: v.assign_add(jnp.ones(3)))

    def interrupt_the_wait(self):
        DispatchJob.wait_or_cancel = settle
        settle(self)
        raise Interrupt

    settle, DispatchJob.wait_or_cancel = DispatchJob.wait_or_cancel, interrupt_the_wait
    try:
        with pytest.raises(Interrupt):
            step()
    finally:
        DispatchJob.wait_or_cancel = settle
    assert v.tolist() == [1.0, 1.0, 1.0]
    step()
    assert v.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("error", [TimeoutError, jax.errors.JaxRuntimeError])
def test_a_step_keeps_its_values_if_the_wait_for_an_earlier_step_raises(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler raises it, or the step of another function fails."""
    v = mr.Variable(jnp.zeros(3))
    step = mr.function(lambda: v.assign_add(jnp.ones(3)))
    step()

    def launched(token: Any) -> None:
        raise error("boom")

    monkeypatch.setattr(dispatch, "launched", launched)
    with pytest.raises(error, match="boom"):
        step()
    monkeypatch.undo()
    assert v.tolist() == [2.0, 2.0, 2.0]
    step()
    assert v.tolist() == [3.0, 3.0, 3.0]


class _Computed:
    """Stands for an array on a device: on CPUs no computation fails after its dispatch."""

    def __init__(self, *, ready: bool = True, failed: bool = False, deleted: bool = False) -> None:
        self._ready, self._failed, self._deleted = ready, failed, deleted

    def is_ready(self) -> bool:
        return self._ready

    def is_deleted(self) -> bool:
        return self._deleted

    def block_until_ready(self) -> None:
        if self._failed or self._deleted:
            raise jax.errors.JaxRuntimeError("boom")


@pytest.mark.parametrize(
    ("waits", "value", "lost"),
    [
        (True, _Computed(failed=True), True),
        (True, _Computed(ready=False), False),
        (False, _Computed(ready=False), True),
        (False, _Computed(), False),
        (True, _Computed(deleted=True), False),
    ],
)
def test_variables_whose_new_values_failed_are_lost(waits: bool, value: Any, lost: bool) -> None:
    v = mr.Variable(jnp.zeros(3))
    v._array = value
    dispatch.lose_failed([v], RuntimeError("boom"), waits=waits)
    assert v.is_lost == lost


def test_a_step_that_was_cut_short_is_finished_by_the_next_access(monkeypatch):
    v, w = mr.Variable(jnp.zeros(3)), mr.Variable(jnp.zeros(3))

    @mr.function
    def step():
        v.assign_add(jnp.ones(3))
        w.assign_add(jnp.ones(3))

    def fail(self, error):  # a second interrupt hits the handler of the first
        raise error

    real = CacheMisses.__call__
    monkeypatch.setattr(DonatingStep, "fail", fail)
    monkeypatch.setattr(
        CacheMisses, "__call__", lambda self, *args, **kwargs: _lose_the_result(real(self, *args, **kwargs))
    )
    with pytest.raises(Interrupt):
        step()
    assert state_lock.state.step is not None
    assert (v.tolist(), w.tolist()) == ([1.0] * 3, [1.0] * 3)
    assert state_lock.state.step is None


def _lose_the_result(result):
    raise Interrupt


def test_a_signal_handler_may_read_and_assign_variables_between_steps():
    v, w = mr.Variable(jnp.zeros(3)), mr.Variable(0.0)
    step = mr.function(lambda: v.assign_add(jnp.ones(3) + w))
    seen = []

    def handle(*_):
        seen.append(v.numpy())
        w.assign_add(1.0)

    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        for _ in range(3):
            step()
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert [float(one[0]) for one in seen] == [1.0, 3.0, 6.0]


# Threads


def run_threads(*bodies):
    """Runs them at once; the errors of all."""
    errors = []

    def guarded(body):
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_several_threads_may_call_one_function(replicas):
    strategy = mr.MirroredStrategy(jax.devices()[: min(replicas, 2)], num_replicas=replicas)
    made = []

    def replica():
        if not made:
            with strategy.scope():
                made.append(mr.Variable(jnp.zeros(8)))
        made[0].assign_add(jnp.ones(8))

    with strategy.scope():
        count = mr.Variable(jnp.zeros(8))

    @mr.function
    def step():
        strategy.run(lambda: count.assign_add(jnp.ones(8)))

    def train():
        for _ in range(40):
            step()

    assert run_threads(train, train, train) == []
    assert step.trace_count == 1
    assert count.tolist() == [120.0] * 8


@pytest.mark.long
def test_other_threads_read_while_one_trains():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        w = mr.Variable(jnp.zeros(64))
        c = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
    ended = threading.Event()

    @mr.function
    def step():
        def replica():
            w.assign_add(jnp.ones(64))
            c.assign_add(0.5)

        strategy.run(replica)

    @mr.function
    def evaluate():
        return strategy.run(lambda: w.read_value().sum())

    def train():
        try:
            for _ in range(150):
                step()
        finally:
            ended.set()

    def reading(read):
        def body():
            newest = 0.0
            while not ended.is_set():
                values = np.unique(np.asarray(read()))
                assert len(values) == 1
                assert values[0] >= newest
                newest = values[0]

        return body

    readers = [
        w.numpy,
        w.read_value,
        lambda: w.values[1].numpy(),
        lambda: c.numpy(),
        lambda: strategy.local_results(evaluate())[0],
    ]
    assert run_threads(train, *(reading(read) for read in readers)) == []
    assert w.numpy()[0] == c.numpy() == 150.0


def test_a_program_under_a_tape_reads_all_variables_after_the_same_step_of_another_thread():
    variables = [mr.Variable(0.0) for _ in range(30)]
    read = mr.function(lambda: jnp.stack([one.read_value() for one in variables]))
    ended = threading.Event()

    @mr.function
    def step():
        for one in variables:
            one.assign_add(1.0)

    def train():
        while not ended.is_set():
            step()

    def evaluate():
        try:
            for _ in range(300):
                with mr.GradientTape():
                    assert len(np.unique(read())) == 1
        finally:
            ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert run_threads(train, evaluate) == []
    finally:
        sys.setswitchinterval(interval)


def test_a_value_read_in_another_thread_stays_valid():
    w = mr.Variable(jnp.zeros(64))
    step = mr.function(lambda: w.assign_add(jnp.ones(64)))
    kept = []

    def train():
        while len(kept) < 50:
            step()

    def read():
        for _ in range(50):
            kept.append(w.read_value())

    assert run_threads(train, read) == []
    for value in kept:
        assert len(np.unique(value)) == 1


def test_a_callback_reads_variables_as_they_were_before_the_step_and_calls_no_function():
    v = mr.Variable(jnp.zeros(3))
    other = mr.function(lambda: v.assign_add(jnp.ones(3)))
    seen, errors = [], []

    def look(_):
        seen.append((v.numpy()[0], v.read_value()[0]))
        try:
            other()
        except mr.errors.ContextError as error:
            errors.append(str(error))

    @mr.function
    def step():
        v.assign_add(jnp.ones(3))
        jax.debug.callback(look, v[0])

    other()
    for _ in range(2):
        step()
        jax.effects_barrier()
    assert seen == [(1.0, 1.0), (2.0, 2.0)]
    assert len(errors) == 2
    assert "is in a callback of a compiled function" in errors[0]
    assert v.tolist() == [3.0] * 3


# Donation


def test_what_was_handed_out_is_copied_and_nothing_else():
    v, w = mr.Variable(jnp.zeros(100)), mr.Variable(jnp.zeros(100))

    @mr.function
    def step():
        v.assign_add(jnp.ones(100))
        w.assign_add(jnp.ones(100))

    step()
    before = v._array.unsafe_buffer_pointer(), w._array.unsafe_buffer_pointer()
    alias = jax.device_put(v.read_value(), v.read_value().sharding)  # shares the buffer, but is another object
    w.numpy()  # a copy, which hands nothing out
    step()
    assert alias.tolist() == [1.0] * 100
    assert v._array.unsafe_buffer_pointer() != before[0]
    assert w._array.unsafe_buffer_pointer() == before[1]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("inside", [True, False], ids=["run", "function"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_new_value_that_is_a_residual_is_not_donated(persistent: bool, inside: bool, devices: int) -> None:
    """The new value of a variable may be a residual of a tape: ``y = exp(w * x); v.assign(y)``."""
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    with strategy.scope():
        value, weight = mr.Variable(jnp.ones(64)), mr.Variable(jnp.full(64, 0.5))

    def of(x: Any, w: Any) -> Any:
        result = jnp.exp(w * x)
        value.assign(result, read_value=False)
        return jnp.sum(result)

    @mr.function
    def loss(x: Any) -> Any:
        if inside:
            return strategy.reduce(mr.ReduceOp.MEAN, strategy.run(lambda x: of(x, weight), (x,)), axis=None)
        return of(x, weight)

    @mr.function
    def donating_step() -> None:
        strategy.run(lambda: value.assign(2.0 * value, read_value=False))

    for _ in range(2):
        with mr.GradientTape(persistent=persistent) as tape:
            result = loss(jnp.float32(1.0))
        donating_step()
        gradient = tape.gradient(result, weight)
        np.testing.assert_allclose(gradient, np.full(64, np.exp(0.5)), rtol=1e-6)
        np.testing.assert_allclose(value, np.full(64, 2 * np.exp(0.5)), rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("mode", ["compiled", "eager"])
@pytest.mark.sampled(4)
@pytest.mark.long
def test_an_exception_that_is_held_leaves_no_context_open(devices, mode):
    """As in Jupyter. In a process of its own: exceptions at any call also hit what JAX and pytest run in between."""
    program = pathlib.Path(__file__).with_name("held_exceptions.py")
    done = subprocess.run([sys.executable, program, str(devices), mode], capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("whole after ")


def made_from_one_array(array: Any) -> tuple[Any, Any]:
    return mr.Variable(array), mr.Variable(array)


def assigned_one_array(array: Any) -> tuple[Any, Any]:
    variables = mr.Variable(jnp.zeros(4)), mr.Variable(jnp.zeros(4))
    for variable in variables:
        variable.assign(array)
    return variables


def assigned_each_other(array: Any) -> tuple[Any, Any]:
    first = mr.Variable(array)
    second = mr.Variable(first.read_value())
    second.assign(first)
    return first, second


def assigned_one_result_of_a_step(array: Any) -> tuple[Any, Any]:
    variables = mr.Variable(jnp.zeros(4)), mr.Variable(jnp.zeros(4))

    @mr.function
    def step(x: Any) -> Any:
        y = x + 0.0
        for variable in variables:
            variable.assign(y)
        return y

    assert step(array).tolist() == array.tolist()
    return variables


def restored_from_one_value(array: Any) -> tuple[Any, Any]:
    tree = mr.mirror({"a": array, "b": array})
    return tree["a"], tree["b"]


SHARED = (made_from_one_array, assigned_one_array, assigned_each_other)
SHARED += (assigned_one_result_of_a_step, restored_from_one_value)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("make", SHARED, ids=lambda make: make.__name__)
def test_one_array_in_two_donated_variables(make: Any, devices: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    array = jnp.arange(4.0)
    with strategy.scope():
        first, second = make(array)

    @mr.function
    def step() -> None:
        def update() -> None:
            first.assign_add(jnp.ones(4))
            second.assign(second * 2.0 + first)

        strategy.run(update)

    a = b = np.arange(4.0)
    held = first.read_value()
    for _ in range(4):
        step()
        a = a + 1
        b = 2 * b + a
        assert first.numpy().tolist() == a.tolist()
        assert second.numpy().tolist() == b.tolist()
    assert array.tolist() == held.tolist() == [0.0, 1.0, 2.0, 3.0]


def _failed_value() -> jax.Array:
    """An array whose program fails on the device, which nothing has noticed yet."""

    def fail(_: Any) -> Any:
        raise RuntimeError("out of memory")

    # The operand is not ready when the failing program is dispatched, which therefore runs in the background; on a busy
    # machine it may be ready by then, and the call itself fails.
    wide, shape = jnp.ones((256, 256)), jax.ShapeDtypeStruct((), jnp.float32)
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: jnp.tanh(y @ x), x)[0, 0])
    failing = jax.jit(lambda x: jax.pure_callback(fail, shape, x))
    for _ in range(20):
        with contextlib.suppress(RuntimeError):
            return failing(slow(wide))
    raise AssertionError("each call of the failing program has raised its error at once")


READS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda v: v.numpy(),
    "np.asarray": np.asarray,
    "float": float,
    "bool": bool,
    "item": lambda v: v.item(),
    "tolist": lambda v: v.tolist(),
    "format": lambda v: f"{v:.2f}",
    "values": lambda v: v.values[0].numpy(),
}


@pytest.fixture
def failures_are_awaited() -> Iterator[None]:
    """Takes the errors that JAX otherwise prints at the end of the process."""
    yield
    with contextlib.suppress(RuntimeError):
        jax.effects_barrier()


@pytest.mark.usefixtures("failures_are_awaited")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_that_finds_a_failed_step_names_the_lost_variable(read: Callable[[Any], Any]) -> None:
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        v = mr.Variable(0.0, name="v")
    v.hold(_failed_value())
    with pytest.raises(LostStateError, match=r"reading v: [\s\S]*restore a checkpoint") as caught:
        read(v)
    assert isinstance(caught.value.__cause__ or caught.value.__context__, RuntimeError)
    assert "(lost)" in repr(v)
    v.assign(2.0)
    assert v.numpy() == 2.0


@pytest.mark.usefixtures("failures_are_awaited")
def test_a_function_that_reads_a_failed_value_names_the_lost_variable() -> None:
    v, w = mr.Variable(0.0, name="v"), mr.Variable(1.0)
    step = mr.function(lambda: w.assign_add(v))
    step()
    v.hold(_failed_value())

    def train() -> None:  # the failure is found where JAX first waits for a result
        for _ in range(100):
            step()

    with pytest.raises((LostStateError, jax.errors.JaxRuntimeError)):
        train()
    for use in (lambda: v + 1, v.numpy, step):
        with pytest.raises(LostStateError, match="reading"):
            use()
    sound = mr.Variable(0.0)
    count = mr.function(lambda: sound.assign_add(1.0))
    for _ in range(10):  # the steps that failed are not reported again
        count()
    assert float(sound) == 10.0


def in_a_merge_under_a_tape(strategy: Any, variable: Any, value: Any) -> None:
    def merged(_: Any, result: Any) -> Any:
        variable.assign(value)
        return result

    def replica() -> Any:
        x = jnp.float32(2.0)
        with mr.GradientTape() as tape:
            tape.watch(x)
            return mr.get_replica_context().merge_call(merged, args=(x * x,))

    strategy.run(replica)


def with_others(strategy: Any, variable: Any, value: Any) -> Any:
    results: list[Any] = []
    together(lambda: results.append(variable.assign(value)))
    return results


def back_after_a_failed_restore(strategy: Any, variable: Any, value: Any) -> Any:
    variable.assign(value)
    held = variable.read_value()
    undo = VariableLeaf(variable).undo()
    variable.assign(0 * value)
    undo()
    return held


def directly(strategy: Any, variable: Any, value: Any) -> Any:
    return variable.assign(value)


def in_a_run(strategy: Any, variable: Any, value: Any) -> Any:
    return strategy.experimental_local_results(strategy.run(lambda: variable.assign(value)))


@pytest.mark.parametrize(
    "assign",
    [in_a_merge_under_a_tape, with_others, back_after_a_failed_restore, directly, in_a_run],
)
@pytest.mark.parametrize("in_scope", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_array_that_the_program_holds_is_not_donated(assign: Any, in_scope: bool, replicas: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
    with strategy.scope() if in_scope else contextlib.nullcontext():
        variable = mr.Variable(np.zeros(4, np.float32))
    value = jnp.arange(4.0)
    held = [value, assign(strategy, variable, value)]
    double = mr.function(lambda: variable.assign(2 * variable))
    for _ in range(2):
        double()
    for array in jax.tree.leaves(held):
        np.testing.assert_array_equal(array, np.arange(4.0))
    np.testing.assert_array_equal(variable.numpy(), 4 * np.arange(4.0))


# Invalid values under JAX's debugging settings


@pytest.mark.parametrize("settled", [True, False], ids=["later call", "first call"])
@pytest.mark.parametrize("donate", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_nan_raises_the_error_of_jax_and_keeps_the_variables(settled, donate, deterministic):
    strategy = mr.MirroredStrategy(jax.devices()[:2], deterministic=deterministic)
    with strategy.scope():
        w = mr.Variable(jnp.ones(3))

    @mr.function(donate=donate)
    def step(x):
        w.assign(jnp.log(w + x))

    with jax.debug_nans(True):
        for _ in range(3 * settled):
            step(jnp.full(3, 2.0))
        before = w.numpy()
        with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in log"):
            step(jnp.full(3, -9.0))
        assert w.numpy().tolist() == before.tolist()
        step(jnp.full(3, 2.0))


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_an_invalid_value_of_a_step_without_its_inputs_names_the_remedy(calls):
    w = mr.Variable(jnp.ones(3))

    @mr.function
    def step(x):
        w.assign(w + jnp.log(x))

    with jax.debug_infs(True):
        for _ in range(calls):
            step(jnp.ones(3))
        with pytest.raises(FloatingPointError, match=r"in a result .* of step\n(.*\n)* *remedy: .*donate=False"):
            step(jnp.zeros(3))
        with pytest.raises(LostStateError, match="FloatingPointError"):
            w.numpy()


@pytest.mark.parametrize("donate", [True, False])
def test_a_nan_of_a_jitted_function_in_a_step_is_named(donate):
    w = mr.Variable(jnp.ones(3))
    inner = jax.jit(lambda x: jax.nn.relu(jnp.where(x > 0, jnp.log(-x), 1.0)))
    step = mr.function(lambda x: w.assign(inner(w * x)), donate=donate)
    with jax.debug_nans(True):
        for _ in range(3):
            with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in log"):
                step(jnp.ones(3))
    assert w.numpy().tolist() == [1.0, 1.0, 1.0]


def test_an_infinity_of_a_step_that_donates_nothing_is_named():
    w = mr.Variable(jnp.zeros(3))
    step = mr.function(lambda x: w.assign(jnp.log(w + x)), donate=False)
    with jax.debug_infs(True):
        for _ in range(3):
            w.assign(jnp.zeros(3))
            step(jnp.ones(3))
        with pytest.raises(FloatingPointError, match=r"invalid value \(inf\) encountered in log"):
            step(jnp.zeros(3))
    assert w.numpy().tolist() == [0.0, 0.0, 0.0]
