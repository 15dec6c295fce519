"""A function over a distributed dataset: the loop runs as Python, each step compiled once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr


def epoch_of(strategy: Any, v: Any, seen: list[int]) -> Any:
    """The documentation's loop: run and reduce for each batch."""

    @mr.function
    def epoch(dataset: Any) -> Any:
        total, count = 0.0, 0
        for x in dataset:

            def replica(x: Any) -> Any:
                seen.append(1)
                summed = mr.get_replica_context().all_reduce(mr.ReduceOp.SUM, x.sum())
                v.assign_add(summed)
                return summed

            total += strategy.reduce(mr.ReduceOp.MEAN, strategy.run(replica, args=(x,)), axis=None)
            count += 1
        return total / count

    return epoch


@pytest.mark.parametrize("replicas", [2, 4])
def test_each_step_is_compiled_once(replicas: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        v = mr.Variable(0.0)
    dataset = strategy.distribute_dataset([np.full((4, 2), i, np.float32) for i in range(5)])
    seen: list[int] = []
    epoch = epoch_of(strategy, v, seen)
    assert [float(epoch(dataset)) for _ in range(3)] == [16.0] * 3
    assert float(v) == 3 * 80.0
    assert epoch.trace_count == 1
    assert len(seen) == 1


def test_an_iterator_is_driven_too() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = strategy.distribute_dataset([np.full((2, 1), i, np.float32) for i in range(4)])

    @mr.function
    def two_steps(iterator: Any) -> Any:
        return [
            strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(next(iterator),)), axis=None) for _ in "ab"
        ]

    iterator = iter(dataset)
    assert [[float(s) for s in two_steps(iterator)] for _ in range(2)] == [[0, 2], [4, 6]]


def scaled_by(factors: list[float]) -> Any:
    """A function that closes over an object of its own."""
    return lambda x: x.sum() * factors[0]


def test_a_function_that_closes_over_each_batch_runs_eagerly_after_a_while() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = strategy.distribute_dataset([np.full((2, 1), i, np.float32) for i in range(12)])

    @mr.function
    def epoch(dataset: Any) -> float:
        total = 0.0
        for x in dataset:
            total += float(strategy.reduce("SUM", strategy.run(scaled_by([1.0]), args=(x,)), axis=None))
        return total

    assert epoch(dataset) == sum(2 * i for i in range(12))
    assert epoch.trace_count <= 8
