"""`tf.Variable`: slices that are assigned, index vectors, shapes that change, constraints. Values are TensorFlow's."""

from __future__ import annotations

import copy
import gc
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.variables.slicing import Slice, slice_of

SLICES = [
    (np.s_[1:], [5.0, 6.0], [[1.0, 2.0], [5.0, 6.0], [5.0, 6.0]]),
    (0, 9.0, [[9.0, 9.0], [3.0, 4.0], [5.0, 6.0]]),
    (np.s_[::2], [[7.0], [8.0]], [[7.0, 7.0], [3.0, 4.0], [8.0, 8.0]]),
    (np.s_[:, 1], [7.0, 8.0, 9.0], [[1.0, 7.0], [3.0, 8.0], [5.0, 9.0]]),
    (np.s_[..., 0], 0, [[0.0, 2.0], [0.0, 4.0], [0.0, 6.0]]),
    (np.s_[tf.newaxis, 2:], [[[1.0, 1.0]]], [[1.0, 2.0], [3.0, 4.0], [1.0, 1.0]]),
    (np.s_[:], 1.0, [[1.0, 1.0]] * 3),
]


def matrix(**options):
    return tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], **options)


@pytest.mark.parametrize(("index", "value", "expected"), SLICES, ids=lambda one: str(one)[:30])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_slice_is_assigned(index, value, expected, compiled):
    v = matrix()
    step = (tf.function if compiled else lambda f: f)(lambda x: v[index].assign(x))
    assert step(tf.constant(value, tf.float32)).tolist() == expected
    assert v.numpy().tolist() == expected


def test_a_tape_follows_the_assignment_of_a_slice():
    v = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        v[1:].assign([10.0, 20.0])
        loss = tf.reduce_sum(v * v)
    assert tape.gradient(loss, v).numpy().tolist() == [2.0, 20.0, 40.0]


def test_a_value_that_does_not_fit_a_slice():
    v = matrix()
    with pytest.raises(mr.errors.VariableError, match=r"Cannot broadcast input shape \[3\] into final shape \[2, 2\]"):
        v[1:].assign([1.0, 2.0, 3.0])
    whole = tf.Variable([1, 2])
    with pytest.raises(mr.errors.VariableError, match="int32"):
        whole[1:].assign([0.5])
    assert v.numpy().tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("index", "found"),
    [
        (3, "slice index 3 of dimension 0"),
        (-4, "slice index -4 of dimension 0"),
        (np.s_[..., 2], "slice index 2 of dimension 1"),
        (np.s_[tf.newaxis, 0, 5], "slice index 5 of dimension 1"),
        (np.s_[[0, 7], 1], "slice index 7 of dimension 0"),
        (np.s_[:, np.array([0, 2])], "slice index 2 of dimension 1"),
        (np.s_[np.array([True, False, True]), 2], "slice index 2 of dimension 1"),
    ],
    ids=str,
)
def test_an_index_outside_of_the_variable_is_not_assigned(index, found, compiled):
    v = matrix()
    with pytest.raises(mr.errors.ArgumentError, match=found):
        (tf.function if compiled else lambda f: f)(lambda: Slice(v, index).assign(1.0))()
    assert v.numpy().tolist() == matrix().numpy().tolist()


def test_a_computed_index_outside_of_the_variable_is_not_assigned():
    v = matrix()
    with pytest.raises(mr.errors.ArgumentError, match="slice index 4 of dimension 0"):
        v[tf.constant([0, 4])].assign(1.0)
    v[-3, -1].assign(8.0)
    v[5:].assign(9.0)
    assert v.numpy().tolist() == [[1.0, 8.0], [3.0, 4.0], [5.0, 6.0]]


def test_only_slices_of_variables_have_assign():
    v = tf.Variable([1.0, 2.0])
    assert hasattr(v[1:], "assign")
    for other in (tf.constant([1.0]), v[1:] + 0.0, tf.constant([1.0, 2.0])[1:]):
        with pytest.raises(AttributeError, match="no attribute 'assign'"):
            other.assign(1.0)


def test_a_slice_does_not_keep_its_variable():
    v = tf.Variable([1.0, 2.0])
    part = v[1:]
    place = slice_of(part)
    del v
    gc.collect()
    with pytest.raises(mr.errors.VariableError, match="does not exist any more"):
        part.assign([3.0])
    del part
    assert place.index == slice(1, None)


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(jax.devices()[:2])


@pytest.mark.parametrize("compiled", [False, True])
def test_replicas_assign_a_slice(strategy, compiled):
    with strategy.scope():
        plain = matrix()
        total = tf.Variable(
            [1.0, 2.0], synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )

    def replica_step():
        plain[0].assign([0.0, 0.0])
        total[0].assign(7.0)

    strategy.run(tf.function(replica_step) if compiled else replica_step)
    assert plain.numpy().tolist() == [[0.0, 0.0], [3.0, 4.0], [5.0, 6.0]]
    assert total.numpy().tolist() == [14.0, 4.0]


