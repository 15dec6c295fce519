from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_the_gradient_of_the_sigmoid_cross_entropy_at_zero(label: float) -> None:
    """Every logit of a layer that is initialized with zeros is 0."""
    x = tf.Variable([0.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=[label, label], logits=x)
    # as in TensorFlow: sigmoid(x) - label
    np.testing.assert_allclose(tape.gradient(loss, x), 1 / (1 + np.exp([0.0, -2.0])) - label, rtol=1e-6)


def test_the_sparse_cross_entropy_of_large_logits_keeps_its_digits() -> None:
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits([0], np.float32([[10000.0, 10000.5]]))
    np.testing.assert_allclose(loss, [0.974077], rtol=1e-6)
