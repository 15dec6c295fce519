"""Per-replica values whose components are not arrays of one shape run eagerly in compiled functions, however made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError, LossScaleWarning, ValuesError

ROWS = np.arange(5, dtype=np.float32)
VALUES = {
    "arrays": [ROWS[:3], ROWS[3:]],
    "an empty one": [jnp.asarray(ROWS), jnp.zeros(0)],
    "a number": [1.0, ROWS],
    "a number and no rows": [1.0, ROWS[:0]],
    "None": [None, ROWS],
    "strings": ["ab", "c"],
    "lists": [[1.0, 2.0], [3.0]],
    "lists of lists": [[[1.0], [2.0, 3.0]], [[1.0], [2.0, 3.0]]],
    "lists of strings": [["a"], ["b"]],
    "dicts": [{"x": ROWS[:3]}, {"x": ROWS[3:]}],
    "keys": [jax.random.split(jax.random.key(0), 2), jax.random.key(1)],
}
values = pytest.mark.parametrize("components", VALUES.values(), ids=VALUES)


@pytest.fixture(params=[1, 2], ids=["2x1", "1x2"])
def strategy(request: pytest.FixtureRequest) -> mr.MirroredStrategy:
    return mr.MirroredStrategy([f"CPU:{device}" for device in range(request.param)], num_replicas=2)


def size(value: Any) -> Any:
    """The number of leaves' elements, of any component."""
    return jnp.float32(sum(len(one) if isinstance(one, str) else np.size(one) for one in jax.tree.leaves(value)))


def total(strategy: mr.MirroredStrategy) -> Callable[..., Any]:
    return lambda value: strategy.reduce("SUM", strategy.run(size, args=(value,)), axis=None)


