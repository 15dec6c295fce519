"""Which variables of a jaxpr get equal value numbers, through calls, branches and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from mirrored.analysis.replication_check import Origin, check_replication


def same(function: Callable[..., Any], *values: Any) -> bool:
    """Returns whether the two results of `function` have equal numbers, on one device."""
    closed = jax.make_jaxpr(function)(*values)
    return check_replication(closed, [Origin("operand", varies=False) for _ in values], axis=None).same(
        closed.jaxpr.outvars
    )


@jax.custom_vjp
def doubled(x):
    total = x + x
    return [total, total]


doubled.defvjp(lambda x: (doubled(x), None), lambda _, cotangents: (sum(cotangents),))


@jax.jit
def noisy(x):
    return jax.pure_callback(lambda x: np.random.rand(*x.shape).astype(x.dtype), x, x)


def counted(step, start):
    def run(x):
        _, one, other = lax.fori_loop(0, 5, lambda i, c: (c[0] + 1.0, *step(i, *c[1:])), (0.0, *start(x)))
        return one, other

    return run


def over_pairs(step: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    """Scans an array inside a scan of the same array; `step` gets a carry and an element of both loops."""

    def run(x: Any) -> Any:
        xs = x + jnp.arange(3.0)

        def outer(carry: Any, xi: Any) -> Any:
            return lax.scan(lambda c, xj: (step(c, xi, xj), None), carry, xs)[0], None

        return lax.scan(outer, (x, x), xs)[0]

    return run


def two_loops(step: Callable[[Any, Any], Any], other: Callable[[Any, Any], Any], loop: str) -> Callable[[Any], Any]:
    """Runs a scan or a while loop for each of two replicas; returns the first carry of each."""

    def one(x: Any, step: Callable[[Any, Any], Any]) -> Any:
        if loop == "scan":
            return lax.scan(lambda c, y: (step(c, y), c[1]), (x, x, x), jnp.arange(3.0))[0][0]
        return lax.while_loop(lambda c: c[2] < 9.0, lambda c: step(c, 2.0), (x, x, x))[0]

    return lambda x: (one(x, step), one(x, other))


def count_and(first: float, second: float, third: float) -> Callable[[Any, Any], Any]:
    return lambda c, y: (c[0] + first, c[1] * second + y, c[2] + third)


def nested(inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The step of `two_loops` whose second carry comes from a loop, which also computes `inner` of the first."""

    def step(c: Any, y: Any) -> Any:
        first, other = lax.fori_loop(0, 3, lambda i, pair: inner(*pair), (c[0], c[1]))
        return lax.cond(y > 1.0, lambda: (first, other * 2.0), lambda: (first + 1.0, other)) + (c[2] + 1.0,)

    return step


def vmapped(factor: float) -> Callable[[Any], Any]:
    """A function with a rule for `vmap`, as each replica creates its own."""
    function = jax.custom_batching.custom_vmap(lambda x: x * factor)
    function.def_vmap(lambda size, batched, x: (x * factor, batched[0]))
    return function


def of_sequential_vmap(factor: float) -> Callable[[Any], Any]:
    return lambda x: jax.vmap(jax.custom_batching.sequential_vmap(lambda y: jnp.sin(y) * factor))(x + jnp.arange(3.0))


def reduced(factor: float) -> Callable[[Any], Any]:
    return lambda x: lax.reduce(x + jnp.arange(3.0), 0.0, lambda a, b: a + b * factor, (0,))


def linear(factor: float) -> Callable[[Any], Any]:
    return lambda x: jax.custom_derivatives.linear_call(lambda r, y: y * r * factor, lambda r, t: t, x * 2.0, x)


def root_of(factor: float) -> Callable[[Any], Any]:
    """A `custom_root` whose solver closes over an array and over a traced value."""

    def of(x: Any) -> Any:
        table = np.arange(3) * factor

        def solve(f: Any, v: Any) -> Any:
            return v - f(v) * x + jnp.asarray(table)[1]

        return lax.custom_root(lambda v: v * v - x, x * 2.0, solve, lambda g, y: y / g(1.0))

    return of


