"""Windows and strides of other dimensions than the spatial ones; Keras' layers never pass them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

X = np.arange(16, dtype=np.float32).reshape(1, 2, 2, 4)
ONE = np.ones((1, 1, 4, 1), np.float32)

NO_EFFECT: dict[str, Callable[[], Any]] = {
    "averages of channels": lambda: tf.nn.avg_pool(X, [1, 1, 1, 2], [1, 1, 1, 2], "VALID"),
    "maxima of a batch": lambda: tf.nn.max_pool(X, [2, 1, 1, 1], 1, "VALID"),
    "strides of a batch": lambda: tf.nn.conv2d(X, ONE, [2, 1, 1, 1], "VALID"),
    "strides of channels": lambda: tf.nn.conv2d(X, ONE, [1, 2, 1, 1], "VALID", data_format="NCHW"),
    "dilations of channels": lambda: tf.nn.conv2d(X, ONE, 1, "VALID", dilations=[1, 1, 1, 2]),
    "indices of channels": lambda: tf.nn.max_pool_with_argmax(X, [1, 1, 1, 2], 1, "VALID"),
}


@pytest.mark.parametrize("call", NO_EFFECT.values(), ids=NO_EFFECT)
def test_what_had_no_effect_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be 1"):
        call()


def test_the_gradient_of_a_dilation_goes_to_the_first_of_equal_maxima() -> None:
    x = tf.Variable(tf.ones([1, 2, 1, 1]))
    with tf.GradientTape() as tape:
        y = tf.nn.dilation2d(x, tf.zeros([2, 1, 1]), [1] * 4, "VALID", "NHWC", [1] * 4)
    assert tape.gradient(y, x).numpy().tolist() == [[[[1]], [[0]]]]


def test_maxima_of_channels_have_gradients() -> None:
    """A layer of A. Geron's "Hands-On Machine Learning"."""
    x = tf.Variable(X[:, :1, :1])
    with tf.GradientTape() as tape:
        y = tf.nn.max_pool(x, ksize=(1, 1, 1, 2), strides=(1, 1, 1, 2), padding="VALID")
    assert y.numpy().tolist() == [[[[1, 3]]]]
    assert tape.gradient(y, x).numpy().tolist() == [[[[0, 1, 0, 1]]]]
