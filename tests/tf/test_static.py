from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

X = np.ones((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("shape_of", "expected"),
    [
        (lambda x: [tf.shape(x)[0], -1], (2, 12)),
        (lambda x: tf.concat([tf.shape(x)[:1], [12]], axis=0), (2, 12)),
        (lambda x: [tf.reduce_prod(tf.shape(x)[:2]), 4], (6, 4)),
        (lambda x: tf.stack([tf.size(x) // 4, 4]), (6, 4)),
        (lambda x: [tf.cast(tf.shape(x)[1], tf.int32) * 2, 4], (6, 4)),
        (lambda x: [tf.constant(2) * tf.constant(3), 4], (6, 4)),
        (lambda x: tf.shape(x)[::-1], (4, 3, 2)),
        (lambda x: tf.unstack(tf.shape(x)), (2, 3, 4)),
        (lambda x: tf.maximum(tf.shape(x), 2) + 0, (2, 3, 4)),
        (lambda x: tf.TensorShape([6, 4]), (6, 4)),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_shapes_stay_known(shape_of: Callable[[Any], Any], expected: tuple[int, ...], wrap: Callable[..., Any]) -> None:
    assert wrap(lambda x: tf.reshape(x, shape_of(x)))(X).shape == expected


def test_a_shape_takes_part_in_arithmetic() -> None:
    @tf.function
    def mean(x: Any) -> Any:
        return tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32)

    assert mean(X) == 1.0


def test_static_tensors_are_integers_to_python() -> None:
    size = tf.shape(X)[1]
    assert list(range(size)) == [0, 1, 2]
    assert [10, 20, 30, 40][size] == 40
    assert size == 3
    assert size.numpy() == 3
    assert tf.is_tensor(size)
    assert (size / 2) == 1.5
    assert tf.rank(X) == 3


def test_products_that_do_not_fit_into_32_bits_are_refused() -> None:
    product = tf.shape(X)[0] * np.int64(2**40)
    assert product == 2**41
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit into int32"):
        tf.identity(product)


def test_a_traced_shape_is_refused() -> None:
    @tf.function
    def run(x: Any, n: Any) -> Any:
        return tf.reshape(x, [n, -1])

    with pytest.raises(tf.errors.InvalidArgumentError, match="`shape` depends on a traced value"):
        run(X, tf.constant(3))


def test_an_axis_is_an_integer() -> None:
    assert tf.reduce_sum(X, axis=tf.constant(1)).shape == (2, 4)
    assert tf.reduce_sum(X, axis=tf.constant([0, 1])).shape == (4,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`axis` must be an integer"):
        tf.expand_dims(X, "first")


def test_a_known_operand_beside_a_traced_keyword() -> None:
    @tf.function
    def more(x: Any) -> Any:
        return tf.add(tf.shape(x)[0], y=tf.cast(tf.reduce_sum(x), tf.int32)), tf.multiply(x=tf.shape(x)[1], y=2)

    assert [int(one) for one in more(np.ones((2, 3), np.float32))] == [8, 6]


@pytest.mark.parametrize(
    ("of_shape", "expected"),
    [
        (lambda x: tf.shape(x)[0], 2),
        (tf.size, 24),
        (tf.rank, 3),
        (lambda x: tf.reduce_prod(tf.shape(x)), 24),
        (lambda x: tf.identity(tf.shape(x)[0]), 2),
        (lambda x: tf.cast(tf.shape(x)[0], tf.float32), 2.0),
        (lambda x: tf.shape(x)[0] * 2, 4),
        (lambda x: tf.stack([tf.shape(x)[0], 3]), [2, 3]),
        (lambda x: tf.range(tf.shape(x)[0]), [0, 1]),
    ],
)
@pytest.mark.parametrize("compiled", ["eager", "run of a function", "function of run"])
@pytest.mark.first(14)
def test_shapes_that_replicas_return_are_per_replica(
    of_shape: Callable[[Any], Any], expected: Any, compiled: str
) -> None:
    # TensorFlow 2.21 gives the same results in all three.
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    replica = tf.function(of_shape) if compiled == "run of a function" else of_shape

    def step(x: Any) -> Any:
        return strategy.run(replica, args=(x,))

    result = (tf.function(step) if compiled == "function of run" else step)(tf.constant(X))
    assert [np.asarray(one).tolist() for one in strategy.experimental_local_results(result)] == [expected] * 2
    np.testing.assert_array_equal(strategy.reduce("SUM", result, axis=None), np.multiply(expected, 2))
