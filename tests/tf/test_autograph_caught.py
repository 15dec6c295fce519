"""Exceptions in branches that a tensor decides: converted code that catches them is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import mirrored.tf as tf
from mirrored.tf import errors


class Swallowing:
    """A context manager that suppresses all exceptions."""

    def __enter__(self) -> Swallowing:
        return self

    def __exit__(self, *_: object) -> bool:
        return True


def missing() -> Any:
    return {}["q"]


def by_a_return_before_it(x):
    try:
        if x > 3:
            return x * 2
        return missing()
    except KeyError:
        return x - 1


def by_a_return_under_a_manager(x):
    with contextlib.suppress(KeyError):
        if x > 3:
            return x * 2
        missing()
    return x


def by_a_return_under_an_own_manager(x):
    with Swallowing() as manager:
        assert isinstance(manager, Swallowing)
        if x > 3:
            return x * 2
        missing()
    return x


def by_a_break_before_it(x):
    y = x
    for _ in range(3):
        try:
            if y > 3:
                break
            missing()
        except KeyError:
            y = y + 1
    return y


def by_a_continue_before_it(x):
    y = x
    for i in range(x):
        try:
            if i > 1:
                continue
            missing()
        except KeyError:
            y = y + 1
    return y


def by_a_raise_in_a_branch(x):
    try:
        if x > 3:
            raise ValueError("large")
        y = 1
    except ValueError:
        y = 2
    return y


def by_an_assertion_in_a_branch(x):
    y = x
    try:
        if x > 3:
            assert y is None
    except AssertionError:
        y = 2
    return y


def by_a_loop_of_the_program(x):
    y = x
    try:
        for i in range(x):
            y = y + i
            missing()
    except KeyError:
        pass
    return y


def by_a_while_loop(x):
    y = x
    try:
        while y < 10:
            y = y + 1
            missing()
    except KeyError:
        pass
    return y


def by_an_expression(x):
    try:
        return missing() if x > 3 else x
    except KeyError:
        return 0


def by_and(x):
    try:
        return x > 3 and missing()
    except KeyError:
        return x > 2


def by_a_callee(x):
    def check(y):
        if y > 3:
            missing()
        return y

    try:
        return check(x)
    except KeyError:
        return 0


def by_another_exception_in_its_place(x):
    y = x
    try:
        try:
            if x > 3:
                missing()
        except KeyError as error:
            raise IndexError("another") from error
    except IndexError:
        y = 1
    return y


def by_a_handler_of_all(x):
    y = x
    try:
        with contextlib.suppress(KeyError):
            if x > 3:
                missing()
    except Exception:
        y = 1
    return y


REFUSED = [one for name, one in list(globals().items()) if name.startswith("by_")]


@pytest.mark.first(13)
@pytest.mark.parametrize("function", REFUSED, ids=lambda one: one.__name__)
def test_an_exception_that_a_tensor_decides_is_not_caught(function):
    with pytest.raises(
        errors.UnimplementedError, match=r"catches (KeyError|ValueError|AssertionError|IndexError)"
    ) as one:
        tf.function(function)(tf.constant(2))
    assert "test_autograph_caught.py:" in str(one.value)
    assert isinstance(one.value.__cause__, (KeyError, ValueError, AssertionError, IndexError))


def test_an_exception_that_is_raised_again_is_the_users():
    @tf.function
    def f(x):
        try:
            if x > 3:
                raise ValueError("large")
        except ValueError as error:
            error.add_note("seen")
            raise
        return x

    with pytest.raises(ValueError, match="large") as caught:
        f(tf.constant(2))
    assert "seen" in caught.value.__notes__


def test_a_branch_that_a_python_value_decides_may_raise():
    @tf.function
    def f(x, checks):
        y = x
        try:
            if checks:
                y = y + 1
                raise ValueError("checked")
        except ValueError:
            y = y * 2
        return y

    assert int(f(tf.constant(2), True)) == 6


def test_a_name_without_one_type_is_refused_where_it_is_read():
    @tf.function
    def f(x, ends):
        y: Any = None
        try:
            if x > 3:
                y = "large"
            if ends:
                missing()
            y = x
        except KeyError:
            pass
        return y

    assert int(f(tf.constant(2), False)) == 2
    with pytest.raises(errors.InvalidArgumentError, match="`y` is read after an exception"):
        f(tf.constant(2), True)


def test_with_statements_of_other_objects_raise_the_error_of_python():
    @tf.function
    def f(x):
        with x:
            return x

    with pytest.raises(TypeError, match="context manager"):
        f(tf.constant(2))
