"""Generator expressions and iterators in functions that AutoGraph converts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import mirrored.tf as tf


def summed(x):
    a = x
    values = (a * i for i in range(3))
    if x > 0:
        a = x * 10
    return sum(values)


def with_a_condition(x):
    a, low = x, 0
    values = (a * i for i in range(4) if i > low)
    if x > 0:
        a = x + 5
    else:
        a = x - 5
    total = tf.constant(0.0)
    for one in values:
        total += one
    return total


def nested(x):
    a = x
    values = ((a + i * j for j in range(2)) for i in range(2))
    if x > 0:
        a = x * 3
    return sum(sum(one) for one in values)


def with_a_second_iterable(x):
    step = 1
    values = (i + x * j for i in range(2) for j in (step, 2 * step))
    if x > 0:
        x = x * 2
    return sum(values)


def the_first_iterable_is_evaluated_at_once(x):
    a = x
    values = (one * 2 for one in [a, a + 1])
    if x > 0:
        a = x * 100
    return sum(values) + a


def in_a_lambda(x):
    a = x
    total = lambda: sum(a * i for i in range(3))  # noqa: E731
    if x > 0:
        a = x * 7
    return total()


def in_a_nested_function(x):
    a = x

    def total():
        return sum(a * i for i in range(3))

    if x > 0:
        a = x * 7
    return total()


def in_a_loop(x):
    a, total = x, tf.constant(0.0)
    for i in range(3):
        values = (a + j for j in range(2))
        if x > i:
            a = a * 2
        total += sum(values)
    return total


def after_a_while_loop(x):
    a, i = x, tf.constant(0)
    values = (a + j for j in range(2))
    while i < 3:
        a = a * 2
        i += 1
    return sum(values)


def in_a_method(x):
    class Model:
        scale = 2.0

        def __call__(self, x):
            values = (self.scale * x + a for a in (1.0, 2.0))
            if x > 0:
                self.scale = 3.0
            return sum(values)

    return Model()(x)


PROGRAMS: list[Callable[[Any], Any]] = [
    summed,
    with_a_condition,
    nested,
    with_a_second_iterable,
    the_first_iterable_is_evaluated_at_once,
    in_a_lambda,
    in_a_nested_function,
    in_a_loop,
    after_a_while_loop,
    in_a_method,
]


@pytest.mark.parametrize("value", [2.0, -2.0])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_generator_expression_reads_names_when_it_is_consumed(program, value):
    x = tf.constant(value)
    assert float(tf.function(program)(x)) == float(program(x))


@pytest.mark.parametrize("advance", [next, list, tuple, dict, sorted, max, any])
@pytest.mark.parametrize("make", [enumerate, lambda values: iter([(1, 2.0), (2, 3.0)])])
def test_an_iterator_that_a_branch_advances_is_reported_once(advance, make, caplog):
    def f(x):
        values = make([1.0, 2.0])
        if x > 0:
            advance(values)
        return x

    with caplog.at_level(logging.WARNING, "mirrored"):
        for _ in range(2):
            tf.function(f)(tf.constant(1.0))
    (record,) = caplog.records
    assert f"`{advance.__name__}` advances a" in record.getMessage()
    assert "test_autograph_generators.py" in record.getMessage()


def test_an_iterator_that_a_loop_in_a_branch_advances_is_reported(caplog):
    def f(x):
        values, total = iter([1.0, 2.0]), 0.0
        if x > 0:
            for one in values:
                total = total + one
        return total + x

    with caplog.at_level(logging.WARNING, "mirrored"):
        tf.function(f)(tf.constant(1.0))
    (record,) = caplog.records
    assert "`for` advances a list_iterator" in record.getMessage()


@pytest.mark.parametrize("decided", [True, False], ids=["in the branch", "by Python"])
def test_iterators_that_no_other_code_sees_are_not_reported(decided, caplog):
    def f(x):
        total = 0.0
        if x > 0 if decided else True:
            for i, one in enumerate([1.0, 2.0]):
                total = total + one * i
            total = total + sum(one for one in (1.0, 2.0)) + next(iter([1.0]))
        return total + x

    with caplog.at_level(logging.WARNING, "mirrored"):
        assert float(tf.function(f)(tf.constant(1.0))) == 7.0
    assert not caplog.records
