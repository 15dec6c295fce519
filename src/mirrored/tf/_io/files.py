"""`tf.io` on the host: reads and writes files, TFRecord files and images, and parses CSV lines."""

from __future__ import annotations

import functools
import io
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from mirrored._typing import DTypeLike, Operand
from mirrored.data.pipeline import csv
from mirrored.data.pipeline.files import TFRecordWriter as _Writer
from mirrored.errors import MirroredError
from mirrored.extras import load
from mirrored.tf import _dtypes
from mirrored.tf._data.host_arrays import Texts, as_bytes_array, on_host
from mirrored.tf._errors import InvalidArgumentError, NotFoundError
from mirrored.tf._io.pixels import in_dtype, in_mode, pixels_of, png_of_16_bits, require_dtype
from mirrored.tf._tensors import as_tensor

_log = logging.getLogger("mirrored")

FileName: TypeAlias = str | bytes | os.PathLike[str] | np.ndarray[Any, Any]
"""The path of a file; also as an element of a dataset, a string on the host."""


def read_file(filename: FileName, name: str | None = None) -> Any:
    """Returns the whole contents of a file as bytes.

    Context: any; on the host, so not inside tf.function.

    Raises:
        NotFoundError: The file does not exist.

    TensorFlow: `tf.io.read_file`; bytes with `numpy()`, not a tensor.
    """
    del name
    try:
        return on_host(Path(_path(filename)).read_bytes())
    except FileNotFoundError as error:
        raise NotFoundError(None, None, f"{_path(filename)}; No such file or directory") from error


def write_file(filename: FileName, contents: Texts, name: str | None = None) -> None:
    """Writes bytes to a file; replaces an existing file and creates missing folders."""
    del name
    path = Path(_path(filename))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_text(contents))


def _path(filename: FileName) -> str:
    return os.fsdecode(filename if isinstance(filename, os.PathLike) else _text(filename))


def _text(value: Texts) -> bytes:
    return bytes(as_bytes_array(value)[()])


class TFRecordOptions:
    """Options for writing a TFRecord file; only `compression_type` has an effect.

    Args:
        compression_type: "", "GZIP" or "ZLIB".
        flush_mode: Ignored like all further arguments: the compression settings are the defaults.
        input_buffer_size: Ignored.
        output_buffer_size: Ignored.
        window_bits: Ignored.
        compression_level: Ignored.
        compression_method: Ignored.
        mem_level: Ignored.
        compression_strategy: Ignored.
    """

    def __init__(
        self,
        compression_type: str | None = None,
        flush_mode: int | None = None,
        input_buffer_size: int | None = None,
        output_buffer_size: int | None = None,
        window_bits: int | None = None,
        compression_level: int | None = None,
        compression_method: int | None = None,
        mem_level: int | None = None,
        compression_strategy: int | None = None,
    ) -> None:
        del flush_mode, input_buffer_size, output_buffer_size, window_bits
        del compression_level, compression_method, mem_level, compression_strategy
        self.compression_type = compression_type or ""


class TFRecordWriter(_Writer):
    """A writer of TFRecord files, which consist of records of bytes.

    See `mirrored.data.pipeline.files.TFRecordWriter`.

    Args:
        path: The file; an existing one is replaced.
        options: "GZIP", "ZLIB" or a `TFRecordOptions`.

    TensorFlow: `tf.io.TFRecordWriter`.
    """

    def __init__(self, path: FileName, options: str | TFRecordOptions | None = None) -> None:
        packing = options.compression_type if isinstance(options, TFRecordOptions) else options
        super().__init__(_path(path), packing)


