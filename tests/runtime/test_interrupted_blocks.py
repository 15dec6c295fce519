"""An interrupt where the entry or exit of a block begins leaves the thread's state as it was before the operation.

CPython runs signal handlers where a Python function begins: an exception that is raised where `__exit__` begins
skips it. Blocks that only a user's ``with`` statement contains, such as ``with GradientTape()``, cannot be ended then.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from interrupts import SOURCE
from mirrored._jax.traces import current_trace
from mirrored.data import Dataset
from mirrored.runtime.ambient import thread

tf = pytest.importorskip("mirrored.tf")
Operation = Callable[[], object]


def state() -> tuple[Any, Any, dict[Any, Any]]:
    """The state of this thread that blocks change."""
    return thread.current, current_trace(), dict(contextvars.copy_context().items())


def outcome(make: Callable[[], Operation], place: int) -> tuple[bool, bool]:
    """Interrupts an operation at the n-th entry into an entry or exit of a block, in a thread of its own.

    Returns:
        Whether it was interrupted, and whether the thread's state is the same as before.
    """
    found: list[tuple[bool, bool]] = []

    def interrupted() -> None:
        operation = make()
        operation()
        before, left = state(), place

        def trace(frame: FrameType, event: str, argument: object) -> None:
            nonlocal left
            code = frame.f_code
            if code.co_filename.startswith(SOURCE) and code.co_name in ("__enter__", "__exit__", "close"):
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            sys.settrace(trace)
            try:
                operation()
            finally:
                sys.settrace(None)  # before the exit of `suppress`, which is traced, too
        found.append((left < 0, state() == before))

    one = threading.Thread(target=interrupted)
    one.start()
    one.join(60)
    assert found, "the thread hangs or has raised an exception"
    return found[0]


def pipeline(dataset: Dataset) -> Operation:
    iterator = iter(dataset)
    return lambda: next(iterator)


def distributed() -> Operation:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = Dataset.range(12).map(lambda x: x + 1).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    return lambda: next(iterator)


def eager_step() -> Operation:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w, optimizer = mr.Variable(jnp.ones(2)), mr.optimizers.Adam(0.1)

    def replica() -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(w * w)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    return lambda: strategy.reduce("SUM", strategy.run(replica), axis=None)


def new_function() -> Operation:
    v = mr.Variable(1.0)
    return lambda: mr.function(lambda: v.assign_add(1.0))()


def under_tape(body: Callable[[Any, mr.GradientTape], object]) -> Callable[[], Operation]:
    """An operation whose tape is closed outside of it, as only the user's block can end itself."""

    def make() -> Operation:
        w = mr.Variable(jnp.ones(2))
        tape = mr.GradientTape(persistent=True)
        tape.__enter__()
        return lambda: body(w, tape)

    return make


@tf.custom_gradient
def doubled(x: Any) -> Any:
    return x * 2.0, lambda g: g * 3.0


OPERATIONS: dict[str, Callable[[], Operation]] = {
    "map": lambda: pipeline(Dataset.range(9).map(lambda x: x + int(tf.random.uniform((), 0, 9, dtype=tf.int32)))),
    "filter": lambda: pipeline(Dataset.range(9).filter(lambda x: x >= 0)),
    "flat_map": lambda: pipeline(Dataset.range(9).flat_map(lambda x: Dataset.range(x + 1).map(lambda y: y))),
    "scan": lambda: pipeline(Dataset.range(9).scan(np.int64(0), lambda total, x: (total + x, total))),
    "distributed": distributed,
    "new function": new_function,
    "jacobian": under_tape(lambda w, tape: tape.jacobian(w * w, w)),
    "jit under a tape": under_tape(lambda w, tape: jax.jit(lambda x: jnp.sum(x * w.read_value()))(w * 1.0)),
    "scan under a tape": under_tape(lambda w, tape: jax.lax.scan(lambda c, _: (c * w, None), w * 1.0, None, length=2)),
    "custom gradient": under_tape(lambda w, tape: doubled(w * 1.0)),
    "recompute": under_tape(lambda w, tape: tf.recompute_grad(lambda x: x * w)(jnp.ones(2))),
    "variable": lambda: lambda: mr.Variable(1.0),
    "eager step": eager_step,
    "gradient": under_tape(lambda w, tape: tape.gradient(w * w, w)),
}


@pytest.mark.timeout(300)
@pytest.mark.first(5)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_state_of_the_thread_is_as_before_the_operation(name: str) -> None:
    """A dataset's function left its random numbers in place for ever, and an eager step the strategy's scope."""
    changed, place, is_interrupted = [], 0, True
    while is_interrupted and place < 150:
        is_interrupted, is_same = outcome(OPERATIONS[name], place)
        if not is_same:
            changed.append(place)
        place += 1
    assert changed == []
    assert place > 1


def entering_and_ending(block: Callable[[], contextlib.AbstractContextManager[object]]) -> Operation:
    """An operation that enters and ends a user's block."""

    def operation() -> None:
        with block():
            pass

    return operation


@pytest.mark.parametrize(
    "block",
    [lambda: tf.name_scope("a"), lambda: mr.variable_creator_scope(lambda create, **options: create(**options))],
    ids=["name_scope", "variable_creator_scope"],
)
def test_no_block_keeps_its_state_once_the_traceback_is_dropped(
    block: Callable[[], contextlib.AbstractContextManager[object]],
) -> None:
    """A block inside kept the creator, and the end of a strategy's scope around them raised ContextError."""
    changed, place, is_interrupted = [], 0, True
    while is_interrupted:
        is_interrupted, is_same = outcome(lambda: entering_and_ending(block), place)
        if not is_same:
            changed.append(place)
        place += 1
    assert changed == []
    assert place > 2