OF_USER_FUNCTIONS = {
    "custom_vmap": vmapped,
    "sequential_vmap": of_sequential_vmap,
    "reduce": reduced,
    "linear_call": linear,
    "custom_root": root_of,
}

EQUAL = {
    **{
        f"{name} of each replica's own functions": lambda x, make=make: (make(2.0)(x), make(2.0)(x))
        for name, make in OF_USER_FUNCTIONS.items()
    },
    "scan: nested loops and branches that differ in another carry": two_loops(
        nested(lambda a, b: (a * 2.0 + 1.0, b * 3.0)), nested(lambda a, b: (a * 2.0 + 1.0, b * 4.0)), "scan"
    ),
    **{
        f"{loop}: loops that differ in another carry": two_loops(
            count_and(1.0, 2.0, 1.0), count_and(1.0, 3.0, 1.0), loop
        )
        for loop in ("scan", "while")
    },
    "two outputs of one custom_vjp call": lambda x: tuple(doubled(x)),
    "two outputs of one jitted call": lambda x: jax.jit(lambda x: (x * 2.0, x * 2.0))(x),
    "equal operands of one call": lambda x: jax.jit(lambda x, y: (x + 1.0, y + 1.0))(x, x),
    "a call and its body": lambda x: (jax.jit(lambda x: x * 2.0)(x), x * 2.0),
    "two outputs of one cond": lambda x: lax.cond(x > 0, lambda x: (x, x), lambda x: (-x, -x), x),
    "a cond whose branches agree": lambda x: (lax.cond(x > 0, lambda x: x + 1.0, lambda x: x + 1.0, x), x + 1.0),
    "two carries of one loop": counted(lambda i, a, b: (a * 2.0, b * 2.0), lambda x: (x, x)),
    "carries that exchange": counted(lambda i, a, b: (b * 2.0, a * 2.0), lambda x: (x, x)),
    "a carry that stays": counted(lambda i, a, b: (a, b), lambda x: (x, x + 0.0 * 1.0)[:1] * 2),
    "carries of a while": lambda x: lax.while_loop(lambda c: c[0] < 9.0, lambda c: (c[0] + 1.0, c[1] + 1.0), (x, x)),
    "stacked results of one scan": lambda x: lax.scan(lambda c, y: (c, (c + y, c + y)), x, jnp.arange(3.0))[1],
    "one element of nested scans": over_pairs(lambda c, xi, xj: (0.5 * c[0] + xi * xj, 0.5 * c[1] + xi * xj)),
    "scans of one array": lambda x: [lax.scan(lambda c, y: (c + y, None), x, jnp.arange(3.0))[0] for _ in range(2)],
    "a checkpointed function": lambda x: jax.checkpoint(lambda x: (jnp.sin(x), jnp.sin(x)))(x),
}
UNEQUAL = {
    **{
        f"{name} of functions that differ": lambda x, make=make: (make(2.0)(x), make(3.0)(x))
        for name, make in OF_USER_FUNCTIONS.items()
    },
    "custom_root from other guesses": lambda x: [root_of(2.0)(y) for y in (x, x + 1.0)],
    "scan: nested loops that differ in this carry": two_loops(
        nested(lambda a, b: (a * 2.0 + 1.0, b)), nested(lambda a, b: (a * 2.0 + 2.0, b)), "scan"
    ),
    "scan: nested loops that read a carry that differs": two_loops(
        nested(lambda a, b: (a * 2.0 + b, b * 3.0)), nested(lambda a, b: (a * 2.0 + b, b * 4.0)), "scan"
    ),
    "while: conditions that read a carry that differs": lambda x: [
        lax.while_loop(lambda c: c[1] < 9.0, lambda c, d=d: (c[0] + 1.0, c[1] + d), (x, x))[0] for d in (1.0, 2.0)
    ],
    "while: conditions that read a constant that differs": lambda x: [
        lax.while_loop(lambda c, d=d: c[0] < d * x, lambda c: (c[0] + 1.0, c[1]), (x, x))[0] for d in (1.0, 2.0)
    ],
    "scan: a constant of one body in the place of a carry of the other": lambda x: (
        lax.scan(lambda c, z: (c, c + x), x, jnp.arange(1.0))[1],
        lax.scan(lambda c, z: ((c[1], c[1] + c[0]), None), (x, x), jnp.arange(1.0))[0][1],
    ),
    **{
        f"{loop}: loops that differ in this carry": two_loops(count_and(1.0, 2.0, 1.0), count_and(4.0, 2.0, 1.0), loop)
        for loop in ("scan", "while")
    },
    "while: loops with other numbers of iterations": two_loops(
        count_and(1.0, 2.0, 1.0), count_and(1.0, 2.0, 2.0), "while"
    ),
    "loops that differ in a carry on which this one depends": two_loops(
        lambda c, y: (c[0] + c[1], c[1] * 2.0, c[2] + y), lambda c, y: (c[0] + c[1], c[1] * 3.0, c[2] + y), "scan"
    ),
    "scans of other lengths": lambda x: [
        lax.scan(lambda c, _: ((c[0] + 1.0, c[1] * 2.0), None), (x, x), length=n)[0][0] for n in (2, 3)
    ],
    "scans of one length in other directions": lambda x: [
        lax.scan(lambda c, y: ((2.0 * c[0] + y, c[1]), None), (x, x), jnp.arange(3.0), reverse=r)[0][0] for r in (0, 1)
    ],
    "outputs of one call": lambda x: jax.jit(lambda x: (x * 2.0, x * 3.0))(x),
    "one call of unequal operands": lambda x: jax.jit(lambda x, y: (x + 1.0, y + 1.0))(x, x * 2.0),
    "two calls of a callback": lambda x: (noisy(x), noisy(x)),
    "a callback in one call": lambda x: jax.jit(lambda x: (noisy(x), noisy(x)))(x),
    "a cond in one branch": lambda x: lax.cond(x > 0, lambda x: (x, x), lambda x: (x, -x), x),
    "carries that start apart": counted(lambda i, a, b: (a * 2.0, b * 2.0), lambda x: (x, x + 1.0)),
    "carries told apart by the first turn": counted(lambda i, a, b: (a * 2.0, b * 3.0), lambda x: (x, x)),
    "stacked results": lambda x: lax.scan(lambda c, y: (c, (c + y, c - y)), x, jnp.arange(3.0))[1],
    "carries of a while": lambda x: lax.while_loop(lambda c: c[0] < 9.0, lambda c: (c[0] + 1.0, c[1] + 2.0), (x, x)),
    "elements of nested scans": over_pairs(lambda c, xi, xj: (0.5 * c[0] + xi, 0.5 * c[1] + xj)),
}


