"""AutoGraph converts what decorators return, also with `functools.wraps`, which copies the attributes of a function."""

from __future__ import annotations

import functools

import pytest

import mirrored.tf as tf


def plain(function):
    def wrapper(*args):
        result = function(*args)
        if result > 0:
            return result * 2
        return result

    return wrapper


def with_wraps(function):
    @functools.wraps(function)
    def wrapper(*args):
        result = function(*args)
        if result > 0:
            return result * 2
        return result

    return wrapper


def with_update_wrapper(function):
    return functools.update_wrapper(plain(function), function)


def of_two(function):
    return with_wraps(with_wraps(function))


class WithCall:
    def __init__(self, function):
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, v):
        result = self._function(v)
        if result > 0:
            return result * 2
        return result


@tf.autograph.experimental.do_not_convert
def unconverted(function):
    return with_wraps(function)


DECORATORS = [plain, with_wraps, with_update_wrapper, of_two, WithCall, unconverted]


def body(v):
    if v > 1:
        return v - 1
    return v


def decorated_inside(decorator, x):
    @decorator
    def inner(v):
        if v > 1:
            return v - 1
        return v

    return inner(x)


def called_inside(decorator, x):
    def inner(v):
        if v > 1:
            return v - 1
        return v

    return decorator(inner)(x)


def lambda_inside(decorator, x):
    return decorator(lambda v: v - 1 if v > 1 else v)(x)


def function_of_the_module(decorator, x):
    return decorator(body)(x)


def in_a_branch(decorator, x):
    if x > -10:

        @decorator
        def inner(v):
            if v > 1:
                return v - 1
            return v

        y = inner(x)
    else:
        y = x
    return y


def wrapper_inside(decorator, x):
    def inner(v):
        if v > 1:
            return v - 1
        return v

    @functools.wraps(inner)
    def wrapper(v):
        result = decorator(inner)(v)
        if result > 3:
            return result - 3
        return result

    return wrapper(x)


FUNCTIONS = [decorated_inside, called_inside, lambda_inside, function_of_the_module, in_a_branch, wrapper_inside]


@pytest.mark.first(40)
@pytest.mark.parametrize("x", [3.0, 0.5, -1.0])
@pytest.mark.parametrize("decorator", DECORATORS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_wrappers_are_converted(function, decorator, x):
    compiled = tf.function(lambda value: function(decorator, value))
    assert float(compiled(tf.constant(x))) == float(function(decorator, tf.constant(x)))


def test_a_wrapper_with_the_name_of_a_lambda_is_converted():
    """It was parsed as a lambda if it was the first wrapper of its decorator."""

    def doubling(function):
        @functools.wraps(function)
        def wrapper(v, *, factor=2):
            result = function(v)
            if result > 0:
                return result * factor
            return result

        return wrapper

    made = tf.autograph.experimental.do_not_convert(doubling)(lambda v: v - 1)
    assert made.__name__ == "<lambda>"
    assert [float(tf.function(made)(tf.constant(x))) for x in (3.0, 0.5)] == [4.0, -0.5]
