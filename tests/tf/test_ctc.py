"""`tf.nn.ctc_loss`; the recorded values are those of TensorFlow 2.21."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored.tf as tf

LONG = [[1, 2, 3], [1, 2, 3], [1, 1, 2]]


def slopes_of(labels, logits, label_length, logit_length, blank):
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = tf.nn.ctc_loss(labels, logits, label_length, logit_length, blank_index=blank)
    return loss, tape.gradient(loss, logits)


# labels, lengths of labels, lengths of logits, blank, number of classes, losses, absolute slopes of each example
CASES = [
    ([[1, 2, 0], [1, 1, 1]], [2, 3], [4, 4], 0, 5, [4.492916, 710.874329], [4.89576, 4.45144]),
    (LONG, [3, 3, 3], [3, 2, 3], 0, 4, [6.603462, 707.579895, 710.444336], [5.20457, 0.98784, 2.54138]),
    ([[1, 1, 1, 1], [1, 1, 1, 2]], [4, 4], [5, 4], 3, 4, [712.537964, 711.312134], [5.79107, 3.57599]),
    ([[1, 2, 3], [2, 3, 1]], [3, 3], [0, 0], 0, 4, [706.893616, 706.893616], [0, 0]),
    ([[1, 2, 3], [2, 3, 1]], [0, 0], [0, 3], 0, 4, [0, 5.663502], [0, 4.02267]),
]


@pytest.mark.long
@pytest.mark.parametrize(("labels", "long", "frames", "blank", "classes", "losses", "slopes"), CASES)
def test_labels_that_do_not_fit_have_the_loss_of_tensorflow(labels, long, frames, blank, classes, losses, slopes):
    count = 4 if frames == [4, 4] else 5
    drawn = np.random.RandomState(0).randn(count, len(labels), classes)
    loss, slope = slopes_of(labels, tf.constant(drawn.astype(np.float32)), long, frames, blank)
    np.testing.assert_allclose(loss, losses, rtol=2e-6)
    np.testing.assert_allclose(np.abs(slope).sum((0, 2)), slopes, rtol=1e-4)


def test_the_gradient_of_a_label_that_does_not_fit():
    logits = tf.constant(np.random.RandomState(0).randn(4, 2, 5).astype(np.float32))
    _, slope = slopes_of([[1, 2, 0], [1, 1, 1]], logits, [2, 3], [4, 4], 0)
    recorded = [
        [-0.06665, -0.45800, 0.13794, 0.14474, 0.24195],
        [-0.07356, -0.23474, 0.09629, 0.16167, 0.05032],
        [-0.16134, -0.72316, 0.07480, 0.41769, 0.39203],
        [-0.12943, -0.37885, 0.35642, 0.07270, 0.07916],
    ]
    np.testing.assert_allclose(slope[:, 1], recorded, atol=5e-5)


@pytest.mark.parametrize("blank", [0, 2, -1])
@pytest.mark.long
def test_labels_that_fit_have_the_loss_and_derivatives_of_optax(blank):
    logits = jnp.asarray(np.random.default_rng(3).normal(size=(2, 7, 5)), jnp.float32)
    labels, place = np.array([[1, 1, 3], [3, 1, 0]]), blank % 5
    beyond, late = np.array([[0, 0, 0], [0, 0, 1.0]]), (np.arange(7) >= np.array([[7], [5]])).astype(np.float32)

    def ours(scores):
        return tf.nn.ctc_loss(labels, scores, [3, 2], [7, 5], logits_time_major=False, blank_index=blank)

    def theirs(scores):
        return optax.ctc_loss(scores, late, labels, beyond, blank_id=place)

    np.testing.assert_allclose(ours(logits), theirs(logits), rtol=1e-5)
    slopes = [jax.grad(lambda x, one=one: jnp.sum(one(x) ** 2)) for one in (ours, theirs)]
    np.testing.assert_allclose(slopes[0](logits), slopes[1](logits), rtol=1e-4, atol=1e-4)
    twice = [jax.jvp(one, [logits], [jnp.sin(logits)])[1] for one in slopes]
    np.testing.assert_allclose(*twice, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("frames", [[4, 4], [4, 5]])
@pytest.mark.long
def test_compiled_functions_have_the_loss_of_eager_ones(frames):
    labels, logits = [[1, 2, 0], [1, 1, 1]], tf.constant(np.random.RandomState(0).randn(5, 2, 5).astype(np.float32))
    eager = slopes_of(labels, logits, [2, 3], frames, 0)
    compiled = tf.function(lambda x, y: slopes_of(labels, x, [2, 3], y, 0))(logits, tf.constant(frames))
    for one, other in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_ctc_has_gradients():
    logits = jnp.asarray(np.random.default_rng(2).normal(size=(6, 1, 4)), jnp.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = tf.nn.ctc_loss(np.array([[1, 2]]), logits, np.array([2]), np.array([6]))
    expected = jax.grad(lambda x: tf.nn.ctc_loss(np.array([[1, 2]]), x, np.array([2]), np.array([6]))[0])(logits)
    np.testing.assert_allclose(tape.gradient(loss, logits), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected).max() > 0.01


@pytest.mark.long
def test_the_ctc_loss_has_the_dtype_of_the_logits_in_the_64_bit_mode():
    with jax.enable_x64(True):
        assert tf.nn.ctc_loss(LONG, tf.zeros([5, 3, 4]), [3, 3, 3], [3, 2, 3]).dtype == tf.float32