def decode_csv(
    records: Texts,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
    name: str | None = None,
) -> list[Any]:
    """Parses lines of comma-separated values into one array per column.

    Args:
        records: One line or an array of lines.
        record_defaults: A default for every column; an empty array of a dtype makes the column required. Integers and
            lists of them are int32, or int64 if they do not fit, as in TensorFlow. For int64 pass ``tf.int64`` or a
            NumPy array: without ``jax_enable_x64`` a tensor is int32.
        field_delim: The field delimiter.
        use_quote_delim: Whether double quotes may enclose fields.
        na_value: The string that means a missing value, in addition to an empty field.
        select_cols: The indices of the columns to read.
        name: Accepted and ignored.

    Raises:
        InvalidArgumentError: A line or a value cannot be parsed.

    TensorFlow: `tf.io.decode_csv`.
    """
    del name
    lines = as_bytes_array(records)
    count = None if select_cols is not None else len(record_defaults)
    fields = None if select_cols is None else tuple(int(place) for place in select_cols)
    try:
        form = csv.Format(field_delim, use_quote_delim, na_value, fields, count)
        columns = csv.columns_of(
            list(lines.ravel()), form, [csv.Column.of(_converted_default(given)) for given in record_defaults]
        )
    except MirroredError as error:
        raise InvalidArgumentError.of(
            "tf.io.decode_csv", found=error.found, rule=error.rule, remedy=error.remedy
        ) from error
    return [on_host(column.reshape(lines.shape)[()]) for column in columns]


def _converted_default(given: object) -> Any:
    """Returns the default value of a CSV column, with tensors converted to NumPy arrays."""
    kept = isinstance(given, str | bytes | int | float | list | tuple | _dtypes.DType)
    return given if kept else np.asarray(given)


def decode_image(
    contents: Texts, channels: int | None = None, dtype: DTypeLike = _dtypes.uint8, name: str | None = None,
    expand_animations: bool = True,
) -> Any:  # fmt: skip
    """Decodes the bytes of a JPEG, PNG, BMP or GIF image to an array of pixels.

    Context: any; on the host, so not inside tf.function.

    Args:
        contents: The file's bytes.
        channels: 1, 3 or 4; None or 0 keeps the number of channels in the image.
        dtype: uint8, uint16, or a floating type for pixels in [0, 1].
        name: Accepted and ignored.
        expand_animations: Whether a GIF returns all its frames, ``[frames, height, width, 3]``; otherwise the first.

    Returns:
        ``[height, width, channels]``.

    Raises:
        InvalidArgumentError: The bytes are not such an image.
        MissingExtraError: Pillow is not installed.

    TensorFlow: `tf.io.decode_image`. The pixels of a JPEG differ by 1 or 2 from TensorFlow's, whose decoder trades
    exactness for speed.
    """
    del name
    image = opened(contents, "tf.io.decode_image")
    if image.format == "GIF" and channels not in (None, 0, 3):
        raise InvalidArgumentError.of(
            "tf.io.decode_image",
            found=f"channels={channels!r} for a GIF image",
            rule="the frames of a GIF have 3 channels: `channels` must be 0, 3 or None",
            remedy="omit `channels`, and convert the frames with tf.image.rgb_to_grayscale",
        )
    if image.format == "GIF" and expand_animations:
        require_dtype("tf.io.decode_image", dtype)
        frames = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            frames.append(in_mode(image, 3))
        return in_dtype(np.stack(frames), dtype)
    return pixels_of(image, _text(contents), channels, dtype, "tf.io.decode_image")


def decode_bmp(contents: Texts, channels: int = 0, name: str | None = None, *, dtype: DTypeLike = _dtypes.uint8) -> Any:
    """Decodes the bytes of a BMP image to pixels ``[height, width, channels]``, like `decode_image`."""
    del name
    return _decoded("tf.io.decode_bmp", ("BMP",), contents, channels, dtype)


def decode_jpeg(
    contents: Texts,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
    *,
    dtype: DTypeLike = _dtypes.uint8,
) -> Any:
    """Decodes the bytes of a JPEG, PNG, BMP or GIF image to pixels ``[height, width, channels]``.

    MPO files are accepted, too; see `decode_image`.

    Args:
        contents: The file.
        channels: 0 (as in the file), 1, 3 or 4.
        ratio: 1, 2, 4 or 8: the decoder of a JPEG file makes the image smaller by this ratio.
        fancy_upscaling: Ignored, as all further settings of TensorFlow's decoder.
        try_recover_truncated: Ignored.
        acceptable_fraction: Ignored.
        dct_method: The pixels are always those of "INTEGER_ACCURATE"; "INTEGER_FAST", TensorFlow's default, is logged.
        name: Ignored.
        dtype: uint8, uint16 or a float dtype.

    Raises:
        InvalidArgumentError: The contents are not such a file; `dct_method` is another word; or `ratio` is another
            number, is not 1 for a file other than JPEG, or is larger than the image.
    """
    del fancy_upscaling, try_recover_truncated, acceptable_fraction, name
    _check_dct(dct_method)
    formats = ("JPEG", "MPO", "PNG", "BMP", "GIF")
    return _decoded("tf.io.decode_jpeg", formats, contents, channels, dtype, ratio)


