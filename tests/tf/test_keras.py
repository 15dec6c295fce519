"""`tf.keras` and its aliases; layers that are written with `tf.Variable`."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import mirrored.tf as tf


def test_the_namespace_is_that_of_tensorflow():
    assert tf.keras.losses.Reduction.NONE == "none"
    assert tf.keras.losses.MSE is tf.keras.losses.mean_squared_error
    assert tf.metrics is tf.keras.metrics
    assert tf.losses is tf.keras.losses
    assert tf.optimizers is tf.keras.optimizers


def test_its_modules_are_imported_by_name():
    from mirrored.tf.keras.datasets import mnist

    from mirrored.tf import keras
    from mirrored.tf.keras import layers

    assert keras is tf.keras
    assert layers.Dense is tf.keras.layers.Dense
    assert callable(mnist.load_data)


def test_layers_with_plain_variables_are_called_symbolically():
    class Scale(tf.keras.layers.Layer):
        def build(self, shape):
            self.w = tf.Variable(tf.fill([shape[-1]], 3.0))

        def call(self, x):
            return x * self.w

    inputs = tf.keras.Input([2])
    model = tf.keras.Model(inputs, Scale()(inputs))
    assert model.output.shape == (None, 2)
    np.testing.assert_allclose(model(tf.constant([[1.0, 2.0]])), [[3.0, 6.0]])


def test_an_operation_that_draws_random_numbers_is_an_initializer():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer=tf.random.normal)])
    model.compile("sgd", tf.keras.losses.MSE)
    x = np.linspace(-1, 1, 8, dtype="f4")[:, None]
    history = model.fit(x, 2 * x, epochs=2, verbose=0)
    assert history.history["loss"][1] < history.history["loss"][0]


@pytest.mark.multiprocess
def test_importing_keras_afterwards_takes_jax():
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    program = "import mirrored.tf, keras; print(keras.backend.backend())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.strip() == "jax"
