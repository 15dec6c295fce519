"""`merge_call` in `tf.init_scope`: eager code inside a run, which may be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirrored.tf as tf

MEAN = tf.VariableAggregation.MEAN
LAYOUTS = {"devices": (["CPU:0", "CPU:1"], 2), "virtual": (["CPU:0"], 2), "both": (["CPU:0", "CPU:1"], 4)}


@pytest.fixture(params=LAYOUTS)
def strategy(request: pytest.FixtureRequest) -> tf.distribute.MirroredStrategy:
    devices, replicas = LAYOUTS[request.param]
    return tf.distribute.MirroredStrategy(devices, num_replicas=replicas)


@pytest.fixture(params=[True, False], ids=["compiled", "eager"])
def run(request: pytest.FixtureRequest, strategy: Any) -> Callable[[Callable[[], Any]], list[float]]:
    """Runs a function on all replicas and adds 1 in the run, outside of `tf.init_scope`."""

    def results(function: Callable[[], Any]) -> list[float]:
        def step() -> Any:
            return strategy.run(lambda: function() + tf.ones([]))

        done = tf.function(step)() if request.param else step()
        return [float(one) for one in strategy.experimental_local_results(done)]

    return results


def merged(merge_fn: Callable[..., Any], *args: Any) -> Any:
    replica: Any = tf.distribute.get_replica_context()
    return replica.merge_call(merge_fn, args=args)


def test_the_merged_function_is_called_once_and_computes_eagerly(run: Any, strategy: Any) -> None:
    calls = []

    def merge_fn(strategy: Any, value: Any) -> Any:
        calls.append(tf.distribute.in_cross_replica_context() and tf.executing_eagerly())
        return strategy.reduce("SUM", value, axis=None) if isinstance(value, tf.distribute.DistributedValues) else value

    def function() -> Any:
        with tf.init_scope():
            return merged(merge_fn, tf.constant(2.0))

    results = run(function)
    assert calls == [True]
    assert len(results) == strategy.num_replicas_in_sync
    assert set(results) <= {3.0, 2.0 * strategy.num_replicas_in_sync + 1}


def test_every_replica_gets_its_component_of_what_the_merged_function_returns(run: Any, strategy: Any) -> None:
    def function() -> Any:
        with tf.init_scope():
            return merged(lambda strategy, value: value, tf.constant(2.0)) + tf.constant(1.0)

    assert run(function) == [4.0] * strategy.num_replicas_in_sync


def test_the_merged_function_assigns_the_value_of_a_variable_at_once(run: Any, strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(0.0)
    seen = []

    def merge_fn(strategy: Any) -> None:
        v.assign(5.0)
        seen.append(float(v))

    def function() -> Any:
        with tf.init_scope():
            merged(merge_fn)
        return tf.zeros([])

    assert run(function) == [1.0] * strategy.num_replicas_in_sync
    assert (seen, float(v)) == ([5.0], 5.0)


def test_a_value_that_differs_between_devices_is_refused_in_a_compiled_run() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    given = strategy.experimental_distribute_values_from_function(
        lambda context: 1.0 * context.replica_id_in_sync_group
    )

    def function() -> Any:
        with tf.init_scope():
            return merged(lambda strategy: given)

    with pytest.raises(RuntimeError, match="a value that differs between devices"):
        tf.function(lambda: strategy.run(function))()
    assert [float(one) for one in strategy.experimental_local_results(strategy.run(function))] == [0.0, 1.0]


@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
def test_a_traced_replica_does_not_assign_a_variable_of_a_strategy(strategy: Any, synchronization: str) -> None:
    with strategy.scope():
        v = tf.Variable(0.0, synchronization=tf.VariableSynchronization[synchronization], aggregation=MEAN)

    def function() -> None:
        with tf.init_scope():
            v.assign_add(tf.constant(1.0))

    with pytest.raises(RuntimeError, match="under init_scope in a traced replica"):
        tf.function(lambda: strategy.run(function))()
    assert float(v) == 0.0
    strategy.run(function)
    assert float(v) == 1.0


def test_it_decorates_a_function() -> None:
    """The state is that of each call, not that of the decoration."""
    v = tf.Variable(1.0)

    @tf.init_scope()
    def doubled(depth: int) -> float:
        return doubled(depth - 1) if depth else 2.0 * float(v)

    @tf.function
    def step() -> Any:
        v.assign_add(1.0)
        return tf.constant(doubled(1))

    assert doubled(1) == 2.0
    assert [float(step()), float(v)] == [2.0, 2.0]
