"""Probes of what `closures` relies on in JAX: where programs keep the values over which functions close."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives

from mirrored._jax.closures import (
    CustomCalls,
    Lifted,
    closed_over_inputs,
    custom_calls,
    embedded_arrays,
    embedded_tracers,
    opaque_arrays,
    scan_split,
    used_constants,
)
from mirrored._jax.inlining import program_of
from mirrored._jax.jaxprs import aval_of
from mirrored._jax.traces import CaptureTracer
from mirrored.errors import TapeError

X = jnp.arange(3.0)
CONSTANT = jnp.array([5.0, 6.0, 7.0])


def by_jvp(x, y):
    """``x * y``, a function with a custom derivative that closes over `y`."""

    @jax.custom_jvp
    def scaled(a):
        return a * y

    scaled.defjvp(lambda primals, tangents: (primals[0] * y, tangents[0] * y))
    return scaled(x)


def by_vjp(x, y):
    """``x * y``, a function with a custom derivative that closes over `y`."""

    @jax.custom_vjp
    def scaled(a):
        return a * y

    scaled.defvjp(lambda a: (a * y, None), lambda _, cotangent: (cotangent * y,))
    return scaled(x)


@jax.custom_jvp
def plain(x):
    """A function with a custom derivative that closes over nothing."""
    return x * 2.0


plain.defjvp(lambda primals, tangents: (primals[0] * 2.0, tangents[0] * 2.0))
CLOSING = {"custom_jvp": by_jvp, "custom_vjp": by_vjp}
ENTERING = {
    "directly": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x, y: jax.lax.scan(lambda c, _: (f(c, y), None), x, None, length=2)[0],
    "cond": lambda f: lambda x, y: jax.lax.cond(True, f, lambda x, y: x, x, y),
}


def program(function):
    return program_of(lambda x, y: [function(x, y)], [aval_of(X), aval_of(X)])


@pytest.mark.parametrize("entering", ENTERING)
@pytest.mark.parametrize("closing", CLOSING)
def test_closed_over_operands_of_custom_derivatives_are_found(closing, entering):
    found = program(ENTERING[entering](CLOSING[closing]))
    assert custom_calls({"": found.jaxpr}) is CustomCalls.CLOSING_OVER
    assert closed_over_inputs(found) == [1], "a gradient with respect to the closed-over value would be lost"


def test_custom_derivatives_without_closed_over_values_are_plain():
    found = program(lambda x, y: plain(x) * y)
    assert custom_calls({"": found.jaxpr}) is CustomCalls.PLAIN
    assert closed_over_inputs(found) == []
    assert custom_calls({"": program(lambda x, y: x * y).jaxpr}) is CustomCalls.NONE


def test_constants_are_used_by_paths_without_stop_gradient():
    found = program(lambda x, y: x * jax.lax.stop_gradient(CONSTANT) + y)
    assert any(constant is CONSTANT for constant in found.constants)
    assert used_constants(found) == []
    (used,) = used_constants(program(lambda x, y: x * CONSTANT + y))
    assert used is CONSTANT


def test_tracers_in_inner_programs_are_found():
    captured = CaptureTracer((3,), jnp.float32, "w")
    found = program(lambda x, y: jax.jit(lambda a: a * captured)(x) + y)
    assert not embedded_tracers(found), "JAX hoists a capture tracer out of jit"
    assert any(constant is captured for constant in found.constants)


def test_arrays_in_custom_derivatives_are_found_inside_other_calls():
    closed = jax.make_jaxpr(jax.jit(lambda x: by_jvp(x, CONSTANT)))(X)
    (equation,) = closed.eqns
    assert all(array is CONSTANT for array in opaque_arrays(equation.params))
    assert not opaque_arrays(jax.make_jaxpr(jax.jit(lambda x: x * CONSTANT))(X).eqns[0].params)


def test_a_scan_tells_its_constants_and_carries():
    closed = jax.make_jaxpr(lambda x, y: jax.lax.scan(lambda c, r: (c * y + r, c), 1.0, x))(X, 2.0)
    (equation,) = [one for one in closed.eqns if one.primitive.name == "scan"]
    assert scan_split(equation.params) == (1, 1)


# Arrays that a program embeds

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