def _check_dct(method: str) -> None:
    if method == "INTEGER_FAST":
        _log_exact_dct()
    elif method not in ("", "INTEGER_ACCURATE"):
        raise InvalidArgumentError.of(
            "tf.io.decode_jpeg",
            found=f"dct_method={method!r}",
            rule='dct_method must be "INTEGER_ACCURATE" or "INTEGER_FAST", or "" for the default',
            remedy="omit dct_method",
        )


@functools.cache
def _log_exact_dct() -> None:
    _log.info("tf.io.decode_jpeg: Pillow computes INTEGER_ACCURATE, also for dct_method='INTEGER_FAST'")


def decode_png(contents: Texts, channels: int = 0, dtype: DTypeLike = _dtypes.uint8, name: str | None = None) -> Any:
    """Decodes the bytes of a PNG, JPEG, BMP or GIF image to pixels ``[height, width, channels]``.

    MPO files are accepted, too; see `decode_image`. A gray image of 16 bits keeps them with ``dtype=tf.uint16``.
    """
    del name
    return _decoded("tf.io.decode_png", ("PNG", "JPEG", "MPO", "BMP", "GIF"), contents, channels, dtype)


def _decoded(
    called: str, formats: tuple[str, ...], contents: Texts, channels: int, dtype: DTypeLike, ratio: int = 1
) -> Any:
    image = opened(contents, called, ratio)
    if image.format not in formats:
        raise InvalidArgumentError.of(
            called,
            found=f"`contents` is a {image.format} image",
            rule=f"`contents` must be in the format {' or '.join(formats)}",
            remedy="use tf.io.decode_image, which accepts JPEG, PNG, BMP and GIF files",
        )
    frames = getattr(image, "n_frames", 1) if image.format == "GIF" else 1
    if frames > 1:
        raise InvalidArgumentError.of(
            called,
            found=f"`contents` is a GIF image with {frames} frames",
            rule="a GIF image must have one frame",
            remedy="use tf.io.decode_image, which returns all frames, or the first with expand_animations=False",
        )
    return pixels_of(image, _text(contents), channels, dtype, called)


def opened(contents: Texts, called: str, ratio: int = 1, *, decoded: bool = True) -> Any:
    """Opens the bytes of an image file with Pillow, and decodes the pixels if `decoded` is True.

    Raises:
        InvalidArgumentError: The bytes cannot be read as an image.
    """
    images = load("PIL.Image", called=called, extra="image", package="pillow")
    try:
        image = images.open(io.BytesIO(_text(contents)))
        if ratio != 1:
            _make_smaller(image, ratio, called)
        if decoded:
            image.load()
    except InvalidArgumentError:  # also a ValueError
        raise
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidArgumentError.of(
            called,
            found=f"`contents` cannot be read as an image: {error}",
            rule="`contents` must be a complete JPEG, PNG, BMP or GIF file",
            remedy="pass the result of tf.io.read_file for such a file, unchanged",
        ) from error
    return image


