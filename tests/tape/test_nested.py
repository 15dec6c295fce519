"""Higher-order derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.tape import GradientTape


def cubed(x):
    return x**3.0


def nth(order, function, x):
    """Returns the derivative of this order, computed by as many nested tapes."""
    if order == 0:
        return function(x)
    with GradientTape() as tape:
        tape.watch(x)
        y = nth(order - 1, function, x)
    return tape.gradient(y, x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("function", [cubed, lambda x: jnp.sin(x) * jnp.exp(x), lambda x: x / (1 + x * x)])
@pytest.mark.first(2)
def test_third_derivatives(order, function):
    x = jnp.array(1.5)
    expected = function
    for _ in range(order):
        expected = jax.grad(expected)
    assert float(nth(order, function, x)) == pytest.approx(float(expected(x)), rel=2e-5)
    assert float(jax.jit(lambda x: nth(order, function, x))(x)) == pytest.approx(float(expected(x)), rel=2e-5)


def test_persistent_tape_in_its_own_block():
    x = jnp.array(3.0)
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x**3.0
        first = tape.gradient(y, x)
        second = tape.gradient(first, x)
    assert [float(first), float(second), float(tape.gradient(second, x))] == [27.0, 18.0, 6.0]


@pytest.mark.long
def test_persistent_tape_in_its_own_block_through_other_records():
    x = jnp.array([0.5, 1.0])
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = jnp.sum(jax.nn.softplus(x) * jax.lax.scan(lambda c, r: (c * r, c), 1.0, x)[0])
        slope = tape.gradient(y, x)
        total = jnp.sum(slope * slope)

    def plain(x):
        return jnp.sum(jax.nn.softplus(x) * jax.lax.scan(lambda c, r: (c * r, c), 1.0, x)[0])

    expected = jax.grad(lambda x: jnp.sum(jax.grad(plain)(x) ** 2))(x)
    np.testing.assert_allclose(tape.gradient(total, x), expected, rtol=1e-5)


def test_inner_gradient_taken_outside_the_outer_block():
    x = jnp.array(3.0)
    with GradientTape(persistent=True) as outer:
        outer.watch(x)
        with GradientTape(persistent=True) as inner:
            inner.watch(x)
            y = x * x
            z = y * y
        inside = inner.gradient(z, x)
    outside = inner.gradient(z, x)
    assert float(outer.gradient(inside, x)) == 108.0
    assert outer.gradient(outside, x) is None
    assert float(outer.gradient(z, y)) == 18.0
    assert float(inner.gradient(z, y)) == 18.0


def test_outer_gradient_of_a_constant_inner_gradient():
    x = jnp.array(3.0)
    with GradientTape() as outer:
        outer.watch(x)
        with GradientTape() as inner:
            inner.watch(x)
            y = 4.0 * x
        slope = inner.gradient(y, x)
        z = slope * x * x
    assert float(slope) == 4.0
    assert float(outer.gradient(z, x)) == 24.0


def by_nested_tapes(u, x):
    with GradientTape() as outer:
        outer.watch(u)
        weight = u * u
        with GradientTape() as inner:
            inner.watch(x)
            y = x * x
        first = inner.gradient([y, y], x, output_gradients=[weight, None])
    return first, outer.gradient(first, u)


def by_one_tape(u, x):
    with GradientTape(persistent=True) as tape:
        tape.watch([u, x])
        weight = u * u
        y = x * x
        first = tape.gradient([y, y], x, output_gradients=[weight, None])
    return first, tape.gradient(first, u)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("program", [by_nested_tapes, by_one_tape])
def test_a_gradient_has_a_derivative_by_its_output_gradients(program, compiled):
    program = mr.function(program) if compiled else program
    assert [float(one) for one in program(jnp.array(2.0), jnp.array(3.0))] == [30.0, 24.0]


def test_the_gradient_of_a_variable_by_itself_is_the_output_gradient():
    u, v = jnp.array(2.0), mr.Variable(3.0)
    with GradientTape() as outer:
        outer.watch(u)
        with GradientTape() as inner:
            inner.watch(v)
        first = inner.gradient(v, v, output_gradients=u * u)
    assert (float(first), float(outer.gradient(first, u))) == (4.0, 4.0)


def test_mixed_second_derivatives():
    v, w = jnp.array(2.0), jnp.array(3.0)
    with GradientTape(persistent=True) as outer:
        outer.watch([v, w])
        with GradientTape() as inner:
            inner.watch([v, w])
            y = v * v * w * w * w
        of_v, of_w = inner.gradient(y, [v, w])
    assert [float(g) for g in (of_v, of_w)] == [108.0, 108.0]
    assert [float(g) for g in outer.gradient(of_v, [v, w])] == [54.0, 108.0]
    assert [float(g) for g in outer.gradient(of_w, [v, w])] == [108.0, 72.0]


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_hessian_vector_product(compiled):
    v = jnp.array([1.0, -2.0])

    def function(x):
        return jnp.sum(jnp.exp(x)) * x[0]

    def product(x):
        with GradientTape() as outer:
            outer.watch(x)
            with GradientTape() as inner:
                inner.watch(x)
                y = function(x)
            s = jnp.sum(inner.gradient(y, x) * v)
        return outer.gradient(s, x)

    x = jnp.array([0.5, 1.0])
    expected = jax.jvp(jax.grad(function), (x,), (v,))[1]
    np.testing.assert_allclose((jax.jit(product) if compiled else product)(x), expected, rtol=1e-5, atol=1e-6)


def test_inner_tape_unseen_by_the_outer_one():
    x, w = jnp.array(3.0), jnp.array(2.0)
    with GradientTape() as outer:
        outer.watch(w)
        with GradientTape() as inner:
            inner.watch(x)
            y = x * x * x
            inside = jax.jit(lambda a: a * y)(2.0)
        slope = inner.gradient(inside, x)
        z = slope * w
    assert float(slope) == 54.0
    assert float(outer.gradient(z, w)) == 54.0


def test_value_of_the_inner_tape_watched_by_the_outer():
    x = jnp.array(3.0)
    with GradientTape() as outer:
        with GradientTape() as inner:
            inner.watch(x)
            y = x * x
            outer.watch(y)
            z = y * y
    assert float(inner.gradient(z, x)) == 108.0
    assert float(outer.gradient(z, y)) == 18.0


@pytest.mark.long
def test_gradient_penalty():
    w, x = jnp.array([[0.5, -0.3], [0.8, 0.1]]), jnp.array([[1.0, 2.0], [0.3, -0.4]])

    def penalty_of(slope):
        return jnp.mean((jnp.sqrt(jnp.sum(slope * slope, axis=1)) - 1.0) ** 2.0)

    with GradientTape() as outer:
        outer.watch(w)
        with GradientTape() as inner:
            inner.watch(x)
            y = jnp.sum(jnp.tanh(x @ w))
        penalty = penalty_of(inner.gradient(y, x))
    expected = jax.grad(lambda w: penalty_of(jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w)))(x)))(w)
    np.testing.assert_allclose(outer.gradient(penalty, w), expected, rtol=1e-5, atol=1e-7)


# A tape that a traced function opens, inside the block of another tape.

TRANSFORMS = {
    "none": lambda function: function,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "jit of checkpoint": lambda function: jax.jit(jax.checkpoint(function)),
    "vmap": lambda function: lambda x: jax.vmap(function)(x[None])[0],
    "map": lambda function: lambda x: jax.lax.map(function, x[None])[0],
    "scan": lambda function: lambda x: jax.lax.scan(lambda c, row: (c + function(row), None), 0.0, x[None])[0],
    "cond": lambda function: lambda x: jax.lax.cond(x > 0.0, function, lambda x: x, x),
    "fori_loop": lambda function: lambda x: jax.lax.fori_loop(0, 1, lambda i, c: c + function(x), 0.0),
}


def slope(w, x, how):
    """The derivative of sin(x w) by `x`, or by the variable `w`; or no derivative, but the read in the inner block."""
    with GradientTape(persistent=True, watch_accessed_variables=how != "not watched") as inner:
        inner.watch(x)
        if how == "explicit":
            inner.watch(w)
        if how == "paused":
            with inner.stop_recording():
                value = w.read_value()
        elif how == "jitted":
            value = jax.jit(lambda x: w + 0.0 * x)(x)
        else:
            value = w
        y = jnp.sin(x * value)
    if how == "value":
        return y
    gradient = inner.gradient(y, w if how in ("by variable", "explicit", "jitted") else x)
    return jnp.float32(-100.0) if gradient is None else gradient


def plain_slope(w, x, how):
    y = lambda w, x: jnp.sin(x * w)  # noqa: E731
    if how == "value":
        return y(w, x)
    return jax.grad(y, 0 if how in ("by variable", "explicit", "jitted") else 1)(w, x)


@pytest.mark.sampled(12)
@pytest.mark.first(4)
@pytest.mark.parametrize("transform", list(TRANSFORMS))
@pytest.mark.parametrize("how", ["by array", "by variable", "explicit", "value", "paused", "jitted", "not watched"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_two_tapes_of_which_a_traced_function_opens_the_inner_one(transform, how, compiled, replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else None
    if strategy is None:
        w = mr.Variable(2.0)
    else:
        with strategy.scope():
            w = mr.Variable(2.0)
    x = jnp.float32(0.3)
    helper = TRANSFORMS[transform](lambda x: slope(w, x, how))

    def step(x):
        with GradientTape() as outer:
            value = helper(x)
            loss = w * value
        return value, outer.gradient(loss, w)

    run = step if strategy is None else lambda x: strategy.run(step, args=(x,))
    if compiled:
        run = mr.function(run)
    for number in (2.0, 3.0):  # the second call takes JAX's cached trace
        w.assign(number)
        results = jax.tree.leaves(run(x), is_leaf=lambda one: isinstance(one, mr.PerReplica))
        expected = plain_slope(number, x, how), jax.grad(lambda w: w * plain_slope(w, x, how))(number)
        for result, right in zip(results, expected, strict=True):
            parts = [result] if strategy is None else strategy.experimental_local_results(result)
            for part in parts:
                np.testing.assert_allclose(part, right, rtol=1e-5)
