"""Probes of what `local_collectives` relies on in JAX: rules of primitives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.jaxprs import primitive_names
from mirrored._jax.local_collectives import (
    GATHER,
    PLACEHOLDERS,
    SUM,
    bind_equation,
    local_replica_of,
    replica_gather,
    replica_sum,
    same_on_local_replicas,
)
from mirrored._jax.source_lines import source_line
from mirrored.errors import MergeError

X = jnp.arange(3.0)

# The primitives


def summed(x):
    return replica_sum([x * 2.0], 1, 4, "all")[0]


def names(function, *args):
    return [equation.primitive.name for equation in jax.make_jaxpr(function)(*args).eqns]


def test_they_have_shapes():
    (total,) = jax.make_jaxpr(summed)(X).out_avals
    assert (total.shape, total.dtype) == ((3,), X.dtype)
    (parts,) = jax.make_jaxpr(lambda x: replica_gather([x], 1, 4, "all"))(X).out_avals
    assert (parts.shape, parts.dtype) == ((4, 3), X.dtype)
    (one,) = jax.make_jaxpr(lambda x: same_on_local_replicas([x, x]))(X).out_avals
    assert one.shape == (3,)


def test_the_derivative_of_a_sum_is_a_sum():
    assert names(lambda x: jax.jvp(summed, (x,), (x,)), X).count(SUM) == 2
    closed = jax.make_jaxpr(jax.grad(lambda x: jnp.sum(summed(x))))(X)
    sums = [equation for equation in closed.eqns if equation.primitive.name == SUM]
    assert sums[-1].params == {"local": 1, "replicas": 4, "called": "all", "given": ()}
    assert closed.out_avals[0].shape == (3,)


def test_the_tangent_of_a_gather_is_a_gather():
    closed = jax.make_jaxpr(lambda x: jax.jvp(lambda y: replica_gather([y], 1, 4, "all")[0], (x,), (x,)))(X)
    assert [equation.primitive.name for equation in closed.eqns].count(GATHER) == 2
    assert [aval.shape for aval in closed.out_avals] == [(4, 3), (4, 3)]


def test_they_batch():
    closed = jax.make_jaxpr(jax.vmap(lambda x: (summed(x), replica_gather([x], 1, 4, "all")[0]), out_axes=(0, 1)))(X)
    assert [aval.shape for aval in closed.out_avals] == [(3,), (4, 3)]


@pytest.mark.parametrize("enter", [jax.jit, jax.checkpoint, lambda f: lambda x: jax.lax.map(f, x)])
def test_they_are_found_inside_other_programs(enter):
    closed = jax.make_jaxpr(enter(summed))(X)
    assert primitive_names(closed) & PLACEHOLDERS
    assert [found for found in map(local_replica_of, closed.eqns) if found is not None] == [1]
    assert not primitive_names(jax.make_jaxpr(enter(jnp.sin))(X)) & PLACEHOLDERS


def test_a_program_of_one_replica_cannot_be_compiled_with_them():
    with pytest.raises(MergeError, match="jitted function, loop or branch"):
        jax.jit(summed).lower(X)


def test_an_equation_that_is_bound_again_keeps_its_line_and_settings():
    def traced(x):
        with jax.default_matmul_precision("highest"), jax.named_scope("inner"):
            return jnp.dot(x, x)

    (equation,) = jax.make_jaxpr(traced)(X).eqns
    (again,) = jax.make_jaxpr(lambda x: bind_equation(equation, [x, x]))(X).eqns
    assert again.primitive is equation.primitive
    assert again.params == equation.params
    assert str(again.source_info.name_stack) == str(equation.source_info.name_stack) == "inner"
    assert source_line(again) == source_line(equation)


def test_a_call_that_is_bound_again_runs_its_functions():
    for function in (jax.jit(jnp.sin), jax.nn.relu, lambda x: jax.lax.map(jnp.sin, x)):
        for equation in jax.make_jaxpr(function)(X).eqns:
            (result,) = bind_equation(equation, [X])[:1]
            np.testing.assert_allclose(result, function(X))


def test_primitive_names_reach_into_calls():
    assert {"sin", "jit"} <= primitive_names(jax.make_jaxpr(jax.jit(jnp.sin))(X).jaxpr)
