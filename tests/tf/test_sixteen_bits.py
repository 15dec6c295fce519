"""Operations that TensorFlow computes in float32 for tensors of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
LOGITS = np.array([[10.0, 2.0, 3.0, 0.5]], np.float32)


def gradient(function: Any, x: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x)


@pytest.mark.first(1)
@DTYPES
@pytest.mark.parametrize("label", [0, 1])
def test_the_sparse_cross_entropy_is_rounded_once(dtype: str, label: int) -> None:
    def loss(x: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits([label], x)

    found, exact = (gradient(loss, tf.constant(LOGITS, kind)) for kind in (dtype, "float32"))
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one, tf.cast(other, dtype))


@DTYPES
def test_moments_do_not_overflow(dtype: str) -> None:
    x = np.array([-400.0, 0.0, 400.0, 0.0, 0.0, 0.0, 0.0, 0.0], np.float32)
    for moments in (tf.nn.moments(tf.cast(x, dtype), [0]), tf.nn.weighted_moments(tf.cast(x, dtype), [0], tf.ones(8))):
        assert [one.dtype for one in moments] == [dtype] * 2
        np.testing.assert_allclose(tf.cast(moments[1], tf.float32), 40000.0, rtol=0.01)


@pytest.mark.long
@DTYPES
def test_tensors_of_32_bits_do_not_widen_images_and_activations(dtype: str) -> None:
    image, number = tf.constant([[[0.25, 0.5, 1.0]]], dtype), tf.constant(2.0)
    for gamma, gain in ((number, 1), (1, number), (tf.Variable(2.0), 1)):
        assert tf.image.adjust_gamma(image, gamma, gain).dtype == dtype
    np.testing.assert_array_equal(tf.image.adjust_gamma(image, number), image * image)
    assert tf.nn.silu(image, number).dtype == dtype


@DTYPES
def test_batch_normalization_keeps_the_dtype(dtype: str) -> None:
    one = tf.ones(3)
    assert tf.nn.batch_normalization(tf.ones([2, 3], dtype), one, one, one, one, 1e-3).dtype == dtype
    assert tf.nn.batch_normalization(tf.ones([2, 3], dtype), one, one, None, None, 1e-3).dtype == dtype


@DTYPES
@pytest.mark.parametrize("function", [tf.math.special.expint, tf.math.special.spence], ids=["expint", "spence"])
def test_special_functions_are_rounded_once(dtype: str, function: Any) -> None:
    """In float16 the coefficients of `expint` overflow: it was NaN for 0.25."""
    x = tf.constant([0.25, 0.5, 1.5, 3.0, 8.0], dtype)
    for found, exact in zip(gradient(function, x), gradient(function, tf.cast(x, tf.float32)), strict=True):
        np.testing.assert_array_equal(found, tf.cast(exact, dtype))


def test_special_functions_of_integers_are_floats() -> None:
    """Integers of 16 bits are no floats of 16 bits, whose dtype the result keeps."""
    np.testing.assert_allclose(tf.math.special.expint(np.array([2, 3], np.int16)), [4.954234, 9.933833], rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="int16"):
        tf.math.special.spence(np.array([2, 3], np.int16))
