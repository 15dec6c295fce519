"""A custom reduction is applied to the components ``[replicas, ...]`` on any number of replicas, also on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives import ReductionToOneDevice


def squares(per_replica: jax.Array) -> jax.Array:
    return (per_replica**2).sum(0)


def strategy_of(replicas: int) -> mr.MirroredStrategy:
    return mr.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def reduce_of_results(strategy: mr.MirroredStrategy) -> Any:
    return strategy.reduce(squares, strategy.run(lambda: jnp.full(2, 3.0)), axis=None)


def all_reduce(strategy: mr.MirroredStrategy) -> Any:
    results = strategy.run(lambda: mr.get_replica_context().all_reduce(squares, jnp.full(2, 3.0)))
    return strategy.experimental_local_results(results)[0]


def reduce_in_a_merge(strategy: mr.MirroredStrategy) -> Any:
    def replica() -> Any:
        return mr.get_replica_context().merge_call(
            lambda strategy, x: strategy.reduce(squares, x, axis=None), args=(jnp.full(2, 3.0),)
        )

    return strategy.experimental_local_results(strategy.run(replica))[0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("reduced", [reduce_of_results, all_reduce, reduce_in_a_merge])
def test_a_custom_reduction_is_applied_on_any_number_of_replicas(
    reduced: Callable[..., Any], replicas: int, compiled: bool
) -> None:
    strategy = strategy_of(replicas)
    step = mr.function(lambda: reduced(strategy)) if compiled else lambda: reduced(strategy)
    np.testing.assert_array_equal(step(), np.full(2, 9.0 * replicas))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("synchronization", ["ON_READ", "ON_WRITE"])
def test_a_custom_aggregation_is_applied_on_any_number_of_replicas(
    synchronization: str, replicas: int, compiled: bool
) -> None:
    strategy = strategy_of(replicas)
    with strategy.scope():
        v = mr.Variable(np.zeros(2, "f"), synchronization=synchronization, aggregation=squares)
    run = lambda: strategy.run(lambda: v.assign(jnp.full(2, 3.0)))  # noqa: E731
    (mr.function(run) if compiled else run)()
    np.testing.assert_array_equal(v.numpy(), np.full(2, 9.0 * replicas))


def test_one_replica_is_too_few_for_a_trimmed_mean() -> None:
    with pytest.raises(mr.errors.ArgumentError, match="k=1 for 1 replicas"):
        strategy_of(1).reduce(mr.collectives.TrimmedMean(1), jnp.ones(2), axis=None)


class Weighted:
    """Reductions that read an attribute, which changes between calls."""

    def __init__(self) -> None:
        self.weight = 1.0

    def reduce(self, per_replica: jax.Array) -> jax.Array:
        return self.weight * jnp.sum(per_replica, axis=0)

    def add(self, components: list[jax.Array]) -> jax.Array:
        return self.weight * sum(components[1:], components[0])


@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (1, 2), (2, 2), (2, 4)])
def test_eager_reductions_read_the_state_of_the_moment(devices: int, replicas: int) -> None:
    names = [f"CPU:{index}" for index in range(devices)]
    weighted = Weighted()
    strategy = mr.MirroredStrategy(names, num_replicas=replicas)
    adding = mr.MirroredStrategy(
        names, num_replicas=replicas, cross_device_ops=ReductionToOneDevice(accumulation_fn=weighted.add)
    )
    with strategy.scope():
        v = mr.Variable(0.0, aggregation=weighted.reduce)
    ones = strategy.run(lambda: jnp.float32(1.0))
    for weight in (1.0, 5.0):
        weighted.weight = weight
        assert float(strategy.reduce(weighted.reduce, ones, axis=None)) == weight * replicas
        strategy.run(lambda: v.assign(jnp.float32(1.0)))
        assert float(v) == weight * replicas
        totals = strategy.run(lambda: mr.get_replica_context().all_reduce(weighted.reduce, jnp.float32(1.0)))
        assert {float(one) for one in strategy.experimental_local_results(totals)} == {weight * replicas}
        if replicas > 1:
            assert float(adding.reduce("SUM", adding.run(lambda: jnp.float32(1.0)), axis=None)) == weight * replicas
