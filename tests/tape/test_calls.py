"""Special calls on a tape: functions with custom derivatives, of functions of JAX or closing over watched arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr

X = jnp.asarray(2.0)


def by_defjvp(slope: float) -> Any:
    function = jax.custom_jvp(jnp.sign)
    function.defjvp(lambda primals, tangents: (jnp.sign(primals[0]), slope * tangents[0]))
    return function


def by_defjvps(slope: float) -> Any:
    function = jax.custom_jvp(jnp.sign)
    function.defjvps(lambda tangent, _result, _x: slope * tangent)
    return function


def by_custom_vjp(slope: float) -> Any:
    function = jax.custom_vjp(jnp.sign)
    function.defvjp(lambda x: (jnp.sign(x), None), lambda _, cotangent: (slope * cotangent,))
    return function


def slope_of(function: Any) -> float:
    with mr.GradientTape() as tape:
        tape.watch(X)
        y = function(X)
    return float(tape.gradient(y, X))


@pytest.mark.parametrize("make", [by_defjvp, by_defjvps, by_custom_vjp])
def test_each_custom_derivative_of_a_function_of_jax_has_its_own_rule(make: Any) -> None:
    assert [slope_of(make(1.0)), slope_of(make(5.0))] == [1.0, 5.0]


@pytest.mark.parametrize("make", [jax.custom_jvp, jax.custom_vjp])
def test_a_rule_of_a_function_of_jax_can_be_replaced(make: Any) -> None:
    function = make(jnp.sign)
    found = []
    for slope in (1.0, 5.0):
        if make is jax.custom_jvp:
            function.defjvps(lambda tangent, _result, _x, slope=slope: slope * tangent)
        else:
            function.defvjp(lambda x: (jnp.sign(x), None), lambda _, cotangent, slope=slope: (slope * cotangent,))
        found.append(slope_of(function))
    assert found == [1.0, 5.0]


def test_a_rule_that_reads_a_variable_reads_its_present_value() -> None:
    slope = mr.Variable(1.0, trainable=False)
    function = jax.custom_jvp(jnp.sign)
    function.defjvps(lambda tangent, _result, _x: slope * tangent)
    found = [slope_of(function)]
    slope.assign(5.0)
    assert [*found, slope_of(function)] == [1.0, 5.0]
