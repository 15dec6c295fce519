"""`tf.image.resize` with the methods that JAX does not have; the recorded values are those of TensorFlow 2.21."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf

IMAGES = np.random.RandomState(0).rand(1, 4, 6, 2).astype(np.float32)
# method, size, antialias, first pixels, sum of the pixels, first derivatives of sum(pixel * its index)
RECORDED = [
    ("area", [2, 3], False, [0.44766, 0.5682, 0.4149, 0.81007, 0.79887, 0.62301], 6.5548, None),
    ("area", [3, 4], False, [0.52569, 0.65534, 0.37181, 0.6052, 0.67095, 0.75335], 13.1096, None),
    ("area", [8, 9], False, [0.54881, 0.71519, 0.57579, 0.63004, 0.60276, 0.54488], 78.6573, None),
    ("gaussian", [2, 3], False, [0.44766, 0.5682, 0.4149, 0.81007, 0.79887, 0.62301], 6.5548, [0.0, 0.25, 0.0, 0.25]),
    (
        "gaussian",
        [2, 3],
        True,
        [0.3887, 0.62111, 0.4664, 0.69604, 0.67445, 0.65088],
        6.5502,
        [0.0685, 0.2558, 0.1798, 0.4158],
    ),
    (
        "gaussian",
        [3, 4],
        False,
        [0.53642, 0.67579, 0.38497, 0.63085, 0.62158, 0.7719],
        13.0063,
        [0.0, 0.5786, 0.4107, 0.8289],
    ),
    (
        "gaussian",
        [3, 4],
        True,
        [0.49279, 0.63711, 0.38144, 0.63261, 0.65018, 0.73048],
        13.1195,
        [0.2868, 0.7306, 0.732, 1.233],
    ),
    (
        "gaussian",
        [8, 9],
        False,
        [0.55153, 0.71204, 0.56364, 0.62417, 0.54188, 0.55972],
        78.6587,
        [38.6733, 41.6153, 47.1706, 50.1634],
    ),
    (
        "gaussian",
        [8, 9],
        True,
        [0.55153, 0.71204, 0.56364, 0.62417, 0.54188, 0.55972],
        78.6587,
        [38.6733, 41.6153, 47.1706, 50.1634],
    ),
    (
        "mitchellcubic",
        [2, 3],
        False,
        [0.46657, 0.55432, 0.39825, 0.84327, 0.82437, 0.61527],
        6.5511,
        [0.0, 0.2671, -0.0359, 0.2132],
    ),
    (
        "mitchellcubic",
        [2, 3],
        True,
        [0.37249, 0.60959, 0.45605, 0.71417, 0.7093, 0.65909],
        6.5499,
        [-0.0432, 0.1372, 0.049, 0.2841],
    ),
    (
        "mitchellcubic",
        [3, 4],
        False,
        [0.54783, 0.68082, 0.38752, 0.61836, 0.61882, 0.78718],
        12.9876,
        [-0.2318, 0.3668, 0.2684, 0.6727],
    ),
    (
        "mitchellcubic",
        [3, 4],
        True,
        [0.52055, 0.62786, 0.35859, 0.62146, 0.67664, 0.74717],
        13.1353,
        [0.0133, 0.4485, 0.4614, 0.9765],
    ),
    (
        "mitchellcubic",
        [8, 9],
        False,
        [0.54767, 0.70985, 0.58866, 0.63365, 0.58901, 0.56978],
        78.6413,
        [32.9212, 35.9565, 40.8979, 43.8881],
    ),
    (
        "mitchellcubic",
        [8, 9],
        True,
        [0.54767, 0.70985, 0.58866, 0.63365, 0.58901, 0.56978],
        78.6413,
        [32.9212, 35.9565, 40.8979, 43.8881],
    ),
]


@pytest.mark.first(2)
@pytest.mark.parametrize(("method", "size", "antialias", "first", "total", "slopes"), RECORDED)
def test_methods_have_the_pixels_and_gradients_of_tensorflow(method, size, antialias, first, total, slopes):
    images = tf.constant(IMAGES)
    with tf.GradientTape() as tape:
        tape.watch(images)
        resized = tf.image.resize(images, size, method, antialias=antialias)
        loss = tf.reduce_sum(resized * np.arange(resized.size, dtype=np.float32).reshape(resized.shape))
    np.testing.assert_allclose(np.ravel(resized)[:6], first, atol=2e-5)
    np.testing.assert_allclose(np.sum(resized), total, rtol=1e-4)
    if slopes is not None:
        np.testing.assert_allclose(np.ravel(tape.gradient(loss, images))[:4], slopes, rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_areas_are_means_of_blocks():
    blocks = IMAGES.reshape(1, 2, 2, 3, 2, 2).mean((2, 4))
    np.testing.assert_allclose(tf.image.resize(IMAGES, [2, 3], tf.image.ResizeMethod.AREA), blocks, atol=1e-6)
    np.testing.assert_allclose(tf.image.resize(IMAGES, [4, 6], "area"), IMAGES, atol=1e-6)


def test_bytes_become_floats():
    resized = tf.image.resize((IMAGES * 255).astype(np.uint8), [2, 3], "area")
    assert resized.dtype == np.float32
    np.testing.assert_allclose(np.ravel(resized)[:3], [113.5, 144.5, 105.5])


def test_an_unknown_method_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="`method` must be one of bilinear(.|\n)*mitchellcubic"):
        tf.image.resize(IMAGES, [2, 3], "cubic")
