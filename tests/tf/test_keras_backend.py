"""`tf.keras.backend`: the results of its functions are TensorFlow's; also in the layers and losses of models."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import mirrored.tf as tf
from tf import keras_backend_cases

EXPECTED = json.loads((Path(__file__).parent / "keras_backend_tf_2_21.json").read_text("utf-8"))
CASES = keras_backend_cases.cases(tf)
K = tf.keras.backend


@pytest.mark.first(63)
@pytest.mark.parametrize("name", EXPECTED)
def test_results_are_those_of_tensorflow(name):
    dtype, value = EXPECTED[name]
    found = np.asarray(CASES[name]())
    assert str(found.dtype) == dtype
    if isinstance(value, str):
        assert found == value
    else:
        np.testing.assert_allclose(found, np.asarray(value), rtol=1e-5, atol=1e-6)


def test_every_case_is_recorded():
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.long
def test_a_vae_written_with_the_backend_trains_on_two_replicas():
    def sampled(args):
        mean, log_var = args
        epsilon = K.random_normal(shape=(K.shape(mean)[0], K.int_shape(mean)[1]))
        return mean + K.exp(log_var / 2) * epsilon

    def loss(true, predicted):
        return K.mean(K.square(true - predicted), axis=-1) + K.zeros((1,))

    K.clear_session()
    with tf.distribute.MirroredStrategy(jax.devices()[:2]).scope():
        inputs = tf.keras.Input((4,))
        parts = [tf.keras.layers.Dense(2)(inputs), tf.keras.layers.Dense(2)(inputs)]
        sample = tf.keras.layers.Lambda(sampled, output_shape=(2,))(parts)
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(4)(sample))
        model.compile(tf.keras.optimizers.SGD(0.05), loss)
    rows = np.ones((16, 4), "float32")
    losses = model.fit(rows, rows, batch_size=8, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert len(np.unique(model.predict(rows, verbose=0)[:, 0])) == 16


def test_names_that_need_graph_mode_are_refused():
    with pytest.raises(AttributeError, match="gradients"):
        K.gradients(tf.constant(1.0), tf.constant(2.0))
