"""Moving averages: numbers from TensorFlow's own tests."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("where", ["replica", "cross-replica"])
def test_under_a_strategy(strategy, where, compiled):
    with strategy.scope():
        w = tf.Variable(1.0)
        average = tf.train.ExponentialMovingAverage(0.8)
        average.apply([w])

    def step():
        w.assign_sub(0.5)
        average.apply([w])

    def program():
        if where == "replica":
            strategy.run(step)
        else:
            step()

    (tf.function(program) if compiled else program)()
    assert average.average(w).numpy() == pytest.approx(0.9)
    assert average.average(w).distribute_strategy is strategy


def test_values_of_sync_on_read_variables_are_averaged_over_replicas(strategy):
    with strategy.scope():
        seen = tf.Variable(
            0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.MEAN
        )
        average = tf.train.ExponentialMovingAverage(0.25, zero_debias=True)

    def step():
        seen.assign(1.0 + 2.0 * tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32))
        average.apply([seen])

    with strategy.scope():
        average.apply([seen])
    strategy.run(step)
    # 0 at first, then the mean of 1 and 3: (0.75 * 2) / (1 - 0.25 ** 2).
    assert float(average.average(seen)) == pytest.approx(0.75 * 2.0 / (1 - 0.25**2))


def test_early_averages_follow_quicker():
    steps, w = tf.Variable(0.0), tf.Variable(1.0)
    average = tf.train.ExponentialMovingAverage(0.9, num_updates=steps)
    average.apply([w])
    w.assign(2.0)
    average.apply([w])
    np.testing.assert_allclose(average.average(w).numpy(), 0.1 * 1.0 + 0.9 * 2.0, rtol=1e-6)


def test_names_and_what_is_not_averaged():
    w, average = tf.Variable(1.0, name="w"), tf.train.ExponentialMovingAverage(0.5, name="ema")
    assert average.average(w) is None
    assert average.average_name(w) == "w/ema"
    average.apply([w])
    assert average.average(w).name == average.average_name(w) == "w/ema"
    assert not average.average(w).trainable
    with pytest.raises(TypeError, match="must be floating point"):
        average.apply([tf.Variable(1)])
