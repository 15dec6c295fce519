"""Under JAX's strict promotion the library's own computations work, with the results of the standard setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.collectives import Adasum, Median, ReduceOp, TrimmedMean

ON_READ = mr.VariableSynchronization.ON_READ
MEAN, SUM = mr.VariableAggregation.MEAN, mr.VariableAggregation.SUM
Program = Callable[[mr.MirroredStrategy, str], Callable[[], Any]]
REDUCTIONS: dict[str, ReduceOp] = {
    "sum": ReduceOp.SUM,
    "mean": ReduceOp.MEAN,
    "median": Median(),
    "adasum": Adasum(),
    "trimmed mean": TrimmedMean(1),
}


def own(dtype: str) -> Any:
    """Different values on each replica."""
    replica = jnp.asarray(mr.get_replica_context().replica_id_in_sync_group, dtype)
    return jnp.arange(1, 4).astype(dtype) * (replica + jnp.ones((), dtype))


def reduced(name: str) -> Program:
    def make(strategy: mr.MirroredStrategy, dtype: str) -> Callable[[], Any]:
        return lambda: strategy.run(lambda: mr.get_replica_context().all_reduce(REDUCTIONS[name], own(dtype)))

    return make


def assigned(aggregation: mr.VariableAggregation, target: str) -> Program:
    """Assigns values of a narrower dtype to a variable, which adds or averages them."""

    def make(strategy: mr.MirroredStrategy, dtype: str) -> Callable[[], Any]:
        with strategy.scope():
            v = mr.Variable(jnp.zeros(3, target), aggregation=aggregation)

        def step() -> Any:
            strategy.run(lambda: v.assign(own(dtype)))
            return v.read_value()

        return step

    return make


def metric(strategy: mr.MirroredStrategy, dtype: str) -> Callable[[], Any]:
    with strategy.scope():
        v = mr.Variable(jnp.zeros(3, dtype), synchronization=ON_READ, aggregation=MEAN)

    def step() -> Any:
        strategy.run(lambda: v.assign_add(own(dtype)))
        return v.read_value()

    return step


def accumulated(strategy: mr.MirroredStrategy, dtype: str) -> Callable[[], Any]:
    with strategy.scope():
        w = mr.Variable(jnp.ones(3, dtype))
        accumulator = mr.GradientAccumulator([w])

    def step() -> Any:
        strategy.run(lambda: accumulator.add([own(dtype)], count=2))
        return accumulator.result()

    return step


def trained(make: Callable[[], Any]) -> Program:
    def of_strategy(strategy: mr.MirroredStrategy, dtype: str) -> Callable[[], Any]:
        with strategy.scope():
            w, optimizer = mr.Variable(jnp.ones(3, dtype)), make()

        def replica() -> Any:
            with mr.GradientTape() as tape:
                loss = mr.losses.average_loss(w * own(dtype))
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
            return loss

        def step() -> Any:
            return strategy.reduce("SUM", strategy.run(replica), axis=None), w.read_value()

        return step

    return of_strategy


PROGRAMS: dict[str, Program] = {
    **{name: reduced(name) for name in REDUCTIONS},
    "assigned mean": assigned(MEAN, "float64"),
    "assigned sum": assigned(SUM, "float64"),
    "metric": metric,
    "accumulator": accumulated,
    "SGD": trained(lambda: mr.optimizers.SGD(0.1, momentum=0.9)),
    "clipped": trained(lambda: mr.optimizers.SGD(0.1, global_clipnorm=0.5)),
}


@pytest.mark.first(11)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_the_results_are_those_of_the_standard_promotion(
    name: str, dtype: str, deterministic: bool, compiled: bool
) -> None:
    def results(setting: str) -> list[Any]:
        with jax.enable_x64(True):
            strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4, deterministic=deterministic)
            step = PROGRAMS[name](strategy, dtype)
            with jax.numpy_dtype_promotion(setting):
                found = (mr.function(step) if compiled else step)()
            return [
                np.asarray(one)
                for leaf in jax.tree.leaves(found, is_leaf=lambda leaf: isinstance(leaf, mr.PerReplica))
                for one in strategy.experimental_local_results(leaf)
            ]

    standard, strict = results("standard"), results("strict")
    assert [(one.dtype, one.tobytes()) for one in strict] == [(one.dtype, one.tobytes()) for one in standard]
