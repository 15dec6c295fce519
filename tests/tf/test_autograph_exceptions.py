"""Values that converted code reads after exceptions, after jumps out of `try`, and in earlier lambda functions."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import mirrored.tf as tf


class Swallowing:
    """A context manager that suppresses all exceptions."""

    def __enter__(self) -> Swallowing:
        return self

    def __exit__(self, *_: object) -> bool:
        return True


class Failing:
    """A context manager whose exit raises an error."""

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        raise KeyError("exit")


def missing() -> Any:
    return {}["q"]


# Right: the exception does not depend on a tensor, and the name that the branch assigns is read after it.


def with_a_reassignment_after_it(x):
    y = x
    try:
        if x > 3:
            y = x * 2
        missing()
        y = x * 3
    except KeyError:
        pass
    return y


def with_the_reassignment_raising(x):
    y = x
    try:
        if x > 3:
            y = x * 2
        y = missing()
    except KeyError:
        pass
    return y


def with_a_manager_that_suppresses(x):
    y = x
    with contextlib.suppress(KeyError):
        if x > 3:
            y = x * 2
        missing()
        y = x * 3
    return y


def with_a_manager_within_a_branch(x):
    y = x
    if x > 1:
        with Swallowing():
            if x > 3:
                y = x * 2
            missing()
            y = 0
    return y


def with_an_explicit_raise_at_the_end(x):
    y = x
    with contextlib.suppress(KeyError):
        if x > 3:
            y = x * 2
        raise KeyError
    return y  # type: ignore[unreachable]


def with_a_handler_that_returns(x):
    y = x
    try:
        if x > 3:
            y = x * 2
        missing()
        y = 0
    except KeyError:
        return y
    return 7


def with_a_handler_outside_of_a_try(x):
    y = x
    try:
        try:
            if x > 3:
                y = x * 2
            missing()
            y = 0
        except IndexError:
            y = 1
    except KeyError:
        y = y + 1
    return y


def with_finally(x):
    y = x
    z = 0
    try:
        try:
            if x > 3:
                y = x * 2
            missing()
            y = 0
        finally:
            z = y
    except KeyError:
        pass
    return z * 100 + y


def with_a_loop_of_the_program(x):
    y = x
    try:
        for i in range(x):
            y = i * 2
        missing()
        y = 0
    except KeyError:
        pass
    return y


def with_a_while_loop(x):
    y = x
    i = 0
    try:
        while i < x:
            i = i + 1
            y = i * 3
        missing()
        y = 0
    except KeyError:
        pass
    return y


def with_a_python_branch(x):
    y = x
    try:
        if len("ab") == 2:
            y = x * 2
            missing()
        y = x * 3
    except KeyError:
        return y
    return 7


def with_other_types_that_are_not_read(x):
    y: Any = None
    try:
        if x > 3:
            h = x * 2
            y = "large"
        h = x * 3
        y = h
    except KeyError:
        pass
    return y


def with_a_temporary_name_under_a_manager(x):
    with contextlib.nullcontext():
        if x > 3:
            h = x * 2
            y = h + 1
        else:
            y = x
        for i in range(x):
            g = i * 2.5
            y = y + i
        g = h = y * 3
    return h + g


# Right: a jump out of a `try`, and exceptions that replace the jump.


def with_return_and_else(x):
    y = x
    try:
        if x > 3:
            return x * 2
    except KeyError:
        y = 1
    else:
        y = y + 5
    return y


def with_return_else_and_finally(x):
    y = x
    try:
        if x > 3:
            return x * 2
        y = y + 1
    except KeyError:
        y = 1
    else:
        if x > 2:
            return 0 * x
        y = y + 5
    finally:
        y = y * 2
    return y


def with_a_python_return_and_else(x):
    try:
        return x
    except KeyError:
        x = x + 1
    else:
        return x * 2
    return x


def with_break_and_else(x):
    y = 0
    for i in range(4):
        try:
            if i > x:
                break
            if i * 2 > x:
                continue
        except KeyError:
            y = 7
        else:
            y = y + 10
        y = y + 1
    return y


def with_a_loop_in_the_body_and_else(x):
    y = 0
    try:
        for i in range(4):
            if i > x:
                break
            y = y + i
    except KeyError:
        y = 7
    else:
        y = y + 100
    return y


def with_a_return_that_finally_replaces(x):
    try:
        try:
            return x
        finally:
            missing()
    except KeyError:
        pass
    return x * 5


def with_a_return_that_a_manager_replaces(x):
    with contextlib.suppress(KeyError), Failing():
        if x > 3:
            return x
    return x * 5


def with_a_break_that_finally_replaces(x):
    y = 0
    for _ in range(3):
        try:
            try:
                if x > 3:
                    break
                y = y + 1
            finally:
                missing()
        except KeyError:
            y = y + 10
    return y


def with_another_exception_in_its_place(x):
    y = x
    try:
        try:
            if x > 3:
                y = x * 2
            missing()
        except KeyError as error:
            raise IndexError("another") from error
    except IndexError:
        y = y + 1
    return y


def with_a_try_in_the_branch(x):
    y = x
    if x > 3:
        try:
            missing()
        except KeyError:
            y = x * 2
    return y


def with_a_return_in_finally(x):
    def f(y):
        try:
            missing()
        finally:
            return y * 3  # noqa: B012

    try:
        y = f(x)
    except KeyError:
        y = 0
    return y


# Right: lambda functions that a later branch changes a name of.


def with_a_lambda_before_a_branch(x):
    y = x
    get = lambda: y  # noqa: E731
    if x > 3:
        y = x * 2
    return get()


def with_lambdas_in_a_list(x):
    y = x
    many = [lambda: y, lambda: y + 1]
    if x > 3:
        y = x * 2
    return many[0]() * 100 + many[1]()


def with_a_lambda_before_a_loop(x):
    y = x
    get = lambda: y  # noqa: E731
    for i in range(x):
        y = i * 2
    return get()


def with_a_lambda_that_is_not_called_later(x):
    h = x
    y = (lambda: h + 1)()
    if x > 3:
        h = "large"
        y = y + len(h)
    return y


RIGHT = [one for name, one in list(globals().items()) if name.startswith("with_")]


@pytest.mark.first(13)
@pytest.mark.parametrize("x", [5, 2, 3])
@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__name__)
def test_values_after_exceptions_jumps_and_in_lambdas_are_those_of_python(function, x):
    assert float(tf.function(function)(tf.constant(x))) == float(function(x))
