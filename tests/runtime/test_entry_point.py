"""An interrupt inside a call of mirrored leaves this thread's context, and JAX's, as they were before the call."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
import mirrored.tf as tf
from interrupts import acted_at, interrupted_in
from mirrored._jax.traces import is_eager, put_trace, thread_state
from mirrored.runtime import ambient as ambient_module
from mirrored.runtime.ambient import ambient

# Where thread-local state is replaced: JAX's current trace, the context, and the blocks that do it.
FILES = {inspect.getfile(one) for one in (jax.extend.core.Primitive, ambient_module, contextlib)}


def interrupt() -> None:
    raise KeyboardInterrupt


def check_everywhere(call: Callable[[], Any], stride: int) -> None:
    call()
    here = ambient()
    for event_number in itertools.count(0, stride):
        held = None
        try:
            came, _ = acted_at(event_number, interrupt, call, FILES)
        except KeyboardInterrupt as error:
            held, came = error, True  # as a notebook does: it keeps the frames, and with them unfinished generators
        assert ambient() == here, event_number
        assert float(jnp.sqrt(jnp.float32(4.0))) == 2.0, event_number
        del held
        assert ambient() == here, event_number
        if not came:
            break
    assert event_number > 0


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_an_interrupt_in_a_run(kind: str, replicas: int) -> None:
    strategy, x = mr.MirroredStrategy(jax.devices()[:1], num_replicas=replicas), jnp.ones(3)
    with strategy.scope():
        w = mr.Variable(x)

    def replica_step(x: jax.Array) -> jax.Array:
        with mr.GradientTape() as tape:
            loss = (w.value() * x).sum()
        w.assign_sub(mr.get_replica_context().all_reduce("SUM", tape.gradient(loss, w)))
        return loss

    def step() -> Any:
        return strategy.run(replica_step, args=(x,))

    # A prime: the events repeat.
    check_everywhere(step if kind == "eager" else mr.function(step), 29 if kind == "eager" else 1)


def test_what_is_outside_of_a_run() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        w = mr.Variable(ones := jnp.ones(3))
    optimizer = mr.optimizers.SGD(0.1)
    with mr.GradientTape(persistent=True) as tape:
        loss = (w.value() ** 2).sum()
    per_replica = strategy.run(lambda: w.value() * 2)
    check_everywhere(lambda: tape.gradient(loss, w), 7)
    check_everywhere(lambda: strategy.reduce("SUM", per_replica, axis=None), 7)
    check_everywhere(lambda: optimizer.apply_gradients([(ones, w)]), 29)


def _in_a_tape(kind: type[mr.GradientTape]) -> None:
    with kind() as tape:
        tape.watch(jnp.ones(3))
        with tape.stop_recording():
            pass


def _in_a_forward_accumulator() -> None:
    with tf.autodiff.ForwardAccumulator(x := jnp.ones(3), x):
        pass


def _in_scopes(strategy: mr.Strategy) -> None:
    with strategy.scope(), tf.init_scope():
        pass


def _in_an_operation() -> None:
    x = jnp.ones(3)
    with mr.GradientTape() as tape:
        tape.watch(x)
        before = _state()
        try:
            jax.nn.relu(x * x).sum()
        finally:
            assert _state() == before


def _state() -> tuple[Any, ...]:
    return ambient(), *thread_state()


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", ["tape", "accumulator", "scopes", "operation"])
def test_an_interrupt_at_the_entry_or_exit_of_a_block(kind: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    blocks = {
        "tape": lambda: _in_a_tape(mr.GradientTape),
        "accumulator": _in_a_forward_accumulator,
        "scopes": lambda: _in_scopes(strategy),
        "operation": _in_an_operation,
    }
    block = blocks[kind]
    block()
    before, held = _state(), []
    for place in itertools.count():
        held.append(interrupted_in(place, block))  # as a notebook does: with the frames, also unfinished generators
        assert _state() == before, held[-1]
        if held[-1] is None:
            break
    held.clear()
    gc.collect()
    assert _state() == before
    assert place > 20


def test_a_call_ends_the_state_that_an_interrupt_outside_of_it_has_left() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:1])
    put_trace(None)  # as it is while JAX applies a primitive
    try:
        assert float(strategy.run(lambda: jnp.sqrt(jnp.float32(4.0)))) == 2.0
        assert is_eager()
    finally:
        thread_state()
