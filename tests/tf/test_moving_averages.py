"""Moving averages: numbers from TensorFlow's own tests."""

from __future__ import annotations

import copy

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


@pytest.mark.parametrize("is_started", [False, True], ids=["before-apply", "after-apply"])
@pytest.mark.parametrize("zero_debias", [False, True], ids=["started-at-values", "zero-debias"])
def test_a_checkpoint_restores_averages_by_the_names_of_their_variables(tmp_path, zero_debias, is_started):
    def program():
        model = tf.Module()
        model.ws = [tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])]
        model.ema = tf.train.ExponentialMovingAverage(0.75, num_updates=tf.Variable(7), zero_debias=zero_debias)
        return model

    saved, model = program(), program()
    saved.ema.apply(saved.ws)
    saved.ws[0].assign([9.0, 9.0])
    saved.ema.apply(saved.ws)
    path = tf.train.Checkpoint(model=saved).save(tmp_path / "c")
    assert ("model/ema/slots/model/ws/1/average/.ATTRIBUTES/VARIABLE_VALUE", [2]) in tf.train.list_variables(path)
    if is_started:
        model.ema.apply(model.ws[::-1])  # another order than that of the program that saved it
    tf.train.Checkpoint(model=model).restore(path).assert_consumed()
    for one in (saved, model):
        one.ws[1].assign([0.0, 0.0])
        one.ema.apply(one.ws)
    for mine, theirs in zip(model.ws, saved.ws, strict=True):
        assert np.asarray(model.ema.average(mine)).tolist() == np.asarray(saved.ema.average(theirs)).tolist()


def test_a_copy_has_the_averages_of_the_copied_variables():
    model = tf.Module()
    model.w, model.ema = tf.Variable(1.0), tf.train.ExponentialMovingAverage(0.75)
    model.ema.apply([model.w])
    copied = copy.deepcopy(model)
    copied.w.assign(5.0)
    copied.ema.apply([copied.w])
    assert (float(copied.ema.average(copied.w)), float(model.ema.average(model.w))) == (2.0, 1.0)
    assert copied.ema.average(model.w) is None
