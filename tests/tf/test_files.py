from __future__ import annotations

import inspect
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import mirrored.tf as tf
from mirrored.tf._errors import InvalidArgumentError


def test_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    tf.io.write_file(str(path), "some text")
    assert tf.io.read_file(path).numpy() == b"some text"
    assert tf.io.read_file(str(path).encode()) == b"some text"
    with pytest.raises(tf.errors.NotFoundError, match="No such file"):
        tf.io.read_file(str(tmp_path / "none"))


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)


def test_pictures_keep_their_pixels() -> None:
    packed = tf.io.encode_png(PIXELS)
    image = tf.io.decode_png(packed)
    assert isinstance(image, jax.Array)
    assert image.dtype == tf.uint8
    assert np.array_equal(image, PIXELS)
    assert np.array_equal(tf.image.decode_image(packed), PIXELS)
    assert np.allclose(tf.io.decode_image(packed, dtype=tf.float32), PIXELS / 255)
    assert tf.io.decode_png(packed, channels=1).shape == (4, 5, 1)
    assert tf.io.decode_png(packed, channels=4).shape == (4, 5, 4)
    assert tf.io.decode_png(tf.io.encode_png(PIXELS[..., :1])).shape == (4, 5, 1)


def test_jpeg_is_close() -> None:
    smooth = np.stack(np.meshgrid(np.arange(0, 160, 5), np.arange(0, 160, 5), [80]), -1)[:, :, 0].astype(np.uint8)
    image = tf.io.decode_jpeg(tf.io.encode_jpeg(smooth, quality=95), channels=3)
    assert np.abs(np.asarray(image, int) - smooth).max() < 10


NOISE = np.random.default_rng(1).integers(0, 256, (37, 50, 3), np.uint8)


@pytest.mark.parametrize(("ratio", "shape"), [(1, (37, 50, 3)), (2, (19, 25, 3)), (4, (10, 13, 3)), (8, (5, 7, 3))])
def test_a_jpeg_is_made_smaller_by_its_decoder(ratio: int, shape: tuple[int, ...]) -> None:
    image = tf.io.decode_jpeg(tf.io.encode_jpeg(np.full_like(NOISE, 77)), ratio=ratio)
    assert image.shape == shape
    assert np.abs(np.asarray(image, int) - 77).max() < 3
    assert tf.io.decode_jpeg(tf.io.encode_jpeg(NOISE), channels=1, ratio=ratio).shape == (*shape[:2], 1)