def chain(x):
    """Four carries with equal initial values, which the iterations distinguish one after another."""

    def turn(carry, _):
        a, b, c, d = carry
        return (a + 1.0, a + 1.0, b + 1.0, c + d * 0.5), None

    (_, _, one, other), _ = lax.scan(turn, (x, x, x, x), length=4)
    return one, other


@pytest.mark.parametrize("name", EQUAL)
def test_equal_values_get_one_number(name):
    assert same(EQUAL[name], 1.0)


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_values_get_different_numbers(name):
    assert not same(UNEQUAL[name], 1.0)


def test_carries_told_apart_in_a_later_turn():
    assert not same(chain, 1.0)


def test_calls_of_one_jitted_function_that_differ_by_a_nested_operand():
    inner = jax.jit(lambda x, y: x * y)
    outer = jax.jit(lambda x, y: inner(x, y) + 1.0)
    assert same(lambda x, y: (outer(x, y), outer(x, y)), 1.0, 2.0)
    assert not same(lambda x, y: (outer(x, y), outer(x, x)), 1.0, 2.0)


@pytest.mark.parametrize(
    "separate", [lax.optimization_barrier, jax.device_put], ids=["optimization_barrier", "device_put"]
)
def test_results_of_an_operation_on_each_operand_on_its_own_depend_on_that_operand_only(separate: Any) -> None:
    def of(position: int) -> Callable[..., Any]:
        return lambda x, y, z: (separate((x, z))[position], separate((y, z))[position])

    assert same(of(1), 1.0, 2.0, 3.0)
    assert not same(of(0), 1.0, 2.0, 3.0)
