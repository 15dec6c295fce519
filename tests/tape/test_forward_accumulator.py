"""`ForwardAccumulator`: derivatives along a direction, nested with tapes and compiled. Values are TensorFlow's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.compilation import function
from mirrored.errors import ArgumentError, StructureError
from mirrored.tape import GradientTape
from mirrored.tape.forward_accumulator import ForwardAccumulator
from mirrored.variables import Variable


@pytest.fixture
def x():
    return jnp.float32(3.0)


def along(x):
    return ForwardAccumulator(x, jnp.ones_like(x))


def plain(step):
    return step


wraps = pytest.mark.parametrize("wrap", [plain, function], ids=["eager", "compiled"])


@wraps
def test_derivatives_along_a_direction(x, wrap):
    @wrap
    def step(x):
        with along(x) as accumulator:
            y = x**3
            inside = accumulator.jvp(y)
            z = 2 * y
        return inside, accumulator.jvp([y, {"z": z}, x])

    inside, (of_y, of_z, of_x) = step(x)
    assert (inside, of_y, of_z["z"], of_x) == (27.0, 27.0, 54.0, 1.0)


def test_what_does_not_depend_on_the_inputs(x):
    with along(x) as accumulator:
        y, whole = jnp.float32(1.0), jnp.arange(2) * x.astype(int)
    assert accumulator.jvp(y) is None
    assert accumulator.jvp(whole) is None
    assert accumulator.jvp(y, unconnected_gradients="zero") == 0.0


def test_variables_and_their_assignments():
    v = Variable([1.0, 2.0])
    with ForwardAccumulator([v], [jnp.array([1.0, 0.0])]) as accumulator:
        y = v * v
        v.assign_add([1.0, 1.0])
        z = v * v
    assert [one.tolist() for one in accumulator.jvp([y, z, v])] == [[2.0, 0.0], [4.0, 0.0], [1.0, 0.0]]


@wraps
def test_an_accumulator_around_a_tape(x, wrap):
    @wrap
    def step(x):
        with along(x) as accumulator:
            with GradientTape() as tape:
                tape.watch(x)
                y = x**3
            gradient = tape.gradient(y, x)
        return gradient, accumulator.jvp(gradient)

    assert step(x) == (27.0, 18.0)


@wraps
def test_a_tape_around_an_accumulator(x, wrap):
    @wrap
    def step(x):
        with GradientTape() as tape:
            tape.watch(x)
            with along(x) as accumulator:
                y = x**3
            derivative = accumulator.jvp(y)
        return tape.gradient(derivative, x)

    assert step(x) == 18.0


def test_nested_accumulators(x):
    with along(x) as outer:
        with along(x) as inner:
            y = x**3
        derivative = inner.jvp(y)
    assert outer.jvp(derivative) == 18.0


def test_nested_accumulators_after_their_blocks(x):
    with along(x) as outer, along(x) as inner:
        y = x**3
    derivative = inner.jvp(y)
    assert (derivative, outer.jvp(y), outer.jvp(derivative)) == (27.0, 27.0, 18.0)
    assert inner.jvp(outer.jvp(y)) is None


def test_a_compiled_function_in_an_accumulator(x):
    cube = function(lambda x: x**3)
    with along(x) as accumulator:
        y = cube(x)
    assert accumulator.jvp(y) == 27.0


@pytest.mark.long
def test_the_derivatives_are_those_of_jax():
    m, direction = jnp.arange(6.0).reshape(2, 3) / 6, jnp.ones((2, 3))

    def run(m):
        return jax.nn.softmax(m @ m.T), jax.lax.scan(lambda c, row: (jnp.sin(c) + row.sum(), None), 0.0, m)[0]

    with ForwardAccumulator(m, direction) as accumulator:
        results = run(m)
    for one, other in zip(accumulator.jvp(results), jax.jvp(run, (m,), (direction,))[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_misuse(x):
    with pytest.raises(StructureError, match="tangent is float32"):
        ForwardAccumulator(x, jnp.ones(2))
    with pytest.raises(StructureError, match="tangent is int32"):
        ForwardAccumulator(x, jnp.int32(1))
    with pytest.raises(StructureError, match="multiple times"):
        ForwardAccumulator([x, x], [x, x])
    with pytest.raises(StructureError, match="nested structure"):
        ForwardAccumulator([x], x)
    with along(x) as accumulator, pytest.raises(ArgumentError, match="already recording"):
        accumulator.__enter__()


COLLECTIVES = {
    "SUM": lambda context, x: context.all_reduce("SUM", x),
    "MEAN": lambda context, x: context.all_reduce("MEAN", x),
    "gather": lambda context, x: jnp.sum(context.all_gather(x, 0)),
    "merge": lambda context, x: context.merge_call(lambda s, one: s.reduce("SUM", one, axis=None), (x,)),
}


@pytest.mark.first(8)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.ways(replicas=(1, 4))
def test_a_collective_in_the_block(way, collective):
    """The tangents of all replicas are reduced, as the values are."""

    def replica(x, tangent):
        with ForwardAccumulator(x, tangent) as accumulator:
            total = COLLECTIVES[collective](mr.get_replica_context(), x**2)
            y = total * x
        return accumulator.jvp(y)

    x, tangent = jnp.arange(1.0, 1.0 + way.num_replicas), jnp.arange(3.0, 3.0 + way.num_replicas)
    step = way.compile(lambda *args: way.strategy.run(replica, args=args))
    found = step(*(mr.PerReplica([one[i : i + 1] for i in range(way.num_replicas)]) for one in (x, tangent)))

    def whole(x):
        total = jnp.sum(x**2)
        return x * (total / way.num_replicas if collective == "MEAN" else total)

    _, expected = jax.jvp(whole, (x,), (tangent,))
    np.testing.assert_allclose(np.concatenate(way.strategy.experimental_local_results(found)), expected, rtol=1e-6)


AROUND = {
    "sine": (lambda x, v: jnp.sin(x * v) * v, lambda x, v: jnp.sin(x * v) * v),
    "sum": (
        lambda x, v: jnp.tanh(COLLECTIVES["SUM"](mr.get_replica_context(), x * v)),
        lambda x, v: jnp.tanh(jnp.sum(x * v, 0)),
    ),
    "mean": (
        lambda x, v: COLLECTIVES["MEAN"](mr.get_replica_context(), x * x) * v * v,
        lambda x, v: jnp.mean(x * x, 0) * v * v,
    ),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 2), (2, 3)])
def test_an_accumulator_around_an_eager_run(devices, replicas, deterministic, name):
    """The replicas compute on their devices, on which the backward pass that is transposed has arrays, too."""
    names = [f"CPU:{k}" for k in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=deterministic)
    with strategy.scope():
        v = mr.Variable([0.2, 0.1])
    x = jnp.asarray([[1.0, 3.0], [2.0, -1.0], [0.5, 0.25]])[:replicas]
    xs = strategy.experimental_distribute_values_from_function(lambda context: x[context.replica_id_in_sync_group])
    replica, whole = AROUND[name]
    with ForwardAccumulator(v, jnp.asarray([1.0, -2.0])) as accumulator:
        total = strategy.reduce("SUM", strategy.run(lambda x: replica(x, v), args=(xs,)), axis=None)

    def reference(v):
        return jnp.sum(jnp.broadcast_to(whole(x, v), x.shape), 0)

    wanted = jax.jvp(reference, (jnp.asarray([0.2, 0.1]),), (jnp.asarray([1.0, -2.0]),))[1]
    np.testing.assert_allclose(accumulator.jvp(total), wanted, rtol=1e-5)
