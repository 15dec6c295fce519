"""Operations of `tf.image` that take floats only, as in TensorFlow."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import mirrored.tf as tf

BYTES = np.array([[[[10, 200, 30], [40, 50, 60]], [[1, 2, 3], [4, 5, 6]]]], np.uint8)
OF_FLOATS = ["rgb_to_hsv", "hsv_to_rgb", "rgb_to_yiq", "yiq_to_rgb", "rgb_to_yuv", "yuv_to_rgb", "sobel_edges"]


@pytest.mark.parametrize("name", [*OF_FLOATS, "total_variation"])
def test_bytes_are_refused_where_they_gave_numbers_that_wrap_around(name: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"tf.image.{name}(.|\n)*convert_image_dtype"):
        getattr(tf.image, name)(BYTES)


def test_patches_keep_the_bits_of_their_pixels() -> None:
    patches = tf.image.extract_patches(BYTES, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME")
    assert patches.dtype == np.uint8
    assert patches[0, 0, 0].tolist() == BYTES.reshape(-1).tolist()
    assert patches[0, 1, 1].tolist() == [4, 5, 6] + [0] * 9


def test_the_nearest_pixel_is_that_of_tensorflow() -> None:
    """In TensorFlow (149 + 0.5) * float32(640 / 299) is less than 320: it rounds the scale first."""
    column = np.arange(640, dtype=np.int32).reshape(640, 1, 1)
    places = np.floor((np.arange(299, dtype=np.float32) + np.float32(0.5)) * (np.float32(640) / np.float32(299)))
    resized = tf.image.resize(column, [299, 1], "nearest")
    assert resized.dtype == np.int32
    np.testing.assert_array_equal(resized[:, 0, 0], places)


@pytest.mark.parametrize("size", [(8, 6), (2, 3), (7, 3), (4, 9), (1, 1)])
def test_bilinear_resizing_is_that_of_jax_for_finite_pixels(size: tuple[int, int]) -> None:
    images = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
    expected = jax.image.resize(images, (2, *size, 3), "linear", antialias=False)
    np.testing.assert_allclose(tf.image.resize(images, size), expected, atol=1e-6)


def test_bilinear_resizing_keeps_a_missing_pixel_among_its_neighbors() -> None:
    image = np.zeros((4, 4, 1), np.float32)
    image[0, 0] = np.nan
    missing = np.isnan(tf.image.resize(image, [8, 8]))[..., 0]
    expected = np.zeros((8, 8), bool)
    expected[:3, :3] = True
    np.testing.assert_array_equal(missing, expected)


def test_the_contrast_of_half_precision_images_keeps_their_dtype():
    image = tf.ones([4, 4, 3], tf.float16)
    assert tf.image.random_contrast(image, 0.5, 1.5).dtype == tf.float16
    assert tf.image.adjust_contrast(image, tf.constant(2.0)).dtype == tf.float16


def test_boxes_are_suppressed_without_a_matrix_of_all_pairs():
    """The matrix of 60,000 boxes has 14 GB."""
    corners = np.random.default_rng(0).uniform(0, 1000, [60_000, 2]).astype(np.float32)
    boxes = np.concatenate([corners, corners + 0.001], axis=1)
    boxes[1] = boxes[0]
    scores = np.linspace(1, 0, 60_000, dtype=np.float32)
    assert tf.image.non_max_suppression(boxes, scores, 3).tolist() == [0, 2, 3]
