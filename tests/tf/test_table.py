from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, SupportsIndex

import jax
import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.tf._table import OPS, Common, Int, Ints, _converting, register

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
        lambda: tf.nn.conv2d_transpose(ONES[None, ..., None], np.ones((1, 1, 1, 1), np.float32), [1, 9, 9, 1], 1),
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


@pytest.mark.parametrize("name", ["nn.l2_loss", "reshape", "math.add", "zeros", "linalg.diag"])
def test_the_name_may_be_positional_or_a_keyword(name: str) -> None:
    function = OPS[name].function
    given = {"nn.l2_loss": (ONES,), "reshape": (ONES, [3, 2]), "math.add": (ONES, 1), "zeros": ([2],)}.get(
        name, (ONES,)
    )
    values = list(given) + ["float32"] * (name == "zeros")
    np.testing.assert_array_equal(function(*values, "a name"), function(*values))
    np.testing.assert_array_equal(function(*values, name="a name"), function(*values))


def test_an_operation_without_a_name_in_tensorflow_takes_none() -> None:
    with pytest.raises(TypeError, match=r"adjust_gamma.. got an unexpected keyword argument 'name'"):
        tf.image.adjust_gamma(ONES, name="g")


def test_the_signature_shows_what_a_caller_passes() -> None:
    shown = inspect.signature(tf.eye)
    assert list(shown.parameters) == ["num_rows", "num_columns", "batch_shape", "dtype", "name"]
    assert shown.parameters["num_rows"].annotation is SupportsIndex
    assert shown.parameters["num_columns"].annotation == SupportsIndex | None
    assert "name" not in inspect.signature(tf.image.adjust_gamma).parameters


def test_arguments_are_converted_as_annotated() -> None:
    made: list[Any] = []

    def together(x: Common, y: Common, z: jax.Array | None = None, k: Int = 1, shape: Ints | None = None) -> int:
        made[:] = [x, y, z, k, shape]
        return 1

    function = _converting("tf.together", together, True)
    assert function(np.ones(2, np.float16), 2, None, np.int64(3), [np.int32(4), 5]) == 1
    assert [made[0].dtype, made[1].dtype, *made[2:]] == [np.float16, np.float16, None, 3, (4, 5)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="`k` must be an integer"):
        function(1, 2, k=1.5)
    with pytest.raises(TypeError, match="unsupported type"):
        function(None, 2)
