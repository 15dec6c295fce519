"""Logical operators and conditions of `tf.function` over tensors that operations compute from constants.

Such a tensor is traced, but its value is known; Python's own operators refuse it.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

import mirrored.tf as tf


def not_in_if(x):
    n = tf.constant(6)
    if not n % 2 == 0:
        return x
    return -x


def not_in_an_expression(x):
    d = tf.reduce_all(tf.zeros((3,), tf.bool))
    return x if not d else -x


def not_returned(x):
    d = tf.reduce_all(tf.zeros((3,), tf.bool))
    return not d


def not_not(x):
    return not not tf.constant(1) + 1


def not_a_comparison_chain(x):
    n = tf.constant(6) + 1
    return x if not 0 < n < 5 else -x


def not_all_done(x):
    done, steps = tf.zeros_like(x, dtype=tf.bool), tf.constant(0)
    while not tf.reduce_all(done):
        done = tf.logical_or(done, tf.cast(steps, tf.float32) >= x)
        steps += 1
    return steps


def a_flag(x):
    done, n = tf.constant(False), tf.constant(0)
    while not done:
        n += 1
        done = n > 3
    return n


def and_not(x):
    done, n = tf.zeros((2,), tf.bool), 0
    while n < 4 and not tf.reduce_all(done):
        x, n = x + 1.0, n + 1
        done = x > 3.0
    return x


def not_or(x):
    done, n = tf.zeros((3,), tf.bool), tf.constant(0)
    while not (tf.reduce_all(done) or n >= 10):
        done = tf.logical_or(done, tf.equal(n, 2))
        n += 1
    return n


def not_then_continue(x):
    total = tf.constant(0.0)
    for i in tf.range(5):
        if not tf.equal(tf.constant(4) % 2, 0) or not i > 1:
            continue
        total += x[0]
    return total


def asserted(x):
    ones = tf.ones((3,)) * 2
    assert tf.reduce_all(ones > 0), "negative"
    assert not tf.reduce_any(ones < 0)
    assert 0 < tf.reduce_sum(ones) < 10
    return x


def in_a_tuple(x):
    return x if tf.constant(5) + 1 in (1, 6) else -x


def not_in_a_list(x):
    n = tf.constant(5) + 1
    return x if n not in [1, n + 1] and n in [n] and "b" not in "ac" and 1 in {1: 2} else -x


def in_evaluates_its_left_operand_first(x):
    seen = []
    found = seen.append("left") in [seen.append("right")]
    return x if found else -x, seen == ["left", "right"]


def in_comprehensions(x):
    n = tf.constant(1) + 1
    return x * sum([i for i in range(4) if not n == i if n != 0]), {i for i in (1, 2, 3) if i > n}


def any_and_all(x):
    n = tf.constant(1) + 1
    return any([n > 2, n > 1]), any(n > i for i in (2, 3)), all((n > 1, n > 0)), all([]), not any([n > 2])


def numbers(x):
    n = tf.constant(1.0) + 1
    return x * int(n), x * float(n), bool(n), bool(n - 2), max(n, 1.0), min(n, 3.0), sorted([3, 1])


def a_range_with_a_known_step(x):
    total, step = tf.constant(0), tf.constant(1) + 1
    for i in range(0, 7, step):
        total += i
    for i in tf.range(0, tf.cast(x[0], tf.int32), step):
        total += i
    return total


FUNCTIONS = [one for name, one in list(globals().items()) if getattr(one, "__module__", None) == __name__]


@pytest.mark.first(9)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_the_results_are_those_of_python(function):
    x = tf.constant([3.0, 1.0])
    compiled, expected = tf.function(function)(x), function(x)
    if not isinstance(expected, tuple):
        compiled, expected = (compiled,), (expected,)
    for one, other in zip(compiled, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_variables_that_the_function_has_assigned():
    v = tf.Variable(5.0)

    @tf.function
    def f(x):
        v.assign(tf.constant(0.0))
        return x if not v else -x, v or x, v and x

    assert [float(one) for one in f(tf.constant(2.0))] == [2.0, 2.0, 0.0]


def test_a_wrong_assertion_raises_its_message():
    def f(x):
        assert not tf.reduce_all(tf.ones((2,)) > 0), "all are positive"
        return x

    with pytest.raises(AssertionError, match="all are positive"):
        tf.function(f)(tf.constant(1.0))


def test_not_of_a_traced_tensor_is_a_tensor():
    def f(x):
        known = tf.zeros((2,), tf.bool) | tf.constant([True, False])
        return not known, not x > 1, (not known[0]).dtype == tf.bool

    known, unknown, is_bool = tf.function(f)(tf.constant([1.0, 2.0]))
    assert (np.asarray(known).tolist(), np.asarray(unknown).tolist()) == ([False, True], [True, False])
    assert is_bool


def test_a_condition_of_several_elements_is_refused():
    def f(x):
        while not x > 5:
            x = x + 1
        return x

    with pytest.raises(ValueError, match="more than one element is ambiguous"):
        tf.function(f)(tf.constant([1.0, 2.0]))


def test_a_gradient_through_a_loop_with_not():
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            i, y = tf.constant(0), x
            while not i >= 3:
                y, i = y * 2.0, i + 1
        return tape.gradient(y, x)

    assert float(tf.function(f)(tf.constant(3.0))) == 8.0


def test_python_containers_decide_what_they_contain():
    class Odd(list):
        def __contains__(self, value):
            return value % 2 == 1

    assert tf.function(lambda x: x if 3 in Odd() and 2 not in Odd([2]) else -x)(tf.constant(1.0)) == 1.0


def in_list(x):
    return x in [1, 2, 3]


def any_of(x):
    return any([x > 1, x > 2])


def comprehension(x):
    return [k for k in (1, 2) if x > k]


@pytest.mark.parametrize("function", [in_list, any_of, comprehension])
def test_an_error_names_the_conditions_that_stay_python(function):
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        tf.function(function)(tf.constant(2))
    assert any("AutoGraph does not convert `in`" in note for note in caught.value.__notes__)
