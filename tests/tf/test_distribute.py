from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf


def test_the_names_are_the_core() -> None:
    assert tf.distribute.MirroredStrategy is mr.MirroredStrategy
    assert tf.distribute.ReduceOp is mr.ReduceOp
    assert tf.Variable is mr.Variable
    assert tf.GradientTape is mr.GradientTape
    assert tf.distribute.DistributedValues is mr.DistributedValues


def test_communication_options() -> None:
    options = tf.distribute.experimental.CommunicationOptions()
    kinds = tf.distribute.experimental.CommunicationImplementation
    assert (options.bytes_per_pack, options.timeout_seconds, options.implementation) == (0, None, kinds.AUTO)
    assert [one.name for one in kinds] == ["AUTO", "RING", "NCCL"]
    assert tf.distribute.experimental.CollectiveCommunication is kinds
    assert tf.distribute.experimental.CommunicationOptions(implementation="ring").implementation is kinds.RING
    assert tf.distribute.experimental.CollectiveHints(bytes_per_pack=5).bytes_per_pack == 5
    with pytest.raises(ValueError, match="must be 0 or more"):
        tf.distribute.experimental.CommunicationOptions(bytes_per_pack=-1)
    with pytest.raises(ValueError, match="not a valid CommunicationImplementation"):
        tf.distribute.experimental.CommunicationOptions(implementation="zzz")


@pytest.mark.first(1)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_a_training_step_as_the_documentation_writes_it(wrap: Any) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = tf.Variable([[1.0], [2.0]], aggregation=tf.VariableAggregation.SUM)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            per_example = tf.reduce_sum(tf.square(tf.matmul(x, w) - y), axis=1)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=4)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    @wrap
    def step(x: Any, y: Any) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    shares = [([[1.0, 0.0], [0.0, 1.0]], [[1.0], [1.0]]), ([[1.0, 1.0], [2.0, 0.0]], [[0.0], [1.0]])]
    x, y = (
        strategy.experimental_distribute_values_from_function(
            lambda c, i=i: tf.constant(shares[c.replica_id_in_sync_group][i])
        )
        for i in (0, 1)
    )
    assert float(step(x, y)) == pytest.approx((0 + 1 + 9 + 1) / 4)
    # d/dw of the mean over all four examples: 2/4 * sum of x (x w - y)
    assert w.numpy().ravel().tolist() == pytest.approx([1 - 0.1 * 0.5 * (3 + 2), 2 - 0.1 * 0.5 * (1 + 3)])


def test_a_function_takes_its_signature_second() -> None:
    doubled = tf.function(lambda x: x * 2, [tf.TensorSpec([None])])
    assert doubled(tf.ones([3])).tolist() == [2, 2, 2]


def test_options_of_run_are_accepted() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    options = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
    assert [int(one) for one in strategy.run(lambda: tf.constant(3), options=options).values] == [3, 3]


@pytest.mark.parametrize("name", ["NcclAllReduce", "HierarchicalCopyAllReduce", "ReductionToOneDevice"])
def test_cross_device_operations_called_directly(name: str) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=getattr(tf.distribute, name)())
    ops = getattr(tf.distribute, name)()
    assert isinstance(ops, tf.distribute.CrossDeviceOps)
    value = strategy.run(lambda: tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32) + 1)
    total, mean = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
    assert ops.reduce(total, value, "CPU:0") == 3
    assert [float(one) for one in ops.reduce(mean, value, destinations=value).values] == [1.5, 1.5]
    assert ops.reduce(total, mr.PerReplica((tf.constant(1.0), tf.constant(2.0))), "CPU:0") == 3
    assert [float(one.values[0]) for one in ops.batch_reduce(total, [(value, value), (value, value)])] == [3, 3]
    assert ops.broadcast(tf.constant(1.0), value).values == (1, 1)
    assert ops.reduce(total, tf.constant(2.0), "CPU:0") == 2
    assert strategy.reduce("SUM", value, axis=None) == 3
    with pytest.raises(ValueError, match="`reduce_op` must be a ReduceOp"):
        ops.reduce("SUM", value, "CPU:0")
    with pytest.raises(ValueError, match="`destinations` must be"):
        ops.reduce(total, value, None)
    with pytest.raises(ValueError, match="must be a tuple"):
        ops.batch_reduce(total, [value])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]], ids=len)
