"""Step detection finds the step of a program and times it."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.compilation.function import Function
from mirrored.errors import ArgumentError
from mirrored.perf_model import TracedStep, detect_step
from perf_model.steps import program


def test_the_function_called_most_is_the_step_and_the_program_ends_early():
    calls = []

    @mr.function
    def once(x):
        return x + 1

    @mr.function
    def step(x):
        return x * 2

    def train():
        once(jnp.ones(2))
        for i in range(1000):
            calls.append(i)
            step(jnp.ones(3))

    before = Function.__call__
    found = detect_step(train, steps=4)
    assert Function.__call__ is before
    assert found.function is step
    assert len(calls) == 6  # two that warm up, four that are timed
    assert found.args[0].shape == (3,)
    assert 0 < found.dispatch_seconds <= found.step_seconds
    assert found.between_seconds >= 0


def test_short_steps_are_timed_for_a_while():
    assert len(watched(seconds=0.0)) == 5
    assert len(watched(seconds=0.1)) > 8


def watched(seconds):
    """The calls of a program whose step is short, until enough was seen."""
    calls = []

    @mr.function
    def step(x):
        return x + 1

    def train():
        for i in range(100_000):
            calls.append(i)
            step(jnp.ones(3))

    detect_step(train, steps=3, seconds=seconds)
    return calls


def test_a_program_that_ends_by_itself_has_been_seen_as_far_as_it_went():
    assert detect_step(program(2, calls=4), steps=50).step_seconds > 0


def batches_of(sizes, seconds=lambda size: 0.0):
    """A program that gives its step batches of these sizes."""

    def train():
        for size in sizes:
            time.sleep(seconds(size))
            doubled(jnp.ones((size, 3)))

    doubled = mr.function(lambda x: x * 2)
    return train


def test_arguments_and_times_are_those_of_the_most_common_signature():
    found = detect_step(batches_of([8, 8, 8, 8, 2] * 2, lambda size: 0.2 if size == 2 else 0.0), steps=50)
    assert found.args[0].shape == (8, 3)
    assert found.between_seconds < 0.1


def test_a_signature_is_timed_after_calls_of_its_own_that_warm_up():
    """A partial batch in the third call compiles a program of its own."""
    found = detect_step(batches_of([8, 8, 2, 8, 2, 8]), steps=50)
    assert found.args[0].shape == (8, 3)
    sizes = iter([*[8] * 6, *[2] * 100])
    assert detect_step(batches_of(sizes), steps=4).args[0].shape == (8, 3)
    assert len([*sizes]) == 100


@pytest.mark.long
def test_a_program_of_ever_different_shapes_ends_with_an_error():
    sizes = iter(range(1, 1000))
    with pytest.raises(ArgumentError, match="called 48 times, at most 1 times with the same shapes"):
        detect_step(batches_of(sizes), steps=1)
    assert next(sizes) == 49


def test_constants_and_returned_state_are_told_from_the_batch():
    @mr.function
    def step(state, scale, x):
        return state + (scale * x).sum()

    def train():
        state, scale = jnp.zeros(5), jnp.ones(3)
        for _ in range(6):
            state = step(state, scale, jnp.ones((4, 3)))

    found = detect_step(train, steps=4)
    assert found.differing - found.returned == {2}
    assert found.returned == {0}


@pytest.mark.parametrize("devices", [1, 2])
def test_the_step_of_a_function_that_takes_elements_is_the_compiled_run_in_it(devices):
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    data = mr.data.Dataset.from_tensor_slices(np.ones((64, 3), np.float32)).batch(4 * devices).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(data))
    with strategy.scope():
        total = mr.Variable(0.0)

    @mr.function
    def train_step(iterator):
        def replica(x):
            total.assign_add(mr.get_replica_context().all_reduce("SUM", x.sum()))
            return x.sum()

        return strategy.reduce("SUM", strategy.run(replica, args=(next(iterator),)), axis=None)

    found = detect_step(lambda: [train_step(iterator) for _ in range(100)], steps=4)
    assert found.function is not train_step
    step = TracedStep(found)
    assert (step.replicas, step.share) == (devices, 4)
    assert [one.group_size for one in step.work(8, 4).exchanges] == [8]


def test_errors_of_the_program_come_through():
    def train():
        raise ZeroDivisionError("mine")

    before = Function.__call__
    with pytest.raises(ZeroDivisionError, match="mine"):
        detect_step(train)
    assert Function.__call__ is before


@pytest.mark.parametrize(
    ("calls", "found"), [(0, "called no compiled function"), (2, "most-called compiled function was called 2 times")]
)
def test_a_program_without_a_step_is_refused(calls, found):
    with pytest.raises(ArgumentError, match=f"{found}.*\n.*rule.*at least 3 calls"):
        detect_step(program(1, calls=calls))


def test_times_and_arguments_of_a_call_with_several_steps_are_those_of_one_step():
    @mr.function(steps_per_call=4)
    def step(x, y):
        return x * 2 + y

    calls = []

    def train():
        for i in range(9):
            calls.append(i)
            time.sleep(0.02)
            step([(jnp.ones((8, 3)), jnp.zeros((8, 3))) for _ in range(4)])

    found = detect_step(train, steps=3)
    assert (len(calls), found.steps_per_call, found.kwargs) == (5, 4, {})
    assert [one.shape for one in found.args] == [(8, 3), (8, 3)]
    assert found.between_seconds >= 0.02 / 4
    assert TracedStep(found).share == 8


def test_arguments_are_converted_as_the_input_signature_declares():
    @mr.function(input_signature=[jax.ShapeDtypeStruct((4, 2), np.float32), jax.ShapeDtypeStruct((), np.float32)])
    def step(x, rate):
        return x.mean(0) * rate

    found = detect_step(lambda: [step(rate=0.5, x=[[1.0, 2.0]] * 4) for _ in range(4)], steps=1)
    assert [(one.shape, one.dtype) for one in found.args] == [((4, 2), "float32"), ((), "float32")]
    assert found.kwargs == {}
    assert TracedStep(found).share == 4
