"""`tf.compat.v1.distribute`, in eager mode."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf

V1 = tf.compat.v1


@pytest.fixture
def strategy():
    return V1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def test_a_numpy_dataset_is_split_over_replicas(strategy):
    dataset = strategy.experimental_make_numpy_dataset((np.arange(6.0), np.arange(6)))
    iterator = strategy.make_dataset_iterator(dataset.repeat(2).batch(6))
    iterator.initialize()
    for _ in range(2):
        x, y = iterator.get_next()
        assert [part.tolist() for part in strategy.unwrap(x)] == [[0, 1, 2], [3, 4, 5]]
        assert [part.tolist() for part in strategy.unwrap(y)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        iterator.get_next()


def test_reduce_may_leave_the_axis_out(strategy):
    ids = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    assert int(strategy.reduce("SUM", ids)) == 1
    assert int(V1.distribute.OneDeviceStrategy("CPU:0").reduce("SUM", tf.constant(3))) == 3


def test_configurations(strategy):
    updated = strategy.update_config_proto(V1.ConfigProto(allow_soft_placement=True))
    assert updated.isolate_session_state
    assert updated.allow_soft_placement
    assert strategy.configure() is None


def test_the_other_names_are_todays():
    assert V1.distribute.ReduceOp is tf.distribute.ReduceOp
    assert V1.distribute.get_strategy is tf.distribute.get_strategy
