"""`tf.experimental.numpy`."""

from __future__ import annotations

import importlib

import jax
import numpy as np
import pytest

import mirrored.tf as tf


def test_it_is_a_module_that_is_imported_by_name():
    import mirrored.tf.experimental.numpy as tnp

    assert tnp is tf.experimental.numpy
    assert importlib.import_module("mirrored.tf.experimental.numpy") is tnp
    assert {"matmul", "random", "experimental_enable_numpy_behavior"} <= set(dir(tnp))
    np.testing.assert_array_equal(tnp.sum(np.ones([2, 3]), axis=0), [2, 2, 2])
    assert isinstance(tnp.ones([2]), tnp.ndarray)


def test_gradients_pass_through_it():
    tnp = tf.experimental.numpy
    tnp.experimental_enable_numpy_behavior(prefer_float32=True)
    v = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tnp.sum(tnp.square(v))
    np.testing.assert_array_equal(tape.gradient(loss, v), [2, 4])


@pytest.mark.long
def test_random_numbers():
    random = tf.experimental.numpy.random
    random.seed(3)
    first = random.randn(100, 20)
    random.seed(3)
    np.testing.assert_array_equal(random.randn(100, 20), first)
    assert abs(float(first.mean())) < 0.1
    assert abs(float(first.std()) - 1) < 0.1
    for made, low, high in [
        (random.rand(500), 0, 1),
        (random.uniform(-2.0, 3.0, 500), -2, 3),
        (random.random(500), 0, 1),
    ]:
        assert low <= float(made.min()) < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < float(made.max()) < high
    assert set(random.randint(2, 5, 100).tolist()) == {2, 3, 4}
    assert set(random.randint(2, size=[10, 10]).ravel().tolist()) == {0, 1}
    assert random.standard_normal([2, 3]).shape == (2, 3)


def test_a_logical_device_names_its_device():
    logical = tf.config.list_logical_devices()[1]
    with tf.device(logical):
        x = tf.constant([1.0])
    assert x.devices() == {jax.devices()[1]}
    assert tf.distribute.MirroredStrategy(tf.config.list_logical_devices()[:2]).num_replicas_in_sync == 2
    tf.debugging.set_log_device_placement(True)
    assert tf.debugging.get_log_device_placement()
    tf.debugging.set_log_device_placement(False)


def test_a_generator_may_yield_lists_for_arrays():
    spec = tf.TensorSpec([None], tf.int32)
    dataset = tf.data.Dataset.from_generator(lambda: iter([(1,), [2, 3]]), output_signature=spec)
    assert [one.tolist() for one in dataset] == [[1], [2, 3]]
