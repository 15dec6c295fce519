"""Probes of what `custom_derivatives` relies on in JAX: how a trace receives functions with custom derivatives."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.custom_derivatives import (
    bind_primitive,
    binder,
    fill_stores,
    is_from_jax,
    reset_stores,
    stores_kept,
)
from mirrored._jax.traces import current_trace, eager, put_trace

X = jnp.arange(3.0)


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
    before = current_trace()
    put_trace(trace)
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
    reset_stores(second)
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


def tripling(function):
    made = jax.custom_jvp(function)
    made.defjvp(lambda primals, tangents: (primals[0] * 3.0, tangents[0] * 3.0))
    return made


def test_a_function_with_an_empty_cell_is_not_of_jax():
    def make(is_defined):
        def function(x):
            return helper(x) if is_defined else x * 3.0

        if is_defined:

            def helper(x):
                return x

        return tripling(function)

    _, functions = received(lambda: make(False)(X))
    assert [is_from_jax(function) for function in functions] == [False]


class Comparing:
    """A callable object that is compared elementwise, like the modules of some libraries."""

    # Python 3.11 compares an object that does not declare a signature with ``type`` and takes the truth value of the
    # result, so that ``inspect.signature``, which JAX calls, raises for elementwise comparison.
    __signature__ = inspect.signature(lambda x: x)

    def __call__(self, x):
        return x * 3.0

    def __eq__(self, other):
        return np.zeros(2, bool)

    def __hash__(self):
        return 1


def test_an_object_that_is_compared_elementwise_is_not_of_jax():
    for _ in range(2):
        _, functions = received(lambda: tripling(Comparing())(X))
        assert [is_from_jax(function) for function in functions] == [False]
