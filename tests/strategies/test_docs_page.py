"""The ideas of TensorFlow's page on MirroredStrategy, by name, with the values printed there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from strategies.programs import parts, rid


@pytest.fixture
def strategy():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


def test_per_replica_results(strategy):
    result = strategy.run(mr.function(lambda x: x * 2.0), args=(jnp.float32(3.0),))
    assert isinstance(result, mr.PerReplica)
    assert parts(strategy, result) == [6.0, 6.0]
    lines = repr(result).split("\n")
    assert [lines[0], lines[1][:5], lines[2][:5], lines[3]] == ["PerReplica:{", "  0: ", "  1: ", "}"]


def test_scope_and_variables(strategy):
    with strategy.scope():
        mirrored_variable = mr.Variable(1.0)
    regular_variable = mr.Variable(1.0)
    assert repr(mirrored_variable).startswith("MirroredVariable:{\n  0: <Variable ")
    assert [copy.numpy() for copy in mirrored_variable.values] == [1.0, 1.0]
    assert repr(regular_variable).startswith("<Variable ")


def test_variable_in_function(strategy):
    kept = []

    @mr.function
    def create_variable():
        if not kept:
            kept.append(mr.Variable(1.0))
        return kept[0]

    with strategy.scope():
        made = create_variable()
    assert made is kept[0]
    assert repr(made).startswith("MirroredVariable:{")
    assert parts(strategy, made) == [1.0, 1.0]


def test_run_with_distributed_values(strategy):
    @mr.function
    def run():
        values = strategy.experimental_distribute_values_from_function(lambda context: context.num_replicas_in_sync)
        return strategy.run(lambda x: jnp.asarray(x) * 2, args=(values,))

    assert parts(strategy, run()) == [4, 4]


def test_run_with_all_reduce(strategy):
    @mr.function
    def run():
        ids = strategy.experimental_distribute_values_from_function(
            lambda context: jnp.asarray(context.replica_id_in_sync_group)
        )
        return strategy.run(lambda x: mr.get_replica_context().all_reduce("sum", x), args=(ids,))

    assert parts(strategy, run()) == [1, 1]


def test_reduce_over_axis_none(strategy):
    assert int(strategy.reduce("SUM", strategy.run(lambda: jnp.asarray(rid())), axis=None)) == 1


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_reduce_over_axis_none_and_zero_of_a_partial_batch_of_6_over_2_replicas(strategy, compiled):
    """A global batch of 8 is 4 + 4; the partial batch of 6 is 3 + 3 (not 4 + 2)."""
    batch = np.arange(6, dtype=np.float32)
    (distributed,) = strategy.experimental_distribute_dataset([batch])
    assert [len(part) for part in parts(strategy, distributed)] == [3, 3]

    def step(x):
        losses = strategy.run(lambda y: y * y, args=(x,))
        return (
            strategy.reduce("SUM", losses, axis=None),
            strategy.reduce("SUM", losses, axis=0),
            strategy.reduce("MEAN", losses, axis=0),
        )

    together, total, mean = (mr.function(step) if compiled else step)(distributed)
    np.testing.assert_allclose(together, batch[:3] ** 2 + batch[3:] ** 2)
    assert float(total) == float(np.sum(batch**2))
    assert float(mean) == pytest.approx(float(np.mean(batch**2)))


def test_mean_of_an_uneven_partial_batch_counts_examples(strategy):
    """3 examples are 2 + 1: the mean over examples is not the mean of the replicas' means."""
    (distributed,) = strategy.experimental_distribute_dataset([np.array([5.0, 6.0, 7.0], np.float32)])
    means = strategy.run(jnp.mean, args=(distributed,))
    assert float(strategy.reduce("MEAN", distributed, axis=0)) == 6.0
    assert float(strategy.reduce("MEAN", means, axis=None)) == 6.25


def test_gather_two_replicas(strategy):
    values = strategy.experimental_distribute_values_from_function(lambda _: jnp.array([[1], [2]]))
    assert mr.function(lambda: strategy.gather(values, axis=0))().tolist() == [[1], [2], [1], [2]]


@pytest.mark.parametrize(("axis", "shape"), [(0, (4, 2, 3)), (1, (1, 8, 3)), (2, (1, 2, 12))])
def test_gather_on_each_axis_of_four_replicas(axis, shape):
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    single = jnp.arange(6).reshape(1, 2, 3)
    values = strategy.experimental_distribute_values_from_function(lambda _: single)
    result = mr.function(lambda axis: strategy.gather(values, axis=axis))(axis)
    np.testing.assert_array_equal(result, np.concatenate([single] * 4, axis=axis))
    assert result.shape == shape


def test_values_from_a_function(strategy):
    def values(value_fn):
        return strategy.experimental_local_results(strategy.experimental_distribute_values_from_function(value_fn))

    array = np.array([3.0, 2.0, 1.0])
    assert [float(x) for x in values(lambda context: jnp.float32(1.0))] == [1.0, 1.0]
    assert [float(x) for x in values(lambda context: array[context.replica_id_in_sync_group])] == [3.0, 2.0]
    assert [int(x) for x in values(lambda context: context.num_replicas_in_sync)] == [2, 2]


def test_values_from_a_function_lie_on_their_replicas_devices(strategy):
    made = [jax.device_put(jnp.float32(1.0), device) for device in strategy.device_assignment.devices]
    result = strategy.experimental_distribute_values_from_function(lambda c: made[c.replica_id_in_sync_group])
    assert [value.devices() for value in result.values] == [{device} for device in strategy.device_assignment.devices]


def test_values_from_a_function_are_per_replica_also_with_one_replica():
    one = mr.MirroredStrategy(["CPU:0"])
    result = one.experimental_distribute_values_from_function(lambda context: {"x": 4.0})["x"]
    assert isinstance(result, mr.PerReplica)
    assert parts(one, result) == [4.0]


def test_all_reduce_in_a_replica_context(strategy):
    def replica():
        context = mr.get_replica_context()
        return context.all_reduce(mr.ReduceOp.SUM, jnp.float32(1.0)), context.all_reduce("SUM", [1.0, 2.0])

    one, two = strategy.run(replica)
    assert parts(strategy, one) == [2.0, 2.0]
    assert [parts(strategy, x) for x in two] == [[2.0, 2.0], [4.0, 4.0]]


def test_a_distributed_epoch(strategy):
    dataset = strategy.experimental_distribute_dataset([np.arange(4), np.arange(4, 8)])

    @mr.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(lambda y: jnp.sum(y * 2), args=(x,)), axis=None)

    for _ in range(2):
        assert sum(int(step(x)) for x in dataset) == 56
    assert step.trace_count == 1