@pytest.mark.first(30)
@pytest.mark.parametrize("in_scope", [False, True])
@pytest.mark.parametrize("placed", [False, True])
@values
def test_the_call_runs_eagerly(
    strategy: mr.MirroredStrategy,
    components: list[Any],
    placed: bool,
    in_scope: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Outside of scopes a value without devices was refused, and non-arrays raised an `AttributeError` elsewhere."""
    where = strategy.device_assignment if placed else None
    run = total(strategy)
    step = mr.function(run)
    with caplog.at_level(logging.WARNING, logger="mirrored"), strategy.scope() if in_scope else nullcontext():
        for _ in range(3):
            value = mr.PerReplica(components, where)
            assert float(step(value)) == float(run(value))
    assert step.has_met_ragged
    assert len([one for one in caplog.messages if "last_batch='pad'" in one]) == 1


@pytest.mark.first(11)
@values
def test_a_compiled_replica_function_and_values_in_structures(
    strategy: mr.MirroredStrategy, components: list[Any]
) -> None:
    value, step = mr.PerReplica(components), mr.function(size)
    alone = strategy.experimental_local_results(strategy.run(size, args=(value,)))
    for _ in range(2):
        assert strategy.experimental_local_results(strategy.run(step, args=(value,))) == alone
        assert strategy.experimental_local_results(strategy.run(step, kwargs={"value": [value]})) == alone


@pytest.mark.first(8)
@values
def test_values_that_the_function_makes_or_closes_over(strategy: mr.MirroredStrategy, components: list[Any]) -> None:
    value = mr.PerReplica(components, strategy.device_assignment)
    run = total(strategy)
    assert float(mr.function(lambda: run(value))()) == float(run(value))
    assert float(mr.function(lambda: run(mr.PerReplica(components)))()) == float(run(value))
    same = mr.function(lambda: value)()
    assert len(same.values) == 2


def test_lists_of_one_shape_are_arrays_of_a_compiled_run(strategy: mr.MirroredStrategy) -> None:
    step = mr.function(total(strategy))
    assert float(step(mr.PerReplica([[1.0, 2.0], (3.0, ROWS[0])]))) == 4.0
    assert step.trace_count == 1


def test_equal_components_are_compiled_before_and_after(strategy: mr.MirroredStrategy) -> None:
    step = mr.function(total(strategy))
    for rows in (2, 3, 2, 3):
        assert float(step(mr.PerReplica([ROWS[:2], ROWS[:rows]]))) == 2 + rows
    assert step.trace_count == 1


@pytest.mark.parametrize("is_argument", [True, False])
def test_a_trace_that_is_given_up_has_no_effects(strategy: mr.MirroredStrategy, is_argument: bool) -> None:
    """One of the eager calls only: not of the trace that precedes the first one, nor of a trace at each call."""
    calls: list[int] = []
    generator = np.random.default_rng(0)
    variable = mr.Variable(0.0)

    class Counter:
        count = 0

    counter = Counter()

    captured = mr.PerReplica([ROWS[:3], ROWS[3:]])

    def step(value: Any) -> Any:
        value = value if is_argument else captured
        calls.append(len(calls))
        counter.count += 1
        variable.assign_add(1.0)
        drawn = generator.random()
        try:
            return strategy.reduce("SUM", strategy.run(size, args=(value,)), axis=None), drawn
        except Exception as error:  # it must not handle what ends the trace
            raise AssertionError from error

    compiled, expected = mr.function(step), np.random.default_rng(0)
    for number in range(1, 4):
        assert compiled(mr.PerReplica([ROWS[:3], ROWS[3:]]) if is_argument else 0) == (5.0, expected.random())
        assert (len(calls), counter.count, float(variable)) == (number, number, number)


def test_variables_that_the_first_call_creates(strategy: mr.MirroredStrategy) -> None:
    made: list[Any] = []

    def replica(rows: Any) -> Any:
        return jnp.sum(rows) * made[0]

    def step(value: Any) -> Any:
        if not made:
            with strategy.scope():
                made.append(mr.Variable(2.0))
        return strategy.reduce("SUM", strategy.run(replica, args=(value,)), axis=None)

    compiled = mr.function(step)
    assert [float(compiled(mr.PerReplica([ROWS[:3], ROWS[3:]]))) for _ in range(2)] == [20.0, 20.0]
    assert float(compiled(mr.PerReplica([ROWS[:2], ROWS[3:]]))) == 16.0
    assert len(made) == 1


def test_an_iterator_that_the_trace_has_advanced_is_refused(strategy: mr.MirroredStrategy) -> None:
    numbers, run = iter(range(9)), total(strategy)
    with pytest.raises(ArgumentError, match="a Python iterator"):
        mr.function(lambda value: run(value) + next(numbers))(mr.PerReplica([ROWS[:3], ROWS[3:]]))


def test_gradients_and_loss_scales_are_those_of_an_eager_step(strategy: mr.MirroredStrategy) -> None:
    with strategy.scope():
        weight = mr.Variable(1.0)

    def replica(rows: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(rows * weight)
        return tape.gradient(loss, weight)

    step = mr.function(lambda x: strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None))
    assert float(step(mr.PerReplica([ROWS[:3], ROWS[3:]]))) == 2.0

    optimizer = mr.optimizers.SGD(0.1)

    def wrong(rows: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = jnp.mean(rows * weight)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    with pytest.warns(LossScaleWarning):
        mr.function(lambda x: strategy.run(wrong, args=(x,)))(mr.PerReplica([ROWS[:3], ROWS[3:]]))


@pytest.mark.parametrize("where", ["lower", "get_concrete_function", "steps_per_call"])
@pytest.mark.parametrize("is_argument", [False, True])
def test_what_needs_a_program_is_refused(strategy: mr.MirroredStrategy, where: str, is_argument: bool) -> None:
    value, run = mr.PerReplica([ROWS[:3], ROWS[3:]]), total(strategy)
    args = (value,) if is_argument else (jnp.ones(2),)
    step = mr.function(
        run if is_argument else lambda x: run(value), steps_per_call=2 if where == "steps_per_call" else None
    )
    with pytest.raises(ArgumentError, match="batches of equal shape have a program"):
        step([args, args]) if where == "steps_per_call" else getattr(step, where)(*args)


def test_functions_inside_functions_run_eagerly_together(strategy: mr.MirroredStrategy) -> None:
    inner = mr.function(total(strategy))
    outer = mr.function(lambda value: inner(value) + 1)
    for _ in range(2):
        assert float(outer(mr.PerReplica([ROWS[:3], ROWS[3:]]))) == 6.0


def test_a_value_of_another_number_of_replicas_is_refused(strategy: mr.MirroredStrategy) -> None:
    step = mr.function(total(strategy))
    with pytest.raises(ValuesError, match="3 components"):
        step(mr.PerReplica([ROWS[:3], ROWS[3:], ROWS]))


def test_components_of_several_dtypes_are_refused(strategy: mr.MirroredStrategy) -> None:
    step = mr.function(total(strategy))
    with pytest.raises(ValuesError, match=r"^PerReplica: components of dtypes float32, int32"):
        step(mr.PerReplica([jnp.ones(2), jnp.ones(2, int)]))