def test_elements_are_not_taken_inside_a_replica(wrap: Any, devices: list[str]) -> None:
    strategy = tf.distribute.MirroredStrategy(devices)
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))
    with pytest.raises(ValueError, match="outside of replica_fn"):
        wrap(lambda: strategy.run(lambda one: next(one), args=(iterator,)))()
    taken = strategy.run(lambda one: one, args=(next(iterator),))
    assert np.concatenate(strategy.experimental_local_results(taken)).tolist() == [0, 1]


def test_the_default_strategy_takes_elements_anywhere() -> None:
    strategy = tf.distribute.get_strategy()
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))
    assert strategy.run(lambda one: next(one), args=(iterator,)).tolist() == [0, 1]


def test_datasets_per_replica_come_from_a_function() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    options = tf.distribute.InputOptions(
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA, experimental_fetch_to_device=False
    )
    with pytest.raises(NotImplementedError, match="only supported in"):
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2), options)
    batches = strategy.experimental_distribute_datasets_from_function(
        lambda _: tf.data.Dataset.range(4).batch(2), options
    )
    assert [[one.tolist() for one in batch.values] for batch in batches] == [[[0, 1]] * 2, [[2, 3]] * 2]


def test_the_older_name_of_the_multi_worker_strategy_takes_the_communication_first(monkeypatch):
    """A public program passes the communication by position."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    experimental = tf.distribute.experimental
    strategy = experimental.MultiWorkerMirroredStrategy(experimental.CollectiveCommunication.AUTO)
    assert isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    assert strategy.run(lambda: tf.constant(2.0)) is not None
    strategy = experimental.MultiWorkerMirroredStrategy(communication=experimental.CommunicationImplementation.NCCL)
    assert strategy.cluster_resolver is not None


def _context() -> Any:
    return tf.distribute.get_replica_context()


def _count(x: Any) -> Any:
    return _context().all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(tf.ones_like(x)))


def _gathered(x: Any) -> Any:
    return tf.reduce_sum(_context().all_gather(tf.ones_like(x), axis=0))


def _merged(x: Any) -> Any:
    reduce = tf.distribute.ReduceOp.SUM
    return _context().merge_call(
        lambda s, one: s.reduce(reduce, one, axis=None), args=(tf.reduce_sum(tf.ones_like(x)),)
    )


def _ids_in_a_loop(_: Any) -> Any:
    total = tf.constant(0)
    for _ in tf.range(3):
        total += _context().replica_id_in_sync_group
    return total + 1


def _ids_of_rows(_: Any) -> Any:
    return tf.reduce_sum(tf.map_fn(lambda row: row + _context().replica_id_in_sync_group, tf.range(3)))


def _recomputed(_: Any) -> Any:
    return tf.recompute_grad(lambda one: one + _context().replica_id_in_sync_group)(tf.constant(1))


# With the results of replicas 0 and 1: x is [1, 1, 1] on both.
NUMBERS = {
    "all_reduce": (_count, [6, 6]),
    "all_gather": (_gathered, [6, 6]),
    "merge_call": (_merged, [6, 6]),
    "replica id in a loop": (_ids_in_a_loop, [1, 4]),
    "replica id in map_fn": (_ids_of_rows, [3, 6]),
    "replica id in recompute_grad": (_recomputed, [1, 2]),
}


@pytest.mark.parametrize("wrap", [tf.function, lambda f: f], ids=["function", "eager"])
@pytest.mark.parametrize("devices", [2, 1])
@pytest.mark.parametrize(("number", "expected"), NUMBERS.values(), ids=NUMBERS)
@pytest.mark.first(6)
def test_what_only_replicas_know_decides_a_condition(number: Any, expected: Any, devices: int, wrap: Any) -> None:
    """A compiled run evaluated the collective of a constant, or the index of the replica, and raised an error."""
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=2)

    def step(x: Any) -> tuple[Any, Any]:
        n = number(x)
        counted = tf.while_loop(lambda i: i < tf.cast(n, tf.int32), lambda i: (i + 1,), [tf.constant(0)])[0]
        return tf.cond(n > 3, lambda: n, lambda: -n), counted

    def numbers(result: Any) -> list[int]:
        local = [int(one) for one in strategy.experimental_local_results(result)]
        return local * (2 // len(local))  # a merged result is one array for all replicas

    chosen, counted = wrap(lambda: strategy.run(step, (tf.ones([3]),)))()
    assert numbers(chosen) == [one if one > 3 else -one for one in expected]
    assert numbers(counted) == expected
