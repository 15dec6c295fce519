"""For any JAX code, a tape gives the same gradients as `jax.grad`, eager and compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored.tape import GradientTape
from tape.programs import PROGRAMS


def by_tape(function, x):
    with GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(8)
@pytest.mark.first(1)
def test_eager_gradient_is_that_of_jax(name):
    # Un-jitted jax.grad runs each equation by itself; a rule compiles the few equations of one operation together, and
    # XLA may contract a multiplication and an addition there.
    function, value = PROGRAMS[name]
    x = jnp.asarray(value)
    result, gradient = by_tape(function, x)
    expected = jax.grad(function)(x)
    np.testing.assert_allclose(np.asarray(gradient), np.asarray(expected), rtol=3e-6, atol=1e-6)
    np.testing.assert_allclose(np.asarray(result), np.asarray(function(x)), rtol=3e-6)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(2)
@pytest.mark.first(9)
def test_compiled_gradient_is_that_of_jax_to_the_last_bit(name):
    function, value = PROGRAMS[name]
    result, gradient = jax.jit(lambda x: by_tape(function, x))(jnp.asarray(value))
    expected_result, expected = jax.jit(jax.value_and_grad(function))(jnp.asarray(value))
    np.testing.assert_array_equal(np.asarray(gradient), np.asarray(expected))
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected_result))


TWICE = ("operators", "logsumexp", "custom_jvp", "scan", "cond", "nested_jit", "checkpoint")


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.sampled(3)
@pytest.mark.first(1)
@pytest.mark.long
def test_second_derivative_is_that_of_jax(name):
    function, value = PROGRAMS[name]
    x = jnp.asarray(value)
    with GradientTape() as outer:
        outer.watch(x)
        _, first = by_tape(function, x)
        total = jnp.sum(first * jnp.cos(x))
    second = outer.gradient(total, x)
    expected = jax.grad(lambda x: jnp.sum(jax.grad(function)(x) * jnp.cos(x)))(x)
    np.testing.assert_allclose(np.asarray(second), np.asarray(expected), rtol=2e-4, atol=2e-4)
