"""Probes of what `local_collectives` relies on in JAX: rules of primitives, and functions with custom derivatives."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax import local_collectives
from mirrored._jax.jaxprs import primitive_names
from mirrored._jax.local_collectives import (
    GATHER,
    PLACEHOLDERS,
    SUM,
    bind_equation,
    bind_primitive,
    binder,
    fill_stores,
    is_from_jax,
    local_replica_of,
    replica_gather,
    replica_sum,
    same_on_local_replicas,
    stores_kept,
)
from mirrored._jax.source_lines import source_line
from mirrored._jax.traces import eager, put_trace, swap_trace
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


# Functions with custom derivatives


@jax.custom_jvp
def doubled(x):
    return x * 2.0


doubled.defjvp(lambda primals, tangents: (primals[0] * 2.0, tangents[0] * 2.0))


@jax.custom_vjp
def tripled(x):
    return {"result": x * 3.0}


tripled.defvjp(lambda x: ({"result": x * 3.0}, None), lambda _, cotangent: (cotangent["result"] * 3.0,))


class Receiving(jax.core.Trace):
    """A trace that receives functions with custom derivatives, as a tape does, and runs them eagerly."""

    def __init__(self):
        super().__init__()
        self.received = []

    def process_primitive(self, primitive, args, params, /):
        with eager():
            return primitive.bind(*args, **params)

    def process_custom_jvp_call(self, primitive, function, jvp, args, /, *, symbolic_zeros):
        call = binder(primitive, (function, jvp), {"symbolic_zeros": symbolic_zeros})
        return self._run(call, function, args)

    def process_custom_vjp_call(self, primitive, function, forward, backward, args, /, *, out_trees, symbolic_zeros):
        call = binder(
            primitive, (function, forward, backward), {"out_trees": out_trees, "symbolic_zeros": symbolic_zeros}
        )
        return self._run(call, function, args)

    def _run(self, call, function, args):
        self.received.append(function)
        with eager():
            first, second = call(*args), call(*args)
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)
        return second


def received(call):
    trace = Receiving()
    before = swap_trace(trace)
    try:
        result = call()
    finally:
        put_trace(before)
    return result, trace.received


def with_rule_of_jax(function):
    made = jax.custom_jvp(function)
    made.defjvp(functools.partial(jax.jvp, function))
    return made


@pytest.mark.parametrize(
    ("call", "expected", "from_jax"),
    [
        (lambda: doubled(X), X * 2.0, False),
        (lambda: tripled(X)["result"], X * 3.0, False),
        (lambda: jax.nn.relu(X), X, True),
        (lambda: with_rule_of_jax(functools.partial(jnp.polyval, X))(2.0), 4.0, False),
        (lambda: with_rule_of_jax(X.dot)(X), 5.0, False),
    ],
    ids=["custom_jvp", "custom_vjp", "of JAX", "of JAX with a value", "method of JAX"],
)
def test_a_trace_receives_them_and_may_call_them_repeatedly(call, expected, from_jax):
    result, functions = received(call)
    np.testing.assert_array_equal(result, expected)
    assert [is_from_jax(function) for function in functions] in ([from_jax], []), "rules of a library's code are cached"


def test_their_stores_are_kept_and_copied():
    _, (first,) = received(lambda: tripled(X))
    _, (second,) = received(lambda: tripled(X))
    filled = [bool(store) for store in first.stores if store is not None]
    assert filled, "a custom_vjp function stores the structure of its result"
    with stores_kept(first):
        assert not any(store for store in first.stores if store is not None)
        first.call_wrapped(X)
    assert [bool(store) for store in first.stores if store is not None] == filled
    local_collectives.reset_stores(second)
    fill_stores(second, first)
    assert [store.val for store in second.stores if store] == [store.val for store in first.stores if store]


def test_values_that_custom_jvp_closes_over_stay_closed_over():
    def closing(x, y):
        @jax.custom_jvp
        def scaled(a):
            return a * y

        scaled.defjvp(lambda primals, tangents: (primals[0] * 7.0, tangents[0] * 10.0))
        return scaled(x)

    closed = jax.make_jaxpr(closing)(X, X + 1.0)
    (equation,) = [one for one in closed.eqns if one.primitive.name == "custom_jvp_call"]
    assert equation.params["num_consts"] == 1

    def again(x, y):
        known = {closed.jaxpr.invars[0]: x, closed.jaxpr.invars[1]: y}
        return bind_primitive(equation.primitive, equation.params, [known[atom] for atom in equation.invars])[0]

    np.testing.assert_array_equal(again(X, X + 1.0), X * (X + 1.0))
    _, tangent = jax.jvp(lambda x: again(x, X + 1.0), (X,), (jnp.ones(3),))
    assert tangent.tolist() == [10.0] * 3, "the rule of the function is not used"


def test_primitive_names_reach_into_calls():
    assert {"sin", "jit"} <= primitive_names(jax.make_jaxpr(jax.jit(jnp.sin))(X).jaxpr)
