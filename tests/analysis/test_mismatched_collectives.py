"""Collectives that only some replicas would execute raise an error during tracing instead of deadlocking."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mirrored as mr


def context():
    return mr.get_replica_context()


def total(x):
    return context().all_reduce("SUM", x)


def own():
    return jnp.asarray(context().replica_id_in_sync_group, jnp.float32)


def in_cond(chooses):
    return lambda: lax.cond(chooses() > 0.0, lambda: total(own() + 1.0), lambda: 0.0)


def in_while(bound):
    return lambda: lax.while_loop(lambda state: state[0] < bound(), lambda s: (s[0] + 1, total(s[1])), (0.0, 1.0))[1]


def in_scan(inner):
    return lambda: lax.scan(lambda carry, x: (carry + inner()(), None), 0.0, jnp.arange(2.0))[0]


def in_root():
    """A collective in `custom_root`, whose primitive keeps its jaxpr in an object (from JAX 0.12)."""
    return lambda: lax.custom_root(lambda v: v - total(v * 0.0 + 1.0), 0.0, lambda f, v: v - f(v), lambda g, y: y)


def in_solver_of_root(condition):
    """A collective in the solver of `custom_root`, whose equation has more operands than the solver."""

    def solve(f, v):
        return lax.cond(condition() > 0.0, lambda: total(v - f(v)), lambda: v)

    return lambda: lax.custom_root(lambda v: v - own(), own() + 1.0, solve, lambda g, y: y / g(1.0))


def newton():
    """Newton's method for the mean of values of the replicas: all values of the loop are equal on all replicas."""

    def solve(f, v):
        return lax.while_loop(lambda c: jnp.abs(f(c)) > 1e-6, lambda c: c - 0.5 * f(c), v)

    start = jnp.float32(4.0)
    return lambda: lax.custom_root(lambda w: total(w - own()), start, solve, lambda g, y: y / g(1.0))


def counted(wrap):
    """A loop of a number of sums that is equal on all replicas, in a function whose other operand differs."""

    def loop(count, x):
        return lax.fori_loop(0, count, lambda _, c: c + total(x), jnp.float32(0))

    return lambda: wrap(loop)(jnp.int32(total(1.0)), own())


def in_reduction():
    """A collective in the function of `lax.reduce`, any of whose arguments can be an element of the array."""
    return lambda: lax.reduce(
        own() * jnp.ones(3), 0.0, lambda one, other: lax.cond(other > 0.0, lambda: total(one), lambda: one), (0,)
    )


def in_solver(right):
    """Conjugate gradients: the loop is in one of the functions of `lax.custom_linear_solve`."""
    return lambda: jnp.sum(jax.scipy.sparse.linalg.cg(lambda v: total(v * (own() + 1.0)), right() * jnp.ones(2))[0])


def in_jit(inner):
    return lambda: jax.jit(inner())()


@pytest.fixture
def strategy():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize(
    "program",
    [in_cond(own), in_while(own), in_scan(lambda: in_cond(own)), in_jit(lambda: in_cond(own)),
     in_cond(lambda: lax.cond(own() > 0, lambda: 1.0, lambda: 2.0)),
     lambda: lax.cond(own() > 0.0, in_root(), lambda: 0.0),
     in_solver(own), in_solver_of_root(own), in_reduction()],
    ids=["cond", "while", "cond in scan", "cond in jit", "a condition that came to differ in a cond", "custom_root",
         "conjugate gradients", "solver of custom_root", "reduce"],
)  # fmt: skip
def test_under_a_condition_that_differs_they_are_refused(strategy, program):
    with pytest.raises(mr.errors.MergeError, match=r"psum, test_mismatched_collectives.*whose condition differs"):
        strategy.run(mr.function(program))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (in_cond(lambda: total(own())), 3.0),
        (in_cond(lambda: jnp.float32(1.0)), 3.0),
        (in_while(lambda: jnp.float32(3.0)), 8.0),
        (in_while(lambda: total(own())), 2.0),
        (in_scan(lambda: in_cond(lambda: total(own()))), 6.0),
        (lambda: lax.cond(own() > 0.0, lambda: 5.0, lambda: 7.0) + total(1.0), [9.0, 7.0]),
        (in_solver_of_root(lambda: total(own())), 1.0),
        (newton(), 0.5),
        (counted(jax.jit), 2.0),
        (counted(lambda loop: lax.composite(loop, name="my.counted")), 2.0),
        (counted(jax.custom_batching.sequential_vmap), 2.0),
    ],
    ids=[
        "cond",
        "constant cond",
        "while",
        "while up to a sum",
        "cond in scan",
        "no collective in the branch",
        "solver of custom_root",
        "Newton's method in custom_root",
        "jit",
        "composite",
        "sequential_vmap",
    ],
)
def test_under_a_condition_that_is_equal_they_work(strategy, program, expected):
    results = strategy.local_results(strategy.run(mr.function(program)))
    np.testing.assert_array_equal(np.asarray(results), np.broadcast_to(expected, 2))


@pytest.mark.parametrize("layout", [(2, 2), (2, 1), (4, 2)], ids=["2on2", "2on1", "4on2"])
def test_conjugate_gradients_over_all_replicas_give_a_mirrored_value(layout):
    replicas, devices = layout
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with strategy.scope():
        v = mr.Variable(jnp.zeros(2))

    def solve(right):
        matrix = jnp.diag(jnp.array([1.0, 2.0])) * (own() + 1.0)
        v.assign(jax.scipy.sparse.linalg.cg(lambda x: total(matrix @ x), right() * jnp.array([1.0, 1.0]))[0])

    mr.function(lambda: strategy.run(solve, args=(lambda: 1.0,)))()
    factor = replicas * (replicas + 1) / 2
    np.testing.assert_allclose(v.numpy(), [1 / factor, 0.5 / factor], rtol=1e-5)
    with pytest.raises(mr.errors.MergeError, match="whose condition differs"):
        mr.function(lambda: strategy.run(solve, args=(own,)))()


def test_a_loop_that_becomes_uneven_is_refused(strategy):
    def program():
        return lax.while_loop(lambda s: s[0] < 5.0, lambda s: (s[0] + 1.0 + own(), total(s[1])), (0.0, 1.0))[1]

    with pytest.raises(mr.errors.MergeError, match="in a loop"):
        strategy.run(mr.function(program))


def test_on_one_device_nothing_waits():
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=1)
    assert float(strategy.run(mr.function(in_cond(lambda: own() + 1.0)))) == 1.0
