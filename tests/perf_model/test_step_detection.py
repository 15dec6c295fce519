"""Step detection finds the step of a program and times it."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.compilation.function import Function
from mirrored.errors import ArgumentError
from mirrored.perf_model import detect_step
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