def _make_smaller(image: Any, ratio: int, called: str) -> None:
    """Configures Pillow to decode a JPEG image at ``1 / ratio`` of its size, rounded up."""
    if ratio not in (2, 4, 8) or image.format not in ("JPEG", "MPO") or min(image.size) < ratio:
        raise InvalidArgumentError.of(
            called,
            found=f"ratio={ratio!r} for a {image.format} image of {image.size[1]} x {image.size[0]} pixels",
            rule="ratio must be 1, or 2, 4 or 8 for a JPEG image with at least that many pixels in each dimension",
            remedy="omit ratio, and use tf.image.resize",
        )
    image.draft(None, (image.size[0] // ratio, image.size[1] // ratio))


def encode_png(image: Operand, compression: int = -1, name: str | None = None) -> Any:
    """Encodes pixels, uint8 or uint16 ``[height, width, channels]``, as the bytes of a PNG image.

    Args:
        image: The pixels, with 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGBA) channels.
        compression: The level of compression, from 0 (none) to 9 (the smallest file); -1: the default.
        name: Ignored.

    TensorFlow: `tf.io.encode_png`.
    """
    del name
    if compression not in range(-1, 10):
        raise InvalidArgumentError.of(
            "tf.io.encode_png",
            found=f"compression={compression!r}",
            rule="compression is an integer from -1 (the default) to 9",
            remedy="omit it, or pass one of these levels",
        )
    pixels = np.asarray(as_tensor(image))
    if pixels.dtype == np.uint16 and pixels.ndim == 3 and pixels.shape[-1] in (1, 2, 3, 4):
        return on_host(png_of_16_bits(pixels, int(compression)))
    settings = {} if compression == -1 else {"compress_level": int(compression)}
    return _encoded(image, "PNG", "tf.io.encode_png", **settings)


def encode_jpeg(
    image: Operand,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Any:
    """Encodes pixels, ``uint8[height, width, channels]``, as the bytes of a JPEG image.

    Args:
        image: The pixels.
        format: ``"grayscale"`` for 1 channel, ``"rgb"`` for 3; by default the number of channels decides.
        quality: From 0 to 100.
        progressive: Whether the file shows a coarse image first.
        optimize_size: Whether to make the file smaller, which takes longer.
        chroma_downsampling: Whether colours have half the resolution.
        density_unit: Ignored, as the densities and `xmp_metadata`: they do not change the pixels.
        x_density: Ignored.
        y_density: Ignored.
        xmp_metadata: Ignored.
        name: Ignored.

    Raises:
        InvalidArgumentError: `format` is another word, or the image has another number of channels.
    """
    del density_unit, x_density, y_density, xmp_metadata, name
    called, channels = "tf.io.encode_jpeg", np.shape(image)[-1] if np.ndim(image) == 3 else 0
    if format not in _JPEG_CHANNELS or (channels and channels not in _JPEG_CHANNELS[format]):
        raise InvalidArgumentError.of(
            called,
            found=f"format={format!r} for an image with {channels} channel{'s' * (channels != 1)}",
            rule='format is "grayscale" for 1 channel, "rgb" for 3, or "" for either; JPEG has no transparency',
            remedy="omit format, and convert the image first: tf.image.rgb_to_grayscale(image), or image[..., :3]",
        )
    settings: dict[str, Any] = {} if chroma_downsampling else {"subsampling": 0}
    return _encoded(image, "JPEG", called, quality=quality, progressive=progressive, optimize=optimize_size, **settings)


def _encoded(image: Operand, kind: str, called: str, **settings: int) -> Any:
    images = load("PIL.Image", called=called, extra="image", package="pillow")
    pixels = np.asarray(as_tensor(image))
    if pixels.ndim != 3 or pixels.shape[-1] not in (1, 2, 3, 4) or pixels.dtype != np.uint8:
        raise InvalidArgumentError.of(
            called,
            found=f"the image is {pixels.dtype}{list(pixels.shape)}",
            rule="an image must be uint8[height, width, channels] (PNG: or uint16) with 1, 3 or 4 channels (PNG: or 2)",
            remedy="convert floats with tf.image.convert_image_dtype(image, tf.uint8), and encode one image at a time",
        )
    file = io.BytesIO()
    images.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, kind, **settings)
    return on_host(file.getvalue())


_JPEG_CHANNELS: Final = {"": (1, 3), "grayscale": (1,), "rgb": (3,)}
_DECODERS: Final = {
    "decode_bmp": decode_bmp,
    "decode_jpeg": decode_jpeg,
    "decode_png": decode_png,
    "decode_image": decode_image,
    "encode_jpeg": encode_jpeg,
    "encode_png": encode_png,
}
_OTHERS: Final = (TFRecordOptions, TFRecordWriter, decode_csv, read_file, write_file)

NAMES: Final[dict[str, Any]] = {
    **{f"io.{one.__name__}": one for one in _OTHERS},
    **{f"{place}.{name}": one for name, one in _DECODERS.items() for place in ("io", "image")},
}
