"""Flat functions as programs, and the outputs of a program one by one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.inlining import as_function, program_of
from mirrored._jax.jaxprs import aval_of, context_key, dependencies, evaluate_outputs, is_inexact, zero_tangent
from mirrored._jax.traces import NotConstant

X = jnp.arange(3.0)
CONSTANT = jnp.array([5.0, 6.0, 7.0])


@pytest.fixture
def program():
    return program_of(lambda x, y: [x * y, x, CONSTANT, jnp.sin(x) + CONSTANT, 2.0], [aval_of(X), aval_of(2.0)])


def test_runs(program):
    product, same, constant, shifted, two = program(X, 2.0)
    assert (product.tolist(), two) == ([0.0, 2.0, 4.0], 2.0)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(constant, CONSTANT)
    np.testing.assert_allclose(shifted, np.sin(X) + CONSTANT, rtol=1e-6)
    assert len(program.of_constants(*program.constants, X, 2.0)) == 5


def test_knows_where_results_come_from(program):
    sources = [program.source_of(atom) for atom in program.jaxpr.outvars]
    assert sources[0] is None
    assert sources[1] == ("input", 0)
    assert sources[2][0] == sources[4][0] == "constant"


def test_cut_to_some_results(program):
    cut = program.keeping([0])
    assert [equation.primitive.name for equation in cut.jaxpr.eqns] == ["convert_element_type", "mul"]
    assert jax.jit(cut)(X, 2.0)[0].tolist() == [0.0, 2.0, 4.0]


def test_captured_says_whether_a_constant_lives_for_a_trace(program):
    assert not program.captured
    found = []

    @jax.jit
    def outer(z):
        found.append(program_of(lambda x: [x * z], [aval_of(X)]).captured)
        return z

    outer(1.0)
    assert found == [True]


def test_types():
    assert is_inexact(aval_of(jnp.ones(2, jnp.bfloat16)))
    assert is_inexact(aval_of(1j))
    assert not is_inexact(aval_of(np.arange(2)))
    assert not is_inexact(aval_of(jax.random.key(0)))


def test_context_key_follows_settings():
    before = context_key()
    with jax.default_matmul_precision("float32"):
        assert context_key() != before
    assert context_key() == before


def test_the_zero_cotangent_of_an_integer_is_one_that_jax_takes():
    _, backward = jax.vjp(lambda x: (x * 2.0, jnp.arange(3)), X)
    (cotangent,) = backward((X, zero_tangent(aval_of(jnp.arange(3)))))
    np.testing.assert_array_equal(cotangent, X * 2.0)


# Outputs one by one


def several(x, y):
    return x + 1.0, jax.jit(lambda a: a * 2.0)(y), x * y, jnp.float32(3.0)


def test_each_output_knows_its_inputs():
    closed = jax.make_jaxpr(several)(1.0, 2.0)
    assert dependencies(closed) == [frozenset({0}), frozenset({1}), frozenset({0, 1}), frozenset()]


def test_outputs_are_computed_from_their_inputs_alone():
    closed = jax.make_jaxpr(several)(1.0, 2.0)
    assert evaluate_outputs(closed, {0: 5.0}, [0, 3]) == [6.0, 3.0]
    assert evaluate_outputs(closed, {1: 5.0}, [1]) == [10.0]
    assert as_function(closed)(1.0, 2.0) == [2.0, 4.0, 2.0, 3.0]


def test_outputs_are_computed_at_once_while_another_program_is_traced():
    closed = jax.make_jaxpr(several)(1.0, 2.0)
    found = []

    @jax.jit
    def traced(x):
        found.extend(evaluate_outputs(closed, {0: jnp.float32(5.0)}, [0]))
        inner = jax.make_jaxpr(lambda y: (y + x, y))(1.0)
        with pytest.raises(NotConstant):
            evaluate_outputs(inner, {0: 1.0}, [0])
        return x

    traced(1.0)
    assert not isinstance(found[0], jax.core.Tracer)
    assert found == [6.0]
