"""Eager assignments of values whose computation fails on the device: variables have their old values afterwards.

JAX dispatches asynchronously, so the assignment is accepted before the failure is known.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import LostStateError
from mirrored.variables import former

FAILURE = pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory")


@jax.jit
def exhausting(x: Any) -> Any:
    """Fails on the devices, after it was dispatched: its arrays exceed the memory."""
    rows = jax.lax.broadcasted_iota(jnp.float32, (10**9, 10**9), 0)
    return jnp.sort(x + rows)[1, 1]


def wrong() -> Any:
    return jnp.full(3, 1.0) * exhausting(jnp.float32(1.0))


def made(layout: str) -> tuple[Any, Any, Any]:
    """Returns a strategy (or None) with a mirrored and a sync-on-read variable."""
    if layout == "plain":
        return None, mr.Variable(jnp.full(3, 1.0), name="v"), mr.Variable(jnp.full(3, 2.0), name="own")
    devices = ["CPU:0", "CPU:1"] if layout == "2 devices" else ["CPU:0"]
    strategy = mr.MirroredStrategy(devices, num_replicas=1 if layout == "1 replica" else 2)
    with strategy.scope():
        one = mr.Variable(jnp.full(3, 1.0), name="v", aggregation="MEAN")
        own = mr.Variable(jnp.full(3, 2.0), name="own", synchronization="on_read", aggregation="sum")
    return strategy, one, own


ASSIGN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "assign": lambda strategy, one, own: one.assign(wrong()),
    "assign_add": lambda strategy, one, own: one.assign_add(wrong(), read_value=False),
    "several": lambda strategy, one, own: (one.assign(wrong()), one.assign(one + 1.0), own.assign(wrong())),
    "sync-on-read": lambda strategy, one, own: own.assign(wrong()),
    "an optimizer": lambda strategy, one, own: mr.optimizers.SGD(0.1).apply_gradients([(wrong(), one)]),
    "an optimizer with slots": lambda strategy, one, own: mr.optimizers.Adam(0.1).apply_gradients([(wrong(), one)]),
}


def expect_old(one: Any, own: Any, before: list[Any]) -> None:
    for _ in range(3):
        try:
            found = [one.numpy(), own.numpy()]
            break
        except jax.errors.JaxRuntimeError:  # each independent failure is reported once
            continue
    np.testing.assert_array_equal(found, before)


@pytest.mark.parametrize("layout", ["plain", "1 replica", "2 on 1 device", "2 devices"])
@pytest.mark.parametrize("how", ASSIGN)
@pytest.mark.sampled(4)
def test_variables_have_their_old_values(how: str, layout: str) -> None:
    strategy, one, own = made(layout)
    before = [one.numpy(), own.numpy()]
    with FAILURE:
        ASSIGN[how](strategy, one, own)
        jax.block_until_ready([one.read_value(), own.read_value()])
        one.numpy(), own.numpy()
    expect_old(one, own, before)
    one.assign(jnp.zeros(3))
    np.testing.assert_array_equal(one.numpy(), np.zeros(3))


@pytest.mark.parametrize("layout", ["1 replica", "2 on 1 device", "2 devices"])
def test_an_eager_run_that_fails_later_leaves_the_old_values(layout: str) -> None:
    strategy, one, own = made(layout)
    before = [one.numpy(), own.numpy()]

    def replica() -> None:
        one.assign_add(wrong())
        own.assign(wrong())

    with FAILURE:
        strategy.run(replica)
        one.numpy()
    expect_old(one, own, before)


def test_a_compiled_step_that_finds_the_failure_leaves_the_old_values() -> None:
    _, one, own = made("plain")
    step = mr.function(lambda: own.assign_add(one), donate=False)
    with FAILURE:
        one.assign(wrong())  # raises if the failure is known by then
        for _ in range(100):
            step()
    assert [float(one.numpy()[0]), float(own.numpy()[0])] == [1.0, 2.0]


def test_an_optimizer_that_fails_has_its_old_counter_and_slots() -> None:
    _, one, _ = made("plain")
    optimizer = mr.optimizers.Adam(0.1)
    optimizer.apply_gradients([(jnp.ones(3), one)])
    before = [variable.numpy() for variable in (one, *optimizer.variables)]
    with FAILURE:
        optimizer.apply_gradients([(wrong(), one)])
        one.numpy()
    for variable, value in zip((one, *optimizer.variables), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_later_value_stays() -> None:
    _, one, own = made("plain")
    with FAILURE:
        own.assign(wrong())
        one.assign(jnp.full(3, 7.0))
        own.numpy()
    one.assign(jnp.full(3, 7.0))
    assert [float(one.numpy()[0]), float(own.numpy()[0])] == [7.0, 2.0]


def test_a_known_failure_is_raised_by_the_assignment() -> None:
    _, one, _ = made("plain")
    value = wrong()
    with FAILURE:
        value.block_until_ready()
    with FAILURE:
        one.assign(value)
        one.numpy()
    assert float(one.numpy()[0]) == 1.0


@pytest.mark.long
def test_old_values_are_freed_once_the_new_ones_are_read() -> None:
    _, one, _ = made("plain")
    former.forget_computed()
    for _ in range(3):
        old = weakref.ref(one.read_value())
        one.assign(jnp.sin(jnp.ones(3)) + one)
        one.numpy()
        gc.collect()
        assert old() is None


def test_many_pending_assignments_are_undone() -> None:
    variables = [mr.Variable(float(place), name=f"v{place}") for place in range(200)]
    value = exhausting(jnp.float32(2.0))
    with FAILURE:
        for variable in variables:
            variable.assign(value)
        variables[-1].numpy()
    assert [float(variable.numpy()) for variable in variables] == [float(place) for place in range(200)]


def test_a_deleted_array_is_stored_as_a_lost_value() -> None:
    """A Keras loop stores what it has donated to a failed step; its own error must be the one that is raised."""
    v, deleted = mr.Variable(jnp.full(3, 1.0), name="v"), jnp.full(3, 2.0)
    deleted.delete()
    v.store(deleted)
    v.lose("it was donated")
    with pytest.raises(LostStateError, match="it was donated"):
        v.numpy()
    v.assign(jnp.full(3, 4.0))
    assert v.numpy().tolist() == [4.0] * 3


def test_prng_keys_are_asked_whether_they_are_computed() -> None:
    """A step with ``donate=False`` that assigns only keys raised an AttributeError."""
    assert not former.has_failed(jax.random.key(0).block_until_ready(), waits=False)
