"""Functions on the fast path of the tape give the same results as through JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.tape import direct
from mirrored.tape.operation import Operation, QuickRules

X = jnp.array([0.3, -1.2, 2.5])
FUNCTIONS = [jnp.sin, jnp.tanh, jnp.exp, jnp.abs, jax.nn.relu, jnp.square, jnp.sum, jax.nn.softplus]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.first(8)
def test_gradients_are_those_of_the_function(function, persistent):
    quick = direct(function)
    with mr.GradientTape(persistent=persistent) as tape:
        tape.watch(X)
        y = quick(quick(X * 2.0))
    wanted = jax.grad(lambda x: function(function(x * 2.0)).sum())(X)
    np.testing.assert_allclose(tape.gradient(y, X), wanted, rtol=1e-5)


@pytest.mark.parametrize("function", [jnp.sin, jnp.tanh, jnp.square], ids=lambda one: one.__name__)
@pytest.mark.first(2)
def test_second_derivatives_by_nested_and_by_persistent_tapes(function):
    quick = direct(function)
    x = mr.Variable(0.7)
    with mr.GradientTape() as outer:
        with mr.GradientTape() as inner:
            y = quick(x * 1.0)
        slope = inner.gradient(y, x)
    wanted = jax.grad(jax.grad(function))(0.7)
    assert float(outer.gradient(slope, x)) == pytest.approx(float(wanted), rel=1e-5)
    with mr.GradientTape(persistent=True) as tape:
        y = quick(x * 1.0)
        slope = tape.gradient(y, x)
    assert float(tape.gradient(slope, x)) == pytest.approx(float(wanted), rel=1e-5)


def test_results_without_a_derivative_are_no_longer_tracked():
    with mr.GradientTape() as tape:
        tape.watch(X)
        y = X * 2.0
        assert direct(jnp.isfinite)(y).tolist() == [True] * 3
        assert direct(jnp.floor)(y).tolist() == [0.0, -3.0, 5.0]
        stopped = direct(jnp.floor)(y)
    gradient = tape.gradient(stopped, X)
    assert gradient is None or not np.any(gradient)


def test_what_the_function_refuses_it_says_itself():
    def only_matrices(x):
        if x.ndim != 2:
            raise TypeError(f"a matrix, please, not {x.shape}")
        return x.T

    def in_other_words(x):
        raise ValueError("tf.transpose: not a matrix")

    with mr.GradientTape() as tape:
        tape.watch(X)
        y = X * 2.0
        with pytest.raises(TypeError, match="a matrix, please"):
            direct(only_matrices)(y)
        with pytest.raises(ValueError, match="tf.transpose: not a matrix"):
            direct(only_matrices, otherwise=in_other_words)(y)
        z = y * y
    np.testing.assert_allclose(tape.gradient(z, X), 8 * X, rtol=1e-6)


def test_a_function_without_a_derivative_says_so_when_the_gradient_comes():
    endless = direct(lambda x: jax.lax.while_loop(lambda v: v.sum() < 100.0, lambda v: v * 2.0, x))
    with mr.GradientTape() as tape:
        tape.watch(X)
        y = endless(X * 2.0)
    with pytest.raises(mr.errors.TapeError, match="which JAX cannot differentiate"):
        tape.gradient(y, X)


def test_nothing_is_recorded_while_the_tape_stands_still():
    quick = direct(jnp.sin)
    with mr.GradientTape(persistent=True) as tape:
        tape.watch(X)
        y = X * 2.0
        with tape.stop_recording():
            still = quick(y), -y
        moving = quick(y)
    assert [tape.gradient(one, X) for one in still] == [None, None]
    np.testing.assert_array_equal(still[0], jnp.sin(X * 2.0))
    np.testing.assert_allclose(tape.gradient(moving, X), 2 * jnp.cos(X * 2.0), rtol=1e-5)


@pytest.mark.parametrize("persistent", [False, True])
def test_minus_a_tracked_value(persistent):
    with mr.GradientTape(persistent=persistent) as tape:
        tape.watch(X)
        y = -(-(X * X) * 3.0)
    np.testing.assert_array_equal(y, X * X * 3.0)
    np.testing.assert_allclose(tape.gradient(y, X), 6 * X, rtol=1e-6)


def test_after_the_tape_and_inside_a_compiled_function_it_is_the_function():
    quick = direct(jnp.sin)
    v = mr.Variable(0.5)
    with mr.GradientTape():
        y = v * 1.0
    assert float(quick(y)) == pytest.approx(np.sin(0.5))

    @mr.function
    def slope():
        with mr.GradientTape() as tape:
            result = quick(v * 1.0)
        return tape.gradient(result, v)

    assert float(slope()) == pytest.approx(np.cos(0.5))


def test_the_rule_is_derived_once_for_each_type():
    derived = []

    def counted(x):
        derived.append(x.dtype)
        return jnp.sin(x)

    quick = direct(counted)
    for dtype in (jnp.float32, jnp.float32, jnp.bfloat16, jnp.float32):
        with mr.GradientTape() as tape:
            x = jnp.ones(3, dtype)
            tape.watch(x)
            y = quick(x * 1)
        tape.gradient(y, x)
    counts = [sum(found == dtype for found in derived) for dtype in (jnp.float32, jnp.bfloat16)]
    assert counts[0] == counts[1] > 0


def test_settings_that_change_the_meaning_of_an_operation_are_seen():
    gradients = {}
    for wide in (False, True, False):
        with jax.enable_x64(wide), mr.GradientTape() as tape:
            x = jnp.ones(2, jnp.int32).astype(float)
            tape.watch(x)
            y = direct(jnp.sin)(x * 3)
            gradients[wide] = tape.gradient(y, x)
    assert {wide: gradient.dtype for wide, gradient in gradients.items()} == {False: "float32", True: "float64"}
    assert gradients[True].tolist() == pytest.approx([3 * np.cos(3.0)] * 2, rel=1e-12)


def test_rules_are_found_by_types_that_still_live():
    rules = QuickRules(most=16)
    operation = Operation(lambda value: [jnp.sin(value)], "sin")
    for step in range(100):
        shape = (step % 3 + 1,)
        array = jax.device_put(np.ones(shape, np.float32))  # an array with a type object of its own
        rule = rules.find(operation, (array,), (0,))
        assert rule.out_avals[0].shape == shape
        assert rule is operation.rule((array.aval,), (0,))
        assert len(rules) <= 17


def test_numbers_and_arrays_have_rules_of_their_own():
    rules = QuickRules()
    operation = Operation(lambda left, right: [left * right], "mul")
    x = jnp.ones(3, jnp.bfloat16)
    found = [rules.find(operation, (x, other), (0,)) for other in (2.0, 2, jnp.float32(2.0), 3.0)]
    assert [rule.out_avals[0].dtype for rule in found] == ["bfloat16", "bfloat16", "float32", "bfloat16"]
    assert found[0] is found[3]
    assert len({id(rule) for rule in found}) == 3
    assert rules.find(operation, (x, x), (0, 1)) is not rules.find(operation, (x, x), (0,))
