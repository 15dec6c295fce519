"""An interrupt inside a call of mirrored leaves this thread's context, and JAX's, as they were before the call."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from interrupts import acted_at
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


def test_a_call_ends_the_state_that_an_interrupt_outside_of_it_has_left() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:1])
    put_trace(None)  # as it is while JAX applies a primitive
    try:
        assert float(strategy.run(lambda: jnp.sqrt(jnp.float32(4.0)))) == 2.0
        assert is_eager()
    finally:
        thread_state()
