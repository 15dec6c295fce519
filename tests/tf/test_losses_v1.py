"""`tf.compat.v1.losses`: reductions of weighted losses, computed here by hand from TensorFlow's documentation."""

from __future__ import annotations

from typing import Any

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
    assert (found.dtype, found.tolist()) == (np.float32, [3.0, 6.0])


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
