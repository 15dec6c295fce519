from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.tf._table import register

ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tf.reduce_sum(ONES, reduction_indices=0), "use TensorFlow 2's `axis`"),
        (lambda: tf.reduce_sum(ONES, keep_dims=True), "use TensorFlow 2's `keepdims`"),
        (lambda: tf.reduce_sum(ONES, wrong=True), r"unexpected keyword argument 'wrong' \(it takes input_tensor"),
        (lambda: tf.add(ONES), "tf.math.add.. missing a required argument: 'y'"),
        (lambda: tf.add(ONES, ONES, x=ONES), "multiple values for argument 'x'"),
        (lambda: tf.abs(ONES, 1, 2), "takes 1 positional arguments but 3 were given"),
    ],
)
def test_arguments_that_do_not_fit(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: tf.add(ONES, np.ones(4, np.float32)),
        lambda: tf.matmul(ONES, ONES),
        lambda: tf.concat([ONES, ONES[:1]], axis=1),
        lambda: tf.reshape(ONES, [4]),
        lambda: tf.nn.conv2d(ONES[None, ..., None], np.ones((1, 1, 2, 1), np.float32), 1, "SAME"),
        lambda: tf.reduce_sum(ONES, axis=5),
        lambda: tf.nn.sparse_softmax_cross_entropy_with_logits([1], ONES),
    ],
)
def test_shapes_that_do_not_fit(call: Callable[[], Any]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tf\.\S+: .*\n  rule: .*\n  remedy: "):
        call()
    with pytest.raises(ValueError, match="rule"):
        call()


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        register(["math.abs"], abs)


def test_every_operation_takes_a_name() -> None:
    assert tf.reduce_sum(ONES, name="total") == 6
    assert tf.nn.relu(-1.0, name="r") == 0