@pytest.mark.parametrize("side", [8, 9, 15, 16, 17, 23])
@pytest.mark.parametrize("ratio", [2, 4, 8])
def test_the_size_is_rounded_up(ratio: int, side: int) -> None:
    packed = tf.io.encode_jpeg(np.zeros((side, 40, 3), np.uint8))
    assert tf.io.decode_jpeg(packed, ratio=ratio).shape == (-(-side // ratio), 40 // ratio, 3)


def test_the_settings_of_encoders_have_effects() -> None:
    sizes = [len(tf.io.encode_png(PIXELS.repeat(8, 0), compression=level).numpy()) for level in (0, -1, 9)]
    assert sizes[0] > sizes[1] >= sizes[2]
    normal = tf.io.encode_jpeg(NOISE).numpy()
    assert len(tf.io.encode_jpeg(NOISE, chroma_downsampling=False).numpy()) > len(normal)
    assert len(tf.io.encode_jpeg(NOISE, optimize_size=True).numpy()) < len(normal)
    assert b"\xff\xc2" in tf.io.encode_jpeg(NOISE, progressive=True).numpy()  # the marker of a progressive frame
    assert b"\xff\xc2" not in normal
    assert tf.io.encode_jpeg(NOISE, format="rgb").numpy() == normal
    assert tf.io.decode_jpeg(tf.io.encode_jpeg(NOISE[..., :1], format="grayscale")).shape == (37, 50, 1)


def test_pictures_in_a_dataset(tmp_path: Path) -> None:
    for k in range(3):
        tf.io.write_file(tmp_path / f"{k}.png", tf.io.encode_png(PIXELS // (k + 1)))
    files = tf.data.Dataset.list_files(str(tmp_path / "*.png"), shuffle=False)
    images = files.map(lambda path: tf.io.decode_png(tf.io.read_file(path), channels=3), num_parallel_calls=2).batch(3)
    assert np.array_equal(next(iter(images)), [PIXELS // (k + 1) for k in range(3)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tf.io.decode_jpeg(tf.io.encode_jpeg(PIXELS), ratio=3), "ratio=3 for a JPEG image of 4 x 5 pixels"),
        (lambda: tf.io.decode_jpeg(tf.io.encode_jpeg(PIXELS), ratio=8), "a JPEG image with at least that many pixels"),
        (lambda: tf.io.decode_jpeg(tf.io.encode_png(PIXELS), ratio=2), "ratio=2 for a PNG image"),
        (lambda: tf.io.encode_png(PIXELS, compression=10), "compression=10"),
        (lambda: tf.io.encode_jpeg(PIXELS, format="grayscale"), "format='grayscale' for an image with 3 channels"),
        (lambda: tf.io.encode_jpeg(PIXELS[..., :1], format="rgb"), "format='rgb' for an image with 1 channel"),
        (lambda: tf.io.encode_jpeg(PIXELS, format="cmyk"), "format='cmyk'"),
        (lambda: tf.io.encode_jpeg(PIXELS.repeat(2, -1)[..., :4]), "JPEG has no transparency"),
        (lambda: tf.io.decode_image(b"no picture"), "cannot be read as an image"),
        (lambda: tf.io.decode_bmp(tf.io.encode_png(PIXELS)), "is a PNG image(.|\n)*must be in the format BMP"),
        (lambda: tf.io.encode_png(PIXELS.astype(np.float32)), r"an image must be uint8\[height, width, channels\]"),
        (lambda: tf.io.encode_png(PIXELS[..., 0]), r"the image is uint8\[4, 5\]"),
    ],
)
def test_what_is_no_picture(call: Any, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "known"),
    [
        (tf.io.decode_bmp, {"channels": 3, "name": "a"}),
        (tf.io.decode_jpeg, {"ratio": 1, "fancy_upscaling": False, "dct_method": "INTEGER_FAST"}),
        (tf.io.decode_png, {"channels": 3, "dtype": tf.uint8}),
        (tf.io.encode_jpeg, {"quality": 90, "progressive": True, "chroma_downsampling": False}),
        (tf.io.TFRecordOptions, {"compression_type": "GZIP", "compression_level": 9}),
        (tf.data.experimental.parallel_interleave, {"cycle_length": 2, "sloppy": True}),
        (tf.autograph.experimental.set_loop_options, {"parallel_iterations": 1}),
        (tf.autograph.set_verbosity, {"level": 1, "alsologtostdout": True}),
    ],
)
def test_a_misspelt_argument_is_refused(call: Any, known: dict[str, Any]) -> None:
    inspect.signature(call).bind_partial(**known)
    with pytest.raises(TypeError, match="unexpected keyword argument 'channelz'"):
        call(**known, channelz=3)


# What TensorFlow 2.21 gives for these calls.
def test_lines_of_tables() -> None:
    columns = tf.io.decode_csv(['1,2.5,"a,b"', "3,,c"], [0, -1.0, ""])
    assert [column.numpy().tolist() for column in columns] == [[1, 3], [2.5, -1.0], [b"a,b", b"c"]]
    one = tf.io.decode_csv("1,2.5,x", [0, -1.0, ""])
    assert [value.numpy() for value in one] == [1, 2.5, b"x"]
    assert tf.io.decode_csv(",x", [b"a\0", tf.constant("12")])[0] == b"a\0"
    assert tf.io.decode_csv("x,", [b"a\0", tf.constant("12")])[1] == b"12"
    assert tf.io.decode_csv("NA,2.5", [7, -1.0], na_value="NA")[0] == 7
    assert tf.io.decode_csv("1,2.5,9", [7], select_cols=[2])[0] == 9
    for line, message in (("1,2.5", "2 fields instead of 3"), ("1,x,y", "not a valid float32")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            tf.io.decode_csv(line, [0, -1.0, ""])
    with pytest.raises(tf.errors.InvalidArgumentError, match="is empty, and the column has no default"):
        tf.io.decode_csv(",2.5", [tf.constant([], tf.int32), -1.0])


@pytest.mark.parametrize("default", [tf.int64, np.array([], np.int64), np.array([0], np.int64)])
def test_large_numbers_of_tables_need_int64(default: Any) -> None:
    assert tf.io.decode_csv("5000000000", [default])[0] == 5_000_000_000


@pytest.mark.parametrize("default", [0, [0], (0,), tf.int32, np.array([], np.int32)])
def test_large_numbers_of_tables_are_refused_for_int32(default: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a valid int32"):
        tf.io.decode_csv("5000000000", [default])


@pytest.mark.parametrize("default", [5_000_000_000, [5_000_000_000], [-3_000_000_000]])
def test_a_csv_default_that_does_not_fit_into_32_bits_makes_the_column_int64(default: Any) -> None:
    (empty,) = tf.io.decode_csv(["NA"], [default], na_value="NA")
    assert empty.dtype == np.int64
    assert empty[0] == np.ravel(default)[0]
    assert tf.io.decode_csv("6000000000", [default])[0] == 6_000_000_000


def test_tables_under_the_names_of_tensorflow(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3,4\n")
    rows = tf.data.experimental.CsvDataset(str(path), [tf.float32, tf.constant([0])], header=True)
    assert [(a.numpy(), b.numpy()) for a, b in rows] == [(1.0, 2), (3.0, 4)]
    batches = tf.data.experimental.make_csv_dataset(str(path), 2, label_name="b", num_epochs=1, shuffle=False)
    features, label = next(iter(batches))
    assert features["a"].numpy().tolist() == [1, 3]
    assert label.numpy().tolist() == [2, 4]


def test_the_type_of_texts() -> None:
    assert tf.string.name == "string"
    assert tf.as_dtype("string") is tf.as_dtype(object) is tf.as_dtype(np.dtype("S3")) is tf.string
    assert (tf.string.as_datatype_enum, str(tf.string)) == (7, "<dtype: 'string'>")
    assert tf.constant("text", tf.string).numpy() == b"text"
    with pytest.raises(TypeError, match="strings and objects stay on the host"):
        tf.identity("text")
    with pytest.raises(TypeError, match="strings stay on the host"):
        tf.zeros([2], tf.string)
    dataset = tf.data.Dataset.from_generator(lambda: iter(["a", "b"]), output_signature=tf.TensorSpec((), tf.string))
    assert [text.numpy() for text in dataset] == [b"a", b"b"]
    assert next(iter(dataset.batch(2))).numpy().tolist() == [b"a", b"b"]


DEPTHS = np.array([[0, 255, 256, 12345], [65535, 40000, 300, 511]], np.uint16)


def packed(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("decode", [tf.io.decode_png, tf.io.decode_image])
def test_gray_pictures_of_16_bits(decode: Any) -> None:
    data = packed(DEPTHS)
    assert decode(data, dtype=tf.uint16)[..., 0].tolist() == DEPTHS.tolist()
    assert decode(data)[..., 0].tolist() == (DEPTHS // 256).tolist()
    np.testing.assert_allclose(decode(data, dtype=tf.float32)[..., 0], DEPTHS / 65535, rtol=1e-6)
    coloured = np.asarray(decode(data, channels=4, dtype=tf.uint16))
    assert coloured.shape == (2, 4, 4)
    assert (coloured[..., :3] == DEPTHS[..., None]).all()
    assert (coloured[..., 3] == 65535).all()


def test_colours_of_16_bits_are_decoded_to_8_bits_only() -> None:
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        (b"IDAT", zlib.compress(b"\0" + struct.pack(">HHH", 0x1234, 0xFF00, 0x00FF))),
        (b"IEND", b""),
    ]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    assert tf.io.decode_png(data).tolist() == [[[0x12, 0xFF, 0x00]]]
    with pytest.raises(InvalidArgumentError, match=r"dtype=tf.uint16 for a PNG image of several channels with 16 bits"):
        tf.io.decode_png(data, dtype=tf.uint16)


def test_the_channels_of_a_png_file() -> None:
    gray = np.full((2, 3, 2), 100, np.uint8)
    assert tf.io.decode_png(packed(gray)).shape == (2, 3, 2)
    palette = Image.fromarray(np.full((2, 3, 3), 100, np.uint8)).quantize(4)
    shapes = []
    for options in ({}, {"transparency": 0}):
        file = io.BytesIO()
        palette.save(file, "PNG", **options)
        shapes.append(tf.io.decode_png(file.getvalue()).shape)
    assert shapes == [(2, 3, 3), (2, 3, 4)]


def test_a_dtype_that_no_picture_has() -> None:
    with pytest.raises(InvalidArgumentError, match=r"dtype=tf.int32\n"):
        tf.io.decode_image(tf.io.encode_png(PIXELS), dtype=tf.int32)


def animation(frames: int) -> bytes:
    pictures = [Image.fromarray(np.full((4, 5, 3), 40 * number, np.uint8)) for number in range(frames)]
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:])
    return file.getvalue()


def test_options_of_gif_files() -> None:
    frames = tf.io.decode_image(animation(3), channels=3, dtype=tf.uint16)
    assert (frames.shape, frames.dtype) == ((3, 4, 5, 3), np.uint16)
    assert tf.io.decode_image(animation(3), expand_animations=False).shape == (4, 5, 3)
    for channels in (1, 4):
        with pytest.raises(InvalidArgumentError, match=rf"channels={channels} for a GIF image"):
            tf.io.decode_image(animation(3), channels=channels)
    for expand in (True, False):
        with pytest.raises(InvalidArgumentError, match=r"dtype=tf\.int32"):
            tf.io.decode_image(animation(3), dtype=tf.int32, expand_animations=expand)


@pytest.mark.parametrize("decode", [tf.io.decode_jpeg, tf.io.decode_png, tf.io.decode_bmp])
def test_other_decoders_refuse_animations(decode: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="GIF image( with 3 frames)?\n"):
        decode(animation(3))
    if decode is not tf.io.decode_bmp:
        assert decode(animation(1)).shape == (4, 5, 3)
