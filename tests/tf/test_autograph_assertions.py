"""`assert` in code that AutoGraph has converted."""

from __future__ import annotations

import logging

import jax
import pytest

import mirrored.tf as tf


def of_a_statement(x):
    assert x > 0, f"not positive, of shape {x.shape}"
    return x


def of_a_branch(x):
    if x < 5:
        y = x * 2
        assert y > 0, f"not positive, of shape {y.shape}"
    else:
        y = x
    return y


def of_a_loop(x):
    for i in tf.range(3):
        assert x + tf.cast(i, tf.float32) > 2, f"not positive, of shape {x.shape}"
    return x


def of_operands(x):
    assert x > 0 or x < -9, f"not positive, of shape {x.shape}"
    return x


def of_a_callee(x):
    return of_a_statement(x) + 1


@pytest.fixture
def errors(caplog):
    """Returns a function that calls a function and returns the errors that the compiled program logs."""

    def call(function, *args):
        caplog.clear()
        with caplog.at_level(logging.ERROR, "mirrored"):
            jax.block_until_ready(function(*args))
            jax.effects_barrier()
        return caplog.messages

    return call


@pytest.mark.parametrize(
    "function", [of_a_statement, of_a_branch, of_a_loop, of_operands, of_a_callee], ids=lambda one: one.__name__
)
def test_an_assertion_of_a_traced_tensor_is_checked_at_run_time(function, errors):
    compiled = tf.function(function)
    assert errors(compiled, tf.constant(6.0)) == []
    messages = errors(compiled, tf.constant(-1.0))
    assert len(messages) == (3 if function is of_a_loop else 1)
    assert all("failed in compiled code: not positive, of shape ()" in one for one in messages)


def test_an_assertion_in_a_replica_is_checked_at_run_time(errors):
    strategy = tf.distribute.MirroredStrategy(jax.devices()[:2])
    compiled = tf.function(lambda x: strategy.run(of_a_statement, args=(x,)))
    assert errors(compiled, tf.constant(1.0)) == []
    assert len(errors(compiled, tf.constant(-1.0))) == 2


@pytest.mark.parametrize("message", [False, True])
def test_the_message_names_the_line(message, errors):
    def without(x):
        assert x > 0
        return x

    def of_a_tensor(x):
        assert x > 0, x
        return x

    function = of_a_tensor if message else without
    (found,) = errors(tf.function(function), tf.constant(-1.0))
    line = function.__code__.co_firstlineno + 1
    assert found == f"assert ({__file__}:{line}) failed in compiled code: the condition must be True"


def test_a_known_condition_raises_while_tracing():
    asked = []

    @tf.function
    def step(x, limit):
        assert limit < 3, asked.append(limit) or "too large"
        return x

    step(tf.constant(1.0), 2)
    assert asked == []
    with pytest.raises(AssertionError, match="too large"):
        step(tf.constant(1.0), 3)


def test_an_assertion_of_several_elements_is_ambiguous_as_in_python():
    with pytest.raises(ValueError, match="truth value of an array with more than one element"):
        tf.function(of_a_statement)(tf.constant([1.0, 2.0]))
