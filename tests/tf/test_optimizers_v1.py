"""The optimizers of `tf.compat.v1.train`: three steps give the values recorded on TensorFlow 2.21."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import StructureError
from mirrored.tf import _optimizers_v1

train = tf.compat.v1.train
RULES = {
    "sgd": (lambda: train.GradientDescentOptimizer(0.1), [0.94, -1.88], 2.82),
    "momentum": (lambda: train.MomentumOptimizer(0.1, 0.9), [0.9049, -1.8098], 2.7147),
    "nesterov": (lambda: train.MomentumOptimizer(0.1, 0.9, use_nesterov=True), [0.85441, -1.70882], 2.56323),
    "adam": (lambda: train.AdamOptimizer(0.1), [0.7076832, -1.7076828], 2.7076828),
    "epsilon": (lambda: train.AdamOptimizer(0.1, epsilon=0.1), [0.9804273, -1.9637654], 2.9493524),
    "adagrad": (lambda: train.AdagradOptimizer(0.1), [0.8569719, -1.7996632], 2.7730968),
    "rmsprop": (lambda: train.RMSPropOptimizer(0.1), [0.932492, -1.8672265], 2.805975),
    "centered": (
        lambda: train.RMSPropOptimizer(0.1, momentum=0.9, centered=True), [0.8944398, -1.7909974], 2.6914761
    ),
    "adadelta": (lambda: train.AdadeltaOptimizer(0.1), [0.99983, -1.99983], 2.99983),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_step(monkeypatch):
    monkeypatch.setattr(_optimizers_v1, "_steps", [])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.first(4)
def test_three_steps(rule, compiled):
    make, expected_v, expected_w = RULES[rule]
    v, w, optimizer = tf.Variable([1.0, -2.0]), tf.Variable(3.0), make()

    def step(scale):
        optimizer.apply_gradients([(tf.constant([0.1, -0.2]) * scale, v), (tf.constant(0.3) * scale, w)])

    for number in range(3):
        (tf.function(step) if compiled else step)(tf.constant(number + 1.0))
    np.testing.assert_allclose(v.numpy(), expected_v, rtol=2e-6)
    np.testing.assert_allclose(w.numpy(), expected_w, rtol=2e-6)
    for name in optimizer.get_slot_names():
        slot = optimizer.get_slot(v, name)
        assert (slot is None) == (rule == "rmsprop" and name in ("mg", "momentum"))
        assert slot is None or slot.shape == v.shape
    assert optimizer.get_slot(v, "other") is None


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]], ids=len)
def test_replicas_sum_their_gradients(devices):
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        v, optimizer = tf.Variable(2.0), train.GradientDescentOptimizer(0.1)
        step = train.get_or_create_global_step()

    @tf.function
    def train_step():
        strategy.run(lambda: optimizer.minimize(lambda: v * v / len(devices), global_step=step))

    train_step()
    train_step()
    assert v.numpy() == pytest.approx(1.28)
    assert step.numpy() == 2


def test_gradients_and_the_global_step():
    v, unread, optimizer = tf.Variable(2.0), tf.Variable(1.0), train.GradientDescentOptimizer(0.1, name="descent")
    assert train.get_global_step() is None
    step = train.get_or_create_global_step()
    ((gradient, variable),) = optimizer.compute_gradients(lambda: v * v)
    assert (gradient, variable is v) == (4.0, True)
    assert optimizer.compute_gradients(lambda: v * v, [unread])[0][0] is None
    assert optimizer.apply_gradients([(gradient, v)], global_step=step) is None
    assert optimizer.minimize(lambda: v * v, var_list=[v], global_step=step) is None
    assert (v.numpy(), step.numpy(), train.get_or_create_global_step() is step) == (pytest.approx(1.28), 2, True)
    assert optimizer.get_name() == "descent"
    with pytest.raises(RuntimeError, match="should be a function"):
        optimizer.minimize(v * v)
    with pytest.raises(ValueError, match="gradient"):
        optimizer.apply_gradients([(None, v)])


def test_checkpoints_keep_the_slots(tmp_path):
    def made(value):
        v, optimizer = tf.Variable(value), train.AdamOptimizer(0.1)
        optimizer.apply_gradients([(tf.constant(value), v)])
        return v, optimizer, tf.train.Checkpoint(v=v, optimizer=optimizer)

    v, optimizer, whole = made(1.0)
    path = whole.write(tmp_path / "c")
    other, others, checkpoint = made(2.0)
    checkpoint.read(path).assert_consumed()
    assert other.numpy() == v.numpy()
    assert others.get_slot(other, "m").numpy() == optimizer.get_slot(v, "m").numpy() == pytest.approx(0.1)
    assert [one.numpy() for one in others.variables()] == [one.numpy() for one in optimizer.variables()]


def test_learning_rates_follow_the_global_step():
    step = train.get_or_create_global_step()
    rates = (
        train.exponential_decay(0.1, step, 10, 0.5),
        train.exponential_decay(0.1, step, 10, 0.5, staircase=True),
        train.cosine_decay(0.1, step, 10),
        train.piecewise_constant(step, [1, 3], [1.0, 0.5, 0.25]),
    )
    found = []
    for number in (0, 2, 12):
        step.assign(number)
        found.append([float(rate()) for rate in rates])
    expected = [[0.1, 0.1, 0.1, 1.0], [0.08705506, 0.1, 0.0904508, 0.5], [0.04352753, 0.05, 0.0, 0.25]]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)
    v, optimizer = tf.Variable(1.0), train.GradientDescentOptimizer(rates[3])
    step.assign(0)
    update = tf.function(lambda: optimizer.apply_gradients([(tf.constant(1.0), v)], global_step=step))
    for expected_v in (0.0, -1.0, -1.5):
        update()
        assert v.numpy() == expected_v
    with pytest.raises(ValueError, match="1 less"):
        train.piecewise_constant(step, [1], [1.0])


SHAPELESS = {  # the values after two steps, recorded with TensorFlow 2.21
    "GradientDescentOptimizer": ((0.1,), [0.64, 1.28]),
    "MomentumOptimizer": ((0.1, 0.9), [0.46, 0.92]),
    "AdamOptimizer": ((0.1,), [0.8004126, 1.8001668]),
    "AdagradOptimizer": ((0.1,), [0.8347373, 1.831543]),
    "RMSPropOptimizer": ((0.1,), [0.6872513, 1.5594707]),
    "AdadeltaOptimizer": ((0.1,), [0.99991, 1.99991]),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SHAPELESS)
@pytest.mark.first(4)
def test_variables_without_a_fixed_shape(name, compiled):
    arguments, expected = SHAPELESS[name]
    v, optimizer = tf.Variable([1.0, 2.0], shape=[None]), getattr(train, name)(*arguments)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v**2)
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    run = tf.function(step) if compiled else step
    run()
    run()
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-5)
    for value in ([1.0, 2.0, 3.0], [1.0]):
        v.assign(value)
        if name == "GradientDescentOptimizer":
            run()
            np.testing.assert_allclose(v.numpy(), 0.8 * np.array(value), rtol=1e-6)
        else:
            with pytest.raises(StructureError, match="the variable has changed its shape"):
                run()


def test_sparse_gradients_of_variables_without_a_fixed_shape():
    v, optimizer = tf.Variable([1.0, 2.0], shape=[None]), train.GradientDescentOptimizer(0.5)
    optimizer.apply_gradients([(tf.IndexedSlices(tf.constant([1.0]), tf.constant([1])), v)])
    assert v.numpy().tolist() == [1.0, 1.5]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("place", ["outside the scope", "summed"])
def test_a_step_of_all_replicas_counts_once(compiled, place):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    outside = train.get_or_create_global_step()
    with strategy.scope():
        v, optimizer = tf.Variable(2.0), train.GradientDescentOptimizer(0.1)
        summed = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.SUM)
    step = outside if place == "outside the scope" else summed

    def run():
        strategy.run(lambda: optimizer.minimize(lambda: v * v, step, [v]))

    for _ in range(2):
        (tf.function(run) if compiled else run)()
    assert int(step.numpy()) == 2
