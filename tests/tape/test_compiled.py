"""Inside a compiled function, a tape has no cost: the program is the same as with `jax.grad`."""

from __future__ import annotations

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored.tape import GradientTape
from tape.programs import attention, carried


def operations(function, *args):
    """Returns the count of each operation in the optimised program."""
    text = jax.jit(function).lower(*args).compile().as_text()
    return collections.Counter(re.findall(r"= \S+ ([a-z][\w-]*)\(", text))


def mlp(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return jnp.mean(jnp.square(x @ w + b - y))


def by_tape(function):
    def gradient(params, *args):
        with GradientTape() as tape:
            tape.watch(params)
            loss = function(params, *args)
        return loss, tape.gradient(loss, params)

    return gradient


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    sizes = [8, 16, 16, 4]
    params = [
        (jnp.asarray(rng.normal(size=(m, n)), jnp.float32), jnp.zeros(n))
        for m, n in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    return params, jnp.asarray(rng.normal(size=(32, 8)), jnp.float32), jnp.ones((32, 4))


def test_the_program_of_an_mlp_is_that_of_jax_grad(problem):
    assert operations(by_tape(mlp), *problem) == operations(jax.value_and_grad(mlp), *problem)


@pytest.mark.parametrize("function", [carried, attention])
def test_the_program_of_control_flow_and_attention_is_that_of_jax_grad(function):
    x = jnp.linspace(0.1, 1.0, 4) if function is carried else jnp.linspace(0.1, 1.0, 12).reshape(4, 3)
    assert operations(by_tape(function), x) == operations(jax.value_and_grad(function), x)


def test_gradients_are_the_same_bits(problem):
    ours = jax.jit(by_tape(mlp))(*problem)
    expected = jax.jit(jax.value_and_grad(mlp))(*problem)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_values_of_the_tape_are_ordinary_values_of_the_trace(problem):
    def step(params, x, y):
        with GradientTape() as tape:
            tape.watch(params)
            loss = mlp(params, x, y)
        assert isinstance(loss, jax.core.Tracer)
        gradients = tape.gradient(loss, params)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), loss * 2.0

    new, double = jax.jit(step)(*problem)
    assert float(double) == pytest.approx(2 * float(mlp(*problem)), rel=1e-6)
    assert float(mlp(new, *problem[1:])) < float(mlp(*problem))


def test_traced_once(problem):
    traces = []

    @jax.jit
    def step(*args):
        traces.append(args)
        return by_tape(mlp)(*args)

    for _ in range(3):
        step(*problem)
    assert len(traces) == 1


def test_no_leak_of_tracers(problem):
    with jax.checking_leaks():
        jax.jit(by_tape(mlp))(*problem)


def test_the_gradient_with_respect_to_an_identity_is_its_own():
    @jax.jit
    def function(x):
        with GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = jax.jit(lambda a: a)(x)
            z = x * 2.0 + y * 3.0
        return tape.gradient(z, x), tape.gradient(z, y)

    assert [float(g) for g in function(2.0)] == [5.0, 3.0]
