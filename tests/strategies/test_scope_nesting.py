"""Leaving scopes out of order."""

from __future__ import annotations

import threading

import jax.numpy as jnp
import pytest

import mirrored as mr


@pytest.fixture
def strategy():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def test_leaving_twice_is_noticed(strategy):
    scope = strategy.scope()
    scope.__enter__()
    scope.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="Variable scope nesting error"):
        scope.__exit__(None, None, None)
    assert not mr.has_strategy()


def test_leaving_with_an_open_creator_scope_is_noticed_and_changes_nothing(strategy):
    scope = strategy.scope()
    scope.__enter__()
    with mr.variable_creator_scope(lambda make, **kwargs: make(**kwargs)):
        with pytest.raises(RuntimeError, match="Variable creator scope nesting error"):
            scope.__exit__(None, None, None)
        assert mr.get_strategy() is strategy
    scope.__exit__(None, None, None)
    assert not mr.has_strategy()


def test_leaving_the_outer_scope_first_is_noticed(strategy):
    outer, inner = strategy.scope(), strategy.scope()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="another scope inside it is still open"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert not mr.has_strategy()


def test_leaving_in_another_thread_is_noticed(strategy):
    scope, errors = strategy.scope(), []
    scope.__enter__()

    def leave():
        try:
            scope.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join(10)
    scope.__exit__(None, None, None)
    assert len(errors) == 1
    assert "another thread" in errors[0]


def test_a_tape_that_was_entered_inside_goes_on(strategy):
    scope, x = strategy.scope(), jnp.array(3.0)
    scope.__enter__()
    v = mr.Variable(2.0)
    with mr.GradientTape() as tape:
        scope.__exit__(None, None, None)
        y = v * x
    assert float(tape.gradient(y, v)) == 3.0


def test_a_scope_object_may_be_used_again(strategy):
    scope = strategy.scope()
    for _ in range(2):
        with scope as entered, scope:
            assert entered is strategy
    assert not mr.has_strategy()
