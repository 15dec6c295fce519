"""Statements at which malt's passes fail, unless they are rewritten: `except as`, `else` of `try`, annotations."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

import mirrored.tf as tf


def with_a_branch_before(x):
    y = x * 2 if x > 0 else x * 3
    try:
        int("a")
    except ValueError as error:
        y = y + len(str(error))
    return y


def with_a_branch_within(x):
    y = x
    try:
        int("a")
    except (ValueError, TypeError) as error:
        if x > 0:
            y = y + len(error.args)
        else:
            y = y - len(error.args)
    return y


def with_returns_within(x):
    try:
        int("a")
    except ValueError as error:
        if x > 0:
            return x + len(str(error))
    return x - 1


def with_another_value_within(x):
    y = x
    try:
        int("a")
    except ValueError as error:  # noqa: F841
        error = 1.0
        if x > 0:
            error = 2.0
        y = y + error
    return y


def with_the_name_assigned_after(x):
    try:
        int("a")
    except ValueError as error:
        del error
    if x > 0:
        error = 1.0
    else:
        error = 2.0
    return x + error


def with_the_name_assigned_before(x):
    error = 5
    try:
        int("1")
    except ValueError as error:  # noqa: F841
        x = x + 100
    if x > 0:
        x = x + error
    return x


def with_a_loop_around(x):
    y = x
    for i in tf.range(3):
        try:
            if y > 0:
                y = y + 1.0
            int("a")
        except ValueError as error:
            y = y + len(str(error))
            if i == 1:
                break
    return y


def with_two_names(x):
    y = x
    try:
        int("a")
    except ValueError as error:
        try:
            raise KeyError("k") from error
        except KeyError as another:
            if x > 0:
                y = y + len(str(error)) + len(str(another))
    return y


def with_a_lambda(x):
    y = x
    try:
        int("a")
    except ValueError as error:  # noqa: F841
        longer = [lambda one: one + len(str(error))]  # noqa: F821
        if x > 0:
            y = longer[0](y)
    return y


def with_an_if_in_else(x):
    try:
        y = int("3")
    except ValueError as error:
        return x + len(str(error))
    else:
        if x > 0:
            return x + y
        return x - y


def with_a_with_in_else(x):
    try:
        y = x
    except ValueError:
        y = x + 100
    else:
        with contextlib.nullcontext(2) as two:
            if x > 0:
                y = y + two
    finally:
        if x > 0:
            y = y + 1000
    return y


def with_annotations(x):
    z: int
    if x > 0:
        y: float = x + 1
        z = 3
    else:
        y = x
        z = 2
    return y + z


def with_fields(x):
    @dataclasses.dataclass
    class Point:
        a: int = 3
        b: float = 4.0

    y = x
    if x > 0:
        y = y + Point().a + len(dataclasses.fields(Point))
    return y


FUNCTIONS = [one for name, one in list(globals().items()) if name.startswith("with_")]


@pytest.mark.first(13)
@pytest.mark.parametrize("x", [3.0, -2.0])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_converted_statements_have_the_meaning_of_python(function, x):
    assert float(tf.function(function)(tf.constant(x))) == float(function(tf.constant(x)))


def test_the_name_is_unbound_after_its_block():
    def f(x):
        if x > 0:
            x = x + 1
        try:
            int("a")
        except ValueError as error:  # noqa: F841
            pass
        return x + len(str(error))  # noqa: F821

    with pytest.raises(UnboundLocalError, match="error"):
        tf.function(f)(tf.constant(3.0))


def test_an_exception_is_raised_again():
    @tf.function
    def f(x):
        if x > 0:
            x = x + 1
        try:
            int("a")
        except ValueError as error:
            raise RuntimeError("again") from error
        return x

    with pytest.raises(RuntimeError, match="again") as caught:
        f(tf.constant(3.0))
    assert isinstance(caught.value.__cause__, ValueError)