def test_a_slice_is_not_aggregated(strategy):
    with strategy.scope():
        summed = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.SUM)
        on_read = tf.Variable(
            [1.0, 2.0], synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
    summed[0].assign(3.0)
    assert summed.numpy().tolist() == [3.0, 2.0]
    with pytest.raises(NotImplementedError, match="in replica context"):
        strategy.run(lambda: summed[0].assign(4.0))
    with pytest.raises(NotImplementedError, match="in cross-replica context"):
        on_read[0].assign(1.0)


UPDATES = [
    ("scatter_nd_update", [[0], [2]], [9.0, 8.0], [9.0, 2.0, 8.0]),
    ("scatter_nd_add", [[0], [0]], [9.0, 8.0], [18.0, 2.0, 3.0]),
    ("scatter_nd_sub", [[0], [2]], [9.0, 8.0], [-8.0, 2.0, -5.0]),
    ("scatter_nd_max", [[0], [2]], [9.0, 1.0], [9.0, 2.0, 3.0]),
    ("scatter_nd_min", [[0], [2]], [9.0, 1.0], [1.0, 2.0, 1.0]),
]


@pytest.mark.parametrize(("method", "indices", "updates", "expected"), UPDATES)
@pytest.mark.parametrize("compiled", [False, True])
def test_updates_at_index_vectors(method, indices, updates, expected, compiled):
    v = tf.Variable([1.0, 2.0, 3.0])
    (tf.function if compiled else lambda f: f)(lambda: getattr(v, method)(indices, updates))()
    assert v.numpy().tolist() == expected


def test_elements_and_batches_at_index_vectors():
    m = tf.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    rows = tf.IndexedSlices(tf.constant([[9.0], [8.0]]), tf.constant([[0], [1]]))
    assert m.batch_scatter_update(rows).tolist() == [[9.0, 2.0, 3.0], [4.0, 8.0, 6.0]]
    assert m.gather_nd([[0, 1], [1, 2]]).tolist() == [2.0, 6.0]
    assert m.sparse_read([1]).tolist() == [[4.0, 8.0, 6.0]]
    assert m.scatter_nd_update([[1, 0]], [7.0]).tolist() == [[9.0, 2.0, 3.0], [7.0, 8.0, 6.0]]


def test_a_shape_with_an_unknown_size():
    v = tf.Variable([1.0, 2.0], shape=[None])
    double = tf.function(lambda: v * 2)
    assert (v.shape.as_list(), v.get_shape().rank, double().tolist()) == ([None], 1, [2.0, 4.0])
    v.assign([1.0, 2.0, 3.0])
    assert (v.shape.as_list(), tf.shape(v).numpy().tolist(), double().tolist()) == ([None], [3], [2.0, 4.0, 6.0])
    v.assign([4.0, 5.0])
    assert (double().tolist(), double.trace_count) == ([8.0, 10.0], 2)
    with pytest.raises(ValueError, match=r"shape \(1, 1\)"):
        v.assign([[1.0]])
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        v.assign_add([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"shape \(1,\)"):
        tf.function(lambda: v.assign([1.0]))()
    assert v.numpy().tolist() == [4.0, 5.0]


def test_an_unknown_rank(strategy):
    v = tf.Variable([1.0, 2.0], shape=tf.TensorShape(None))
    v.assign([[1.0, 2.0, 3.0]])
    assert (v.shape.rank, v.numpy().tolist(), tf.rank(v).numpy()) == (None, [[1.0, 2.0, 3.0]], 2)
    for made in (copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
        assert made.assign(0.0).shape == ()
    with strategy.scope():
        mirrored = tf.Variable([1.0], shape=tf.TensorShape(None))
    mirrored.assign([[1.0, 2.0]])
    assert strategy.run(tf.function(lambda: mirrored + 1)).values[1].tolist() == [[2.0, 3.0]]


def test_a_shape_that_the_initial_value_does_not_have():
    with pytest.raises(ValueError, match="initial value"):
        tf.Variable([1.0, 2.0], shape=[3])
    with pytest.raises(ValueError, match="initial value"):
        tf.Variable([1.0, 2.0], shape=[None, None])


def clipped(value):
    return tf.clip_by_value(value, 0.5, 1.0)


@pytest.mark.parametrize("optimizer", [mr.optimizers.SGD, tf.keras.optimizers.SGD])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_optimizer_applies_the_constraint(optimizer, compiled):
    v, free = tf.Variable([1.0, 2.0], constraint=clipped), tf.Variable(1.0)
    assert (v.constraint, free.constraint) == (clipped, None)
    rule = optimizer(1.0)
    rule.build([v, free])

    def step():
        rule.apply_gradients([(tf.constant([1.0, 1.5]), v), (tf.constant(1.0), free)])

    (tf.function(step) if compiled else step)()
    assert (v.numpy().tolist(), free.numpy().item()) == ([0.5, 0.5], 0.0)


def test_a_constraint_is_kept_by_copies_and_checked(strategy):
    v = tf.Variable(1.0, constraint=clipped)
    assert copy.deepcopy(v).constraint is clipped
    assert pickle.loads(pickle.dumps(v)).constraint is clipped
    with pytest.raises(ValueError, match="constraint"):
        tf.Variable(1.0, constraint=3)
    with strategy.scope():
        mirrored = tf.Variable([1.0, 2.0], constraint=clipped)
    rule = mr.optimizers.SGD(1.0)
    strategy.run(lambda: rule.apply_gradients([(jnp.ones(2), mirrored)]))
    assert mirrored.numpy().tolist() == [0.5, 0.5]


def test_a_variable_has_its_value_from_the_start():
    v = tf.Variable(1.0)
    assert (bool(v.is_initialized()), v.initializer) == (True, None)
