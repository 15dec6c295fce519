"""Image files and base64 under TensorFlow's names; the recorded values are those of TensorFlow 2.21."""

from __future__ import annotations

import io
import logging
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mirrored.tf as tf
from mirrored.tf._io import files

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 26, 3), np.uint8)
JPEG = tf.io.encode_jpeg(PIXELS)
PNG = tf.io.encode_png(PIXELS)


def gif(frames: int) -> bytes:
    images = [Image.fromarray(np.full((4, 5, 3), 40 * number, np.uint8)) for number in range(frames)]
    file = io.BytesIO()
    images[0].save(file, "GIF", save_all=True, append_images=images[1:])
    return file.getvalue()


def test_the_shape_of_a_jpeg_file() -> None:
    assert tf.image.extract_jpeg_shape(JPEG).tolist() == [24, 26, 3]
    assert tf.io.extract_jpeg_shape(tf.io.encode_jpeg(PIXELS[..., :1])).tolist() == [24, 26, 1]
    assert tf.io.extract_jpeg_shape(JPEG).dtype == tf.int32


def test_a_crop_is_a_part_of_the_decoded_image() -> None:
    whole = tf.io.decode_jpeg(JPEG)
    np.testing.assert_array_equal(tf.image.decode_and_crop_jpeg(JPEG, [2, 3, 5, 6]), whole[2:7, 3:9])
    np.testing.assert_array_equal(tf.io.decode_and_crop_jpeg(JPEG, tf.constant([0, 0, 24, 26])), whole)
    assert tf.io.decode_and_crop_jpeg(JPEG, [2, 3, 5, 6], channels=1).shape == (5, 6, 1)
    assert tf.io.decode_and_crop_jpeg(JPEG, [1, 1, 5, 6], ratio=2).shape == (5, 6, 3)


@pytest.mark.parametrize("window", [[2, 3, 50, 6], [-1, 0, 2, 2], [0, 0, 0, 2], [20, 20, 5, 5]])
def test_a_crop_must_be_within_the_image(window: list[int]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="within the image"):
        tf.io.decode_and_crop_jpeg(JPEG, window)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: tf.io.extract_jpeg_shape(PNG), "JPEG"),
        (lambda: tf.io.decode_and_crop_jpeg(PNG, [0, 0, 1, 1]), "JPEG"),
        (lambda: tf.io.decode_gif(PNG), "GIF"),
    ],
)
def test_files_of_other_formats_are_refused(call: Any, kind: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"is a PNG image(.|\\n)*must be a {kind} file"):
        call()


@pytest.mark.parametrize("frames", [1, 2])
def test_all_frames_of_a_gif_file(frames: int) -> None:
    decoded = tf.io.decode_gif(gif(frames))
    assert (decoded.shape, decoded.dtype) == ((frames, 4, 5, 3), tf.uint8)
    assert np.asarray(decoded[:, 0, 0, 0]).tolist() == [0, 40][:frames]


def test_the_first_bytes_tell_a_jpeg_file() -> None:
    assert [bool(tf.io.is_jpeg(one)) for one in (JPEG, PNG, b"", b"\xff\xd8\xff")] == [True, False, False, True]


def test_gray_pixels_of_a_color_file_are_those_of_libpng() -> None:
    rgb = [[[172, 47, 117], [192, 67, 251], [195, 103, 9]], [[211, 21, 242], [36, 87, 70], [216, 88, 140]]]
    gray = tf.io.decode_png(tf.io.encode_png(np.array(rgb, np.uint8)), channels=1)
    assert np.ravel(gray).tolist() == [92, 125, 119, 103, 69, 132]
    rgba = np.array([[[55, 72, 178, 47], [56, 102, 123, 84], [24, 220, 174, 239]]], np.uint8)
    assert np.ravel(tf.io.decode_image(tf.io.encode_png(rgba), channels=1)).tolist() == [79, 90, 156]


def test_gray_and_alpha() -> None:
    pixels = np.array([[[106, 142], [149, 89], [212, 183]]], np.uint8)
    packed = tf.io.encode_png(pixels)
    np.testing.assert_array_equal(tf.io.decode_png(packed), pixels)
    assert tf.io.decode_png(packed, channels=1)[0].tolist() == [[106], [149], [212]]
    assert tf.io.decode_png(packed, channels=4)[0, 0].tolist() == [106, 106, 106, 142]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_files_of_16_bits(channels: int) -> None:
    pixels = np.random.default_rng(channels).integers(0, 65536, (5, 7, channels), np.uint16)
    packed = tf.io.encode_png(pixels, compression=3)
    np.testing.assert_array_equal(tf.io.decode_png(packed, channels=channels % 2 and channels), pixels >> 8)
    if channels == 1:
        np.testing.assert_array_equal(tf.io.decode_png(packed, dtype=tf.uint16), pixels)


def test_the_transform_of_the_jpeg_decoder(caplog: pytest.LogCaptureFixture) -> None:
    files._log_exact_dct.cache_clear()
    with caplog.at_level(logging.INFO, "mirrored"):
        exact = tf.io.decode_jpeg(JPEG, dct_method="INTEGER_ACCURATE")
        assert not caplog.records
        np.testing.assert_array_equal(tf.io.decode_jpeg(JPEG, dct_method="INTEGER_FAST"), exact)
        assert "INTEGER_ACCURATE" in caplog.text
    with pytest.raises(tf.errors.InvalidArgumentError, match="dct_method='FLOAT'"):
        tf.io.decode_jpeg(JPEG, dct_method="FLOAT")


def test_base64_for_urls() -> None:
    assert tf.io.encode_base64(b"\xff\xfe\xfda").numpy() == b"__79YQ"
    assert tf.io.encode_base64([b"a?>~~", b""], pad=True).tolist() == [b"YT8-fn4=", b""]
    assert tf.io.decode_base64("__79YQ").numpy() == b"\xff\xfe\xfda"
    assert tf.io.decode_base64([b"YT8-fn4=", ""]).tolist() == [b"a?>~~", b""]


@pytest.mark.parametrize("text", [b"a b", b"YT8-fn4==", b"+/", b"A", b"AAAAA"])
def test_other_texts_are_not_base64(text: bytes) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="tf.io.decode_base64"):
        tf.io.decode_base64(text)


def test_the_diagonal_of_a_tensor() -> None:
    assert tf.linalg.tensor_diag_part(np.arange(36).reshape(2, 3, 2, 3)).tolist() == [[0, 7, 14], [21, 28, 35]]
    for shape in ([2, 3], [2], [2, 2, 2]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank must be even"):
            tf.linalg.tensor_diag_part(tf.zeros(shape))
