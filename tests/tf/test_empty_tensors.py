"""Operations on tensors without elements, such as the per-replica batch of a replica that gets no example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import mirrored.tf as tf

# Shape, new shape and result of TensorFlow 2.21.
RESHAPED: list[tuple[tuple[int, ...], list[int], tuple[int, ...]]] = [
    ((0, 3), [0, -1], (0, 3)),
    ((0, 2, 3), [0, -1], (0, 6)),
    ((0, 2, 3), [0, -1, 3], (0, 2, 3)),
    ((0, 2, 3), [0, 2, -1], (0, 2, 3)),
    ((0, 2, 3), [-1, 6], (0, 6)),
    ((0, 2, 3), [-1, 0], (6, 0)),
    ((0, 2, 3), [0, -1, 4], (0, 1, 4)),
    ((0,), [0, -1], (0, 1)),
    ((0, 0), [0, -1], (0, 1)),
    ((2, 0, 3), [2, -1, 0], (2, 3, 0)),
    ((2, 0, 6), [0, 0, -1], (0, 0, 12)),
    ((0, 3), [3, -1], (3, 0)),
    ((0, 3), [-1], (0,)),
]


@pytest.mark.parametrize(("shape", "wanted", "expected"), RESHAPED)
def test_reshape_infers_a_size(shape: tuple[int, ...], wanted: list[int], expected: tuple[int, ...]) -> None:
    assert tf.reshape(tf.zeros(shape), wanted).shape == expected
    assert jax.jit(lambda x: tf.reshape(x, wanted))(tf.zeros(shape)).shape == expected


def test_reshape_of_elements_to_none_is_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.reshape(tf.zeros([2, 3]), [0, 3])


@pytest.mark.first(1)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [lambda x: tf.shape(x)[0], lambda x: x.shape[0]])
def test_an_empty_per_replica_batch_is_flattened(size: Callable[[Any], Any], compiled: bool) -> None:
    examples = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    strategy = tf.distribute.MirroredStrategy(jax.devices()[:4])
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(examples).batch(5))

    def total(x: Any) -> Any:
        return tf.reduce_sum(tf.reduce_sum(tf.reshape(x, [size(x), -1]), axis=1))

    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(total, args=(batch,)), axis=None)

    [found] = [float((tf.function(step) if compiled else step)(batch)) for batch in batches]
    assert found == examples.sum()


# What TensorFlow 2.21 gives.
SHAPES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "boolean_mask": (lambda: tf.boolean_mask(tf.zeros([0, 3]), [True, False, True], axis=1), (0, 2)),
    "boolean_mask of two axes": (lambda: tf.boolean_mask(tf.zeros([0, 1, 3]), [[True, False, True]], axis=1), (0, 2)),
    "boolean_mask of rows": (lambda: tf.boolean_mask(tf.zeros([2, 0]), [True, False]), (1, 0)),
    "dynamic_partition": (lambda: tf.dynamic_partition(tf.zeros([2, 0]), [0, 0], 2)[0], (2, 0)),
    "dynamic_stitch": (lambda: tf.dynamic_stitch([[0, 1]], [tf.zeros([2, 0])]), (2, 0)),
}


@pytest.mark.parametrize(("made", "shape"), SHAPES.values(), ids=SHAPES)
def test_shapes_are_those_of_tensorflow(made: Callable[[], Any], shape: tuple[int, ...]) -> None:
    assert made().shape == shape
