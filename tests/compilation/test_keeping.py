"""`function(donate=False)`: after a step that fails on the devices, variables have their old values."""

from __future__ import annotations

import functools
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


@jax.jit
def exhausting(x: Any) -> Any:
    """Fails on the devices, after it was dispatched: its arrays exceed the memory."""
    rows = jax.lax.broadcasted_iota(jnp.float32, (10**9, 10**9), 0)
    return jnp.sort(x + rows)[1, 1]


def failing(*variables: Any, donate: bool = False) -> Callable[[], Any]:
    def step() -> Any:
        wrong = exhausting(jnp.float32(1.0) + variables[0].sum())
        for variable in variables:
            variable.assign_add(jnp.full(3, wrong))

    return mr.function(step, donate=donate)


def counting(variable: Any) -> Callable[[], Any]:
    return mr.function(lambda: variable.assign_add(jnp.ones(3)), donate=False)


def repeated(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


def fails(step: Callable[[], Any]) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        repeated(step, 100)


def variables(*values: float) -> list[Any]:
    return [mr.Variable(jnp.full(3, value), name=f"v{place}") for place, value in enumerate(values)]


def values(*several: Any) -> list[float]:
    return [float(one.numpy()[0]) for one in several]


def test_a_call_that_finds_the_failure_leaves_the_old_values() -> None:
    first, second = variables(1.0, 2.0)
    fails(failing(first, second))
    assert values(first, second) == [1.0, 2.0]
    counting(first)()
    assert values(first, second) == [2.0, 2.0]


def test_without_the_option_the_values_are_lost() -> None:
    (one,) = variables(1.0)
    fails(failing(one, donate=True))
    with pytest.raises(LostStateError, match="its value was to be computed by a step that failed"):
        one.numpy()


@pytest.mark.parametrize(
    "read",
    [lambda v: v.numpy(), lambda v: v + 1, lambda v: v.read_value(), np.asarray],
    ids=["numpy", "+", "read_value", "NumPy"],
)
@pytest.mark.first(2)
def test_a_read_that_finds_the_failure_raises_its_error_once(read: Callable[[Any], Any]) -> None:
    one, other = variables(1.0, 2.0)
    step = failing(one, other)
    step()
    step()
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory") as caught:
        repeated(lambda: read(one), 10_000)  # a read does not wait for a step that still runs
    assert caught.value.__notes__ == ["v0 has its value from before the failed computation again"]
    assert values(one, other) == [1.0, 2.0]
    for _ in range(20):
        counting(one)()  # the failure is not reported again
    assert values(one, other) == [21.0, 2.0]


def test_steps_that_use_the_values_of_a_failed_one_are_undone_and_others_are_not() -> None:
    failed, used, other = variables(1.0, 2.0, 3.0)
    count = counting(other)
    use = mr.function(lambda: used.assign(failed + used), donate=False)
    count()
    failing(failed)()
    use()
    count()
    counting(failed)()
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        used.numpy()
    assert values(failed, used, other) == [1.0, 2.0, 5.0]


def test_a_value_that_was_assigned_after_the_failed_step_stays() -> None:
    failed, other = variables(1.0, 2.0)
    failing(failed, other)()
    failed.assign(jnp.full(3, 7.0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        other.numpy()
    assert values(failed, other) == [7.0, 2.0]


def test_a_step_under_a_tape_keeps_the_values_too() -> None:
    first, second = variables(1.0, 2.0)

    @functools.partial(mr.function, donate=False)
    def step(x: Any) -> None:
        first.assign_add(x * first)
        second.assign_add(x * second)

    with mr.GradientTape():
        step(exhausting(jnp.float32(1.0)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        second.numpy()
    assert values(first, second) == [1.0, 2.0]


def test_mirrored_variables_keep_their_values() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4)
    with strategy.scope():
        one = mr.Variable(jnp.full(3, 1.0), name="v")
        own = mr.Variable(jnp.zeros(3), synchronization="on_read", aggregation="sum", name="own")

    def replica() -> None:
        wrong = exhausting(one.sum())
        own.assign_add(jnp.full(3, wrong))
        one.assign_add(mr.get_replica_context().all_reduce("MEAN", jnp.full(3, wrong)))

    fails(mr.function(lambda: strategy.run(replica), donate=False))
    assert values(one, own) == [1.0, 0.0]


@pytest.mark.long
def test_old_values_are_freed_when_their_step_has_ended() -> None:
    (one,) = variables(1.0)
    count = counting(one)
    count()
    before = weakref.ref(one._array)
    count()
    jax.block_until_ready(one.read_value())
    count()
    jax.block_until_ready(one.read_value())
    count()
    gc.collect()
    assert before() is None


def test_a_variable_is_freed_although_its_step_was_noted() -> None:
    (one,) = variables(1.0)
    counting(one)()
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_the_program_may_donate_or_delete_the_results_of_steps() -> None:
    """Whether a step has ended is asked of its results. With JAX 0.10 `is_ready` of a deleted array is a crash."""
    (one,) = variables(1.0)
    step = mr.function(lambda: one.assign_add(jnp.ones(3)) * 2, donate=False)
    step().delete()
    assert values(one) == [2.0]
    jax.jit(lambda x: x + 1, donate_argnums=0)(step())
    step()
    assert values(one) == [4.0]


def test_a_variable_whose_array_the_program_has_deleted_raises_an_error() -> None:
    (one,) = variables(1.0)
    counting(one)()
    one.read_value().delete()
    with pytest.raises(RuntimeError, match="deleted"):
        one.read_value() + 1
    one.assign(jnp.ones(3))
    assert values(one) == [1.0]
