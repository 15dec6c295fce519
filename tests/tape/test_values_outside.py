"""A variable's value that a program got without the tape is a constant for the tape, though the tape reads the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr

LAYOUTS = {"alone": None, "1 replica": (1, 1), "folded": (1, 2), "2 devices": (2, 2), "2 devices, 4 replicas": (2, 4)}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def strategy(request: pytest.FixtureRequest) -> mr.MirroredStrategy | None:
    layout = request.param
    return layout and mr.MirroredStrategy(jax.devices()[: layout[0]], num_replicas=layout[1])


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def result_of(request: pytest.FixtureRequest, strategy: mr.MirroredStrategy | None) -> Callable[..., list[Any]]:
    """Runs a function of a new variable with the value 3 on every replica, and returns replica 0's results."""

    def result_of(fn: Callable[..., Any]) -> list[Any]:
        if strategy is None:
            v = mr.Variable(3.0)
            whole = lambda x: fn(v, x)  # noqa: E731
        else:
            with strategy.scope():
                v = mr.Variable(3.0)
            whole = lambda x: strategy.run(lambda x: fn(v, x), args=(x,))  # noqa: E731
        results = (mr.function(whole) if request.param else whole)(jnp.float32(2.0))
        first = lambda leaf: leaf if strategy is None else strategy.experimental_local_results(leaf)[0]  # noqa: E731
        return [leaf if leaf is None else float(first(leaf)) for leaf in results]

    return result_of


@pytest.mark.parametrize(
    "read", [lambda v: v.read_value(), jnp.asarray, lambda v: v + 0.0], ids=["read", "array", "sum"]
)
@pytest.mark.first(15)
def test_a_value_that_was_read_before_the_tape(result_of: Any, read: Any) -> None:
    def near(v: Any, x: Any) -> list[Any]:
        anchor = read(v)
        with mr.GradientTape(persistent=True) as tape:
            loss = x * v + 10.0 * (v - anchor) ** 2 + anchor * v
            other = anchor * 5.0
        return [tape.gradient(loss, v), tape.gradient(other, v)]

    assert result_of(near) == [2.0 + 3.0, None]


def test_a_value_that_was_read_while_the_tape_was_stopped(result_of: Any) -> None:
    def near(v: Any, x: Any) -> list[Any]:
        with mr.GradientTape() as tape:
            first = v * x
            with tape.stop_recording():
                anchor = v.read_value()
            loss = first + (v - anchor) ** 2 + anchor * 7.0
        return [tape.gradient(loss, v)]

    assert result_of(near) == [2.0]


@pytest.mark.parametrize("inside", [False, True], ids=["before the tape", "inside it"])
@pytest.mark.first(10)
def test_a_value_that_was_assigned(result_of: Any, inside: bool) -> None:
    def assigned(v: Any, x: Any) -> list[Any]:
        value = x * 4.0
        if not inside:
            v.assign(value)
        with mr.GradientTape(persistent=True) as tape:
            if inside:
                v.assign(value)
            square = v * v
            other = value * 5.0
            both = square + other
        return [tape.gradient(square, v), tape.gradient(other, v), tape.gradient(both, v)]

    assert result_of(assigned) == [16.0, None, 16.0]


def test_two_variables_with_one_assigned_value(result_of: Any, strategy: mr.MirroredStrategy | None) -> None:
    with strategy.scope() if strategy else contextlib.nullcontext():
        w = mr.Variable(0.0)

    def assigned(v: Any, x: Any) -> list[Any]:
        value = x * 4.0
        v.assign(value)
        w.assign(value)
        with mr.GradientTape(persistent=True) as tape:
            loss = 3.0 * v + 5.0 * w
        return [tape.gradient(loss, v), tape.gradient(loss, w)]

    assert result_of(assigned) == [3.0, 5.0]


def test_an_argument_that_was_assigned_and_is_watched(result_of: Any) -> None:
    def assigned(v: Any, x: Any) -> list[Any]:
        v.assign(x)
        with mr.GradientTape(persistent=True) as tape:
            tape.watch(x)
            loss = 3.0 * v + 5.0 * x
        return [tape.gradient(loss, v), tape.gradient(loss, x)]

    assert result_of(assigned) == [3.0, 5.0]


@pytest.mark.first(3)
def test_nested_tapes(result_of: Any) -> None:
    def second(v: Any, x: Any) -> list[Any]:
        anchor = v.read_value()
        with mr.GradientTape() as outer:
            with mr.GradientTape() as inner:
                loss = v**3 + anchor**3 + anchor * v
            gradient = inner.gradient(loss, v)
        return [gradient, outer.gradient(gradient, v)]

    assert result_of(second) == [27.0 + 3.0, 18.0]


def test_a_tape_reads_a_variable_once(result_of: Any) -> None:
    def twice(v: Any, x: Any) -> list[Any]:
        with mr.GradientTape() as tape:
            loss = v * v + v.read_value() * x
        return [tape.gradient(loss, v)]

    assert result_of(twice) == [8.0]
