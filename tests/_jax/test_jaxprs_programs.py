"""Flat functions as programs, and arrays embedded in them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives

from mirrored._jax.closures import Lifted, embedded_arrays
from mirrored._jax.jaxprs import aval_of, context_key, is_inexact, program_of
from mirrored.errors import TapeError

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
    assert program.depends([0]) == [True, True, False, True, False]
    assert program.depends([1]) == [True, False, False, False, False]


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


SCALAR = jnp.array(3.0)
VECTOR = jnp.array([1.0, 2.0, 4.0])
scaled = jax.jit(lambda a: a * SCALAR)
EMBEDDING = {
    "jit": (primitives.jit_p, lambda x: jax.jit(lambda a: a * VECTOR + SCALAR)(x)),
    "jit in jit": (primitives.jit_p, lambda x: jax.jit(lambda a: scaled(a) * VECTOR)(x)),
    "scan": (primitives.scan_p, lambda x: jax.lax.scan(lambda c, r: (scaled(c) + r, c), x, jnp.ones((2, 3)))[0]),
    "cond": (primitives.cond_p, lambda x: jax.lax.cond(x[0] >= 0, lambda: scaled(x), lambda: x)),
    "while": (primitives.while_p, lambda x: jax.lax.while_loop(lambda c: c[1] < 50.0, scaled, x)),
    "while condition": (
        primitives.while_p,
        lambda x: jax.lax.while_loop(lambda c: scaled(c)[1] < 50.0, lambda c: c + 1.0, x),
    ),
    "checkpoint": (primitives.remat_p, lambda x: jax.checkpoint(lambda a: scaled(jnp.sin(a)))(x)),
}


@pytest.mark.parametrize("name", EMBEDDING)
def test_embedded_arrays_become_arguments(name):
    primitive, function = EMBEDDING[name]
    jaxpr = jax.make_jaxpr(function)(X)
    (equation,) = [equation for equation in jaxpr.eqns if equation.primitive is primitive]
    arrays = embedded_arrays(equation.params)
    assert any(array is SCALAR for array in arrays)
    lifted = Lifted(primitive, equation.params, arrays)
    constants = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    known = {variable: X for variable in jaxpr.jaxpr.invars} | constants
    for before in jaxpr.eqns[: jaxpr.eqns.index(equation)]:
        result = before.primitive.bind(*[_value(atom, known) for atom in before.invars], **before.params)
        results = result if before.primitive.multiple_results else [result]
        known.update(zip(before.outvars, results, strict=True))
    operands = [_value(atom, known) for atom in equation.invars]
    np.testing.assert_allclose(lifted(*arrays, *operands)[0], function(X), rtol=1e-6)
    other = lifted(*[array * 2.0 for array in arrays], *operands)[0]
    assert not np.allclose(other, function(X))


def test_arrays_inside_other_primitives_are_refused():
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.reduce(x, jnp.float32(0), lambda a, b: a + b * SCALAR, (0,)))(X)
    (equation,) = [equation for equation in jaxpr.eqns if equation.primitive.name == "reduce"]
    lifted = Lifted(equation.primitive, equation.params, embedded_arrays(equation.params))
    with pytest.raises(TapeError, match=r"passed to reduce closes over a watched array\n.*\n.*float\(array\)"):
        lifted(SCALAR, X, jnp.float32(0))


def _value(atom, known):
    return atom.val if hasattr(atom, "val") else known[atom]
