from __future__ import annotations

from typing import Any

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


@pytest.mark.parametrize("logits", [[[2, 1]], tf.constant([[2, 1]]), tf.constant([[2, 1]], tf.int8)])
def test_the_cross_entropy_of_integer_logits_keeps_its_fraction(logits: Any) -> None:
    dense = tf.nn.softmax_cross_entropy_with_logits(labels=[[1.0, 0.0]], logits=logits)
    np.testing.assert_allclose(dense, [0.3132617], rtol=1e-6)
    sparse = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0], logits=logits)
    np.testing.assert_allclose(sparse, [0.3132617], rtol=1e-6)


@pytest.mark.long
def test_the_ctc_loss_of_integer_logits_keeps_its_fraction() -> None:
    loss = tf.nn.ctc_loss(tf.constant([[1]]), tf.constant([[[1, 2]]]), tf.constant([1]), tf.constant([1]))
    np.testing.assert_allclose(loss, [0.3132617], rtol=1e-5)


@pytest.mark.long
def test_the_gradients_of_the_cross_entropy_of_labels_that_do_not_add_up_to_one() -> None:
    """The values are TensorFlow 2.21's: softmax - labels, and -log_softmax."""
    labels, logits = tf.constant([[0.2, 0.3, 2.0]]), tf.constant([[1.0, 2.0, 3.0]])
    with tf.GradientTape() as tape:
        tape.watch([labels, logits])
        loss = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    by_labels, by_logits = tape.gradient(loss, [labels, logits])
    np.testing.assert_allclose(by_labels, [[2.407606, 1.407606, 0.407606]], rtol=1e-6)
    np.testing.assert_allclose(by_logits, [[-0.1099694, -0.0552715, -1.334759]], rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradient_of_the_cross_entropy_of_an_impossible_class(compiled: bool) -> None:
    def gradient(logits: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.nn.softmax_cross_entropy_with_logits([[0.0, 1.0]], logits)
        return tape.gradient(loss, logits)

    found = (tf.function(gradient) if compiled else gradient)(tf.constant([[-np.inf, 1.0]]))
    np.testing.assert_array_equal(found, [[0, 0]])


@pytest.mark.long
def test_the_second_derivative_of_the_cross_entropy() -> None:
    logits = tf.Variable([[0.0, 0.0]])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.nn.softmax_cross_entropy_with_logits([[1.0, 0.0]], logits)
        first = inner.gradient(loss, logits)
    np.testing.assert_allclose(outer.jacobian(first, logits)[0, :, 0], [[0.25, -0.25], [-0.25, 0.25]], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "expected"), [("float16", 14.203125), ("bfloat16", 14.25)])
def test_the_cross_entropy_of_16_bit_logits_is_computed_in_float32(dtype: str, expected: float) -> None:
    labels, logits = tf.cast([[0.2, 0.3, 0.5]], dtype), tf.cast([[1.0, 2.0, 30.0]], dtype)
    loss = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    assert loss.dtype == dtype
    assert float(loss[0]) == expected


@pytest.mark.parametrize("label", [-1, 2])
def test_an_invalid_class_index_is_an_error_or_nan(label: int) -> None:
    logits = tf.constant([[1.0, 2.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"labels\[0\] = {label} is not in \[0, 2\)"):
        tf.nn.sparse_softmax_cross_entropy_with_logits([label], logits)
    found = tf.function(tf.nn.sparse_softmax_cross_entropy_with_logits)(tf.constant([label]), logits)
    assert np.isnan(found[0])


@pytest.mark.parametrize("labels", [[1.0, 0.0, 1.0], [[1.0, 0.0, 1.0]], 1.0])
@pytest.mark.parametrize(
    "loss",
    [
        tf.nn.sigmoid_cross_entropy_with_logits,
        lambda labels, logits: tf.nn.weighted_cross_entropy_with_logits(labels, logits, 2.0),
        tf.nn.log_poisson_loss,
    ],
)
def test_labels_are_not_broadcast(loss: Any, labels: Any) -> None:
    """Labels [3] and logits [3, 1] gave the loss of 9 pairs."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have the same shape"):
        loss(labels, tf.zeros([3, 1]))


def test_the_sparse_cross_entropy_of_integer_logits_is_not_rounded():
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits([2], [[1, 2, 3]])
    np.testing.assert_allclose(loss, [0.4076], rtol=1e-3)
