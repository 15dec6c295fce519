"""`tf.compat.v1.losses`: reductions of weighted losses, computed here by hand from TensorFlow's documentation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf

losses: Any = tf.compat.v1.losses
VALUES = [[1.0, 2.0], [3.0, 6.0]]
REDUCED = {
    losses.Reduction.SUM: 2 * 1 + 2 * 2.0,
    losses.Reduction.MEAN: 6 / 4,
    losses.Reduction.SUM_OVER_BATCH_SIZE: 6 / 4,
    losses.Reduction.SUM_BY_NONZERO_WEIGHTS: 6 / 2,
    losses.Reduction.SUM_OVER_NONZERO_WEIGHTS: 6 / 2,
}


@pytest.mark.parametrize("reduction", REDUCED)
def test_reductions_of_weighted_losses(reduction: str) -> None:
    weights = [[2.0], [0.0]]
    assert float(losses.compute_weighted_loss(VALUES, weights, reduction=reduction)) == REDUCED[reduction]


def test_losses_without_a_reduction_and_of_integers() -> None:
    found = losses.compute_weighted_loss([1, 2], 3.0, reduction=losses.Reduction.NONE)
    assert (found.dtype, found.tolist()) == (np.int32, [3, 6])


def test_weights_of_zero_give_zero_and_a_gradient_of_zero() -> None:
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = losses.compute_weighted_loss(x, tf.zeros([2]))
    assert float(loss) == 0.0
    assert tape.gradient(loss, x).tolist() == [0.0, 0.0]


def test_each_replica_averages_its_own_losses() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    data = tf.data.Dataset.from_tensor_slices([5.0, 6.0, 7.0]).batch(4)
    [batch] = strategy.experimental_distribute_dataset(data)

    def replica(x: Any) -> Any:
        return losses.compute_weighted_loss(x, weights=tf.ones_like(x))

    assert [float(one) for one in strategy.run(replica, args=(batch,)).values] == [5.5, 7.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], 1.0, None, None, "average"), "reduction='average'"),
        ((VALUES, [1.0, 0.0]), "can not be broadcast"),
        ((VALUES, [[1.0, 0.0, 1.0]] * 2), "can not be broadcast"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.compute_weighted_loss(*arguments)


OF_PREDICTIONS = ("absolute_difference", "hinge_loss", "huber_loss", "log_loss", "mean_squared_error")


@pytest.mark.parametrize("name", OF_PREDICTIONS)
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_losses_of_predictions_are_float32(name: str, dtype: Any) -> None:
    labels, predictions = tf.zeros([2], dtype), tf.constant([0.5, 0.25], dtype)
    expected = getattr(losses, name)(tf.cast(labels, tf.float32), tf.cast(predictions, tf.float32))
    found = getattr(losses, name)(labels, predictions)
    assert (found.dtype, float(found)) == (np.float32, float(expected))


def test_sums_of_short_floats_are_computed_in_float32() -> None:
    assert (
        float(losses.mean_squared_error(tf.zeros([2], tf.float16), tf.fill([2], tf.constant(300.0, tf.float16)))) == 9e4
    )
    found = losses.compute_weighted_loss(tf.fill([2000], tf.constant(100.0, tf.float16)))
    assert (found.dtype, float(found)) == (np.float16, 100.0)
    found = losses.compute_weighted_loss(tf.fill([1001], tf.constant(3.0, tf.bfloat16)))
    assert (found.dtype, float(found)) == (jnp.bfloat16, 3.0)


@pytest.mark.parametrize(
    ("loss", "has_gradient"),
    [
        (losses.softmax_cross_entropy, False),
        (tf.compat.v1.nn.softmax_cross_entropy_with_logits, False),
        (tf.compat.v1.nn.softmax_cross_entropy_with_logits_v2, True),
        (tf.nn.softmax_cross_entropy_with_logits, True),
    ],
)
def test_gradients_of_labels(loss: Any, has_gradient: bool) -> None:
    labels, logits = tf.constant([[0.2, 0.8]]), tf.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch([labels, logits])
        value = loss(labels, logits)
    of_labels, of_logits = tape.gradient(value, [labels, logits])
    assert (of_labels is not None) == has_gradient
    assert of_logits is not None
