"""Sums of negative zeros over replicas have the same sign on any number of devices, however they are computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives.stacked import gather_padded

REPLICAS, LAYOUTS = 4, (1, 2, 3, 4)


def number(dtype):
    """A number whose parts are -0.0."""
    return jnp.asarray(complex(-0.0, -0.0) if jnp.issubdtype(dtype, jnp.complexfloating) else -0.0, dtype)


def reduced(op, strategy, dtype):
    return lambda: [strategy.reduce(op, strategy.run(lambda: jnp.full(3, number(dtype))), axis=None)]


def summed(strategy, dtype):
    return reduced("SUM", strategy, dtype)


def averaged(strategy, dtype):
    return reduced("MEAN", strategy, dtype)


def all_reduced(strategy, dtype):
    def replica():
        context, zeros = mr.get_replica_context(), jnp.full(3, number(dtype))
        return (context.all_reduce("SUM", zeros), *context.all_reduce("MEAN", [zeros, zeros[:2]]))

    return lambda: [strategy.experimental_local_results(one)[0] for one in strategy.run(replica)]


def merged(strategy, dtype):
    with strategy.scope():
        w = mr.Variable(jnp.ones(3, dtype), name="w")

    def merge(strategy, zeros):
        return strategy.reduce("SUM", zeros, axis=None) * w

    def step():
        with mr.GradientTape() as tape:
            total = strategy.run(lambda: mr.get_replica_context().merge_call(merge, args=(jnp.full(3, number(dtype)),)))
            total = strategy.reduce("SUM", total, axis=None) if isinstance(total, mr.PerReplica) else total
        return total, tape.gradient(total, w)

    return step


def gradients(strategy, dtype):
    """Gradients of a tape in each replica, which the optimizer sums, and of a tape around the run."""
    with strategy.scope():
        w = mr.Variable(jnp.ones(3, dtype), name="w")
        optimizer = mr.optimizers.SGD(1.0)

    def replica():
        with mr.GradientTape() as tape:
            loss = jnp.real((w * number(dtype)).sum())
        context = mr.get_replica_context()
        own = context.all_reduce("SUM", tape.gradient(loss, w))
        optimizer.apply_gradients([(own, w)])
        return own

    def step():
        own = strategy.run(replica)
        with mr.GradientTape() as tape:
            losses = strategy.run(lambda: jnp.real((w * number(dtype)).sum()))
            loss = strategy.reduce("SUM", losses, axis=None)
        return strategy.experimental_local_results(own)[0], loss, tape.gradient(loss, w)

    return step


def gradients_of_reductions(strategy, dtype):
    """The backward passes of a reduction, a gather and a custom reduction sum cotangents over replicas."""
    with strategy.scope():
        w = mr.Variable(jnp.ones(3, dtype), name="w")

    def replica():
        context = mr.get_replica_context()
        found = []
        for reduction in ("SUM", "MEAN", lambda stacked: stacked[0] * number(dtype)):
            with mr.GradientTape() as tape:
                loss = jnp.real((context.all_reduce(reduction, w * 1.0) * number(dtype)).sum())
            found.append(tape.gradient(loss, w))
        return [context.all_reduce("SUM", one) for one in found]

    return lambda: [strategy.experimental_local_results(one)[0] for one in strategy.run(replica)]


CASES = [
    *((program, "float32") for program in (summed, averaged, all_reduced, merged, gradients, gradients_of_reductions)),
    *((program, dtype) for program in (summed, averaged) for dtype in ("bfloat16", "complex64")),
]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("program", "dtype"), CASES, ids=lambda one: getattr(one, "__name__", one))
@pytest.mark.first(3)
def test_zeros_have_the_same_signs_on_any_number_of_devices(program, compiled, dtype):
    bits = {}
    for devices in LAYOUTS:
        places = [f"CPU:{i}" for i in range(devices)]
        strategy = mr.MirroredStrategy(places, num_replicas=REPLICAS, deterministic=True)
        step = program(strategy, dtype)
        results = [np.asarray(one) for one in (mr.function(step) if compiled else step)()]
        assert all((one == 0).all() for one in results)
        bits[devices] = [one.tobytes().hex() for one in results]
    assert bits == {devices: bits[1] for devices in LAYOUTS}


@pytest.mark.first(1)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_gather_keeps_the_signs_of_zeros(dtype, deterministic):
    for devices in LAYOUTS:
        places = [f"CPU:{i}" for i in range(devices)]
        strategy = mr.MirroredStrategy(places, num_replicas=REPLICAS, deterministic=deterministic)

        def step():
            return strategy.gather(strategy.run(lambda: jnp.full(3, number(dtype))), axis=0)  # noqa: B023

        expected = np.asarray(jnp.full(3 * REPLICAS, number(dtype))).tobytes()

        def taped():
            with mr.GradientTape():
                return step()

        for gathered in (step(), mr.function(step)(), taped(), mr.function(taped)()):
            assert np.asarray(gathered).tobytes() == expected, devices


@pytest.mark.first(1)
@pytest.mark.parametrize("taped", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_components_that_are_read_in_a_compiled_function_keep_the_signs_of_zeros(dtype, taped):
    expected = np.asarray(jnp.full(3, number(dtype))).tobytes()
    for devices in LAYOUTS:
        places = [f"CPU:{i}" for i in range(devices)]
        strategy = mr.MirroredStrategy(places, num_replicas=REPLICAS)
        with strategy.scope():
            w = mr.Variable(jnp.zeros(3, dtype))
            own = mr.Variable(jnp.zeros(3, dtype), synchronization=mr.VariableSynchronization.ON_READ)

        def step(x):
            with mr.GradientTape(watch_accessed_variables=taped):
                made = strategy.run(lambda: x - w)  # noqa: B023
                strategy.run(lambda: own.assign(x, read_value=False))  # noqa: B023
                local = strategy.experimental_local_results(made)  # noqa: B023
                return [*made.values, *local, *(one.read_value() for one in own.values)]  # noqa: B023

        for component in mr.function(step)(jnp.full(3, number(dtype))):
            assert np.asarray(component).tobytes() == expected, devices


def test_uneven_rows_keep_the_signs_of_zeros():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    stacked = jax.device_put(jnp.full((2, 3), -0.0), strategy.device_assignment.sharded)
    gathered = gather_padded(stacked, 0, [3, 2], strategy.device_assignment)
    assert np.signbit(gathered).tolist() == [True] * 5


def test_the_gradient_of_a_compiled_gather():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=REPLICAS)
    with strategy.scope():
        w = mr.Variable([1.0, 2.0], name="w")

    def step():
        with mr.GradientTape() as tape:
            gathered = strategy.gather(strategy.run(lambda: w * 2.0), axis=0)
            loss = (gathered * jnp.arange(8.0)).sum()
        return tape.gradient(loss, w)

    assert mr.function(step)().tolist() == step().tolist() == [24.0, 32.0]


def test_variables_that_the_function_has_not_assigned_keep_the_signs_of_zeros():
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])
    kind = {"synchronization": mr.VariableSynchronization.ON_READ}
    with strategy.scope():
        own = mr.Variable(jnp.full(3, -0.0), **kind)
        first = mr.Variable(jnp.full(3, -0.0), aggregation=mr.VariableAggregation.ONLY_FIRST_REPLICA, **kind)
        added = mr.Variable(jnp.full(3, -0.0), **kind)
    outer = strategy.run(lambda: jnp.full(3, -0.0))

    @mr.function
    def step(x):
        added.assign_add(strategy.run(lambda: x * 1.0), read_value=False)
        in_branch = jax.lax.cond(
            x[0] == 0,
            lambda: (own.values[1].read_value(), outer.values[2]),
            lambda: (own.values[2].read_value(), outer.values[1]),
        )
        return [one.read_value() for one in own.values], in_branch, first.read_value()

    found = [*jax.tree.leaves(step(jnp.full(3, -0.0))), *(one.numpy() for one in added.values)]
    assert len(found) == 11
    assert all(np.signbit(np.asarray(one)).all() for one in found)
