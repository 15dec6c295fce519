"""Means of 16-bit floats equal those of NumPy, even if the sum overflows 16 bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives.cross_device_ops import (
    AllReduce,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    OrderedTree,
    ReductionToOneDevice,
)
from mirrored.collectives.summation import opaque_false

HALVES = [jnp.float16, jnp.bfloat16]


@pytest.mark.ways(replicas=(2, 4))
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.first(4)
def test_all_means(way, dtype):
    with way.strategy.scope():
        variable = mr.Variable(jnp.zeros((), dtype), aggregation="MEAN")

    def replica_step():
        large = jnp.asarray(40000.0, dtype)
        variable.assign(large)
        return jnp.full((400,), 200.0, dtype), large, mr.get_replica_context().all_reduce("MEAN", large)

    def step():
        many, large, mean = way.strategy.run(replica_step)
        return way.strategy.reduce("MEAN", many, axis=0), way.strategy.reduce("MEAN", large, axis=None), mean

    over_axis, over_replicas, in_replica = way.compile(step)()
    large = float(jnp.asarray(40000.0, dtype))
    assert (float(over_axis), over_axis.dtype) == (200.0, dtype)
    assert (float(over_replicas), over_replicas.dtype) == (large, dtype)
    assert [float(one) for one in way.strategy.experimental_local_results(in_replica)] == [
        large
    ] * way.strategy.num_replicas_in_sync
    assert float(variable.read_value()) == large


@pytest.mark.first(1)
@pytest.mark.ways(replicas=(2,))
@pytest.mark.parametrize(("dtype", "number"), [(jnp.float16, 3e-5), (jnp.float8_e4m3fn, 256.0)])
def test_means_at_the_ends_of_the_range(way, dtype, number):
    one = jnp.asarray(number, dtype)
    with way.strategy.scope():
        variable = mr.Variable(jnp.zeros((), dtype), aggregation="MEAN")

    def replica_step():
        variable.assign(one)
        with mr.GradientTape() as tape:
            tape.watch(one)
            mean = mr.get_replica_context().all_reduce("MEAN", one)
        return one[None], mean, tape.gradient(mean, one, output_gradients=one)

    def step():
        values, *others = way.strategy.run(replica_step)
        return [way.strategy.reduce("MEAN", values, axis=axis) for axis in (None, 0)], others

    means, others = way.compile(step)()
    found = [*means, variable.read_value()]
    for each in others:
        found += way.strategy.experimental_local_results(each)
    assert {(float(x.astype(jnp.float32).sum()), x.dtype) for x in found} == {(float(one), jnp.dtype(dtype))}


@pytest.mark.parametrize("compiled", [False, True])
def test_deterministic_sums_of_small_numbers(compiled):
    strategy = mr.MirroredStrategy(jax.devices()[:2], deterministic=True)
    total = lambda: strategy.reduce("SUM", strategy.run(lambda: jnp.float16(1.5e-5)), axis=None)  # noqa: E731
    assert float((mr.function(total) if compiled else total)()) == 2 * float(np.float16(1.5e-5))


@pytest.mark.first(5)
@pytest.mark.parametrize(
    "algorithm",
    [AllReduce(), NcclAllReduce(), HierarchicalCopyAllReduce(), ReductionToOneDevice(), OrderedTree()],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("dtype", HALVES)
def test_every_algorithm_and_its_gradient(algorithm, dtype):
    strategy = mr.MirroredStrategy(jax.devices()[:2], cross_device_ops=algorithm)

    def replica_step():
        value = jnp.asarray(40000.0, dtype)
        with mr.GradientTape() as tape:
            tape.watch(value)
            mean = mr.get_replica_context().all_reduce("MEAN", value)
        return mean, tape.gradient(mean, value)

    means, gradients = mr.function(lambda: strategy.run(replica_step))()
    for mean, gradient in zip(
        strategy.experimental_local_results(means), strategy.experimental_local_results(gradients), strict=True
    ):
        assert (float(mean), mean.dtype) == (float(jnp.asarray(40000.0, dtype)), dtype)
        np.testing.assert_array_equal(np.asarray(gradient, np.float32), 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16, np.int32, np.uint8, np.bool_, np.complex64])
@pytest.mark.parametrize("value", [0, 1, 255, -3, np.nan, np.inf])
def test_the_condition_of_a_fusion_boundary_is_false_for_every_value(dtype, value):
    with np.errstate(invalid="ignore", over="ignore"):
        array = np.full((2, 3), value).astype(dtype)
    assert not opaque_false(jnp.asarray(array))
    assert not opaque_false(jnp.asarray(array[0, 0]))


def test_the_condition_of_a_fusion_boundary_needs_no_nested_trace():
    # A `jnp` function would be traced once per shape, in every first step.
    for shape in ((), (3,), (2, 3, 4)):
        names = [one.primitive.name for one in jax.make_jaxpr(opaque_false)(jnp.zeros(shape)).eqns]
        assert not {"jit", "pjit"} & set(names), names
