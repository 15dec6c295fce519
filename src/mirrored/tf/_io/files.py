"""`tf.io`: whole files, TFRecord files, CSV lines and images, on the host."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from mirrored.data.pipeline import csv
from mirrored.data.pipeline.files import TFRecordWriter as _Writer
from mirrored.errors import MirroredError
from mirrored.extras import load
from mirrored.tf import _dtypes
from mirrored.tf._data.host_arrays import as_bytes_array, on_host
from mirrored.tf._errors import InvalidArgumentError, NotFoundError
from mirrored.tf._tensors import as_tensor


def read_file(filename: Any, name: str | None = None) -> Any:
    """Reads the contents of a file as bytes.

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


def write_file(filename: Any, contents: Any, name: str | None = None) -> None:
    """Writes bytes to a file; replaces an existing file and creates its folder."""
    del name
    path = Path(_path(filename))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_text(contents))


def _path(filename: Any) -> str:
    return os.fsdecode(filename if isinstance(filename, os.PathLike) else _text(filename))


def _text(value: Any) -> bytes:
    return bytes(as_bytes_array(value)[()])


class TFRecordOptions:
    """Options for writing a TFRecord file.

    Args:
        compression_type: "", "GZIP" or "ZLIB".
        **_: TensorFlow's compression settings; ignored, the defaults apply.
    """

    def __init__(self, compression_type: str | None = None, **_: Any) -> None:
        self.compression_type = compression_type or ""


class TFRecordWriter(_Writer):
    """Writes records (bytes) to a file; see `mirrored.data.pipeline.files.TFRecordWriter`.

    Args:
        path: The file; an existing one is replaced.
        options: "GZIP", "ZLIB" or a `TFRecordOptions`.

    TensorFlow: `tf.io.TFRecordWriter`.
    """

    def __init__(self, path: Any, options: str | TFRecordOptions | None = None) -> None:
        packing = options.compression_type if isinstance(options, TFRecordOptions) else options
        super().__init__(_path(path), packing)


def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
    name: str | None = None,
) -> list[Any]:
    """Converts lines of comma-separated values to one array per column.

    Args:
        records: One line or an array of lines.
        record_defaults: A default for every column; an empty array of a dtype makes the column required.
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
    form = csv.Format(field_delim, use_quote_delim, na_value, fields, count)
    try:
        columns = csv.columns_of(
            list(lines.ravel()), form, [csv.Column.of(_default(given)) for given in record_defaults]
        )
    except MirroredError as error:
        raise InvalidArgumentError.of(
            "tf.io.decode_csv", found=error.found, rule=error.rule, remedy=error.remedy
        ) from error
    return [on_host(column.reshape(lines.shape)[()]) for column in columns]


def _default(given: Any) -> Any:
    """Returns the default value; TensorFlow's older form is a list of at most one value."""
    return given if isinstance(given, str | bytes | int | float | _dtypes.DType) else np.asarray(given)


# channels -> Pillow's image mode
_LAYOUTS: Final = {1: "L", 3: "RGB", 4: "RGBA"}


def decode_image(
    contents: Any, channels: int | None = None, dtype: Any = _dtypes.uint8, name: str | None = None,
    expand_animations: bool = True,
) -> Any:  # fmt: skip
    """Decodes a JPEG, PNG, BMP or GIF file to pixels.

    Context: any; on the host, so not inside tf.function.

    Args:
        contents: The file's bytes.
        channels: 1, 3 or 4; None or 0 keeps the number of channels in the image.
        dtype: uint8, or a floating type for pixels in [0, 1].
        name: Accepted and ignored.
        expand_animations: Whether a GIF returns all its frames, ``[frames, height, width, 3]``.

    Returns:
        ``[height, width, channels]``.

    Raises:
        InvalidArgumentError: The bytes are not such an image.
        MissingExtraError: Pillow is not installed.

    TensorFlow: `tf.io.decode_image`. The pixels of a JPEG differ by 1 or 2 from TensorFlow's, whose decoder trades
    exactness for speed.
    """
    del name
    image = _opened(contents, "tf.io.decode_image")
    if image.format == "GIF" and expand_animations:
        frames = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            frames.append(_pixels(image, 3))
        return _in_dtype(np.stack(frames), dtype)
    return _in_dtype(_pixels(image, channels), dtype)


def _decoder(name: str, formats: tuple[str, ...]) -> Any:
    def decode(contents: Any, channels: int = 0, dtype: Any = _dtypes.uint8, **_: Any) -> Any:
        image = _opened(contents, f"tf.io.{name}")
        if image.format not in formats:
            raise _no_picture(f"tf.io.{name}", f"a {image.format} image")
        return _in_dtype(_pixels(image, channels), dtype)

    decode.__name__ = decode.__qualname__ = name
    decode.__doc__ = f"Decodes a {' or '.join(formats)} file to ``[height, width, channels]``: see `decode_image`."
    return decode


def _opened(contents: Any, called: str) -> Any:
    images = load("PIL.Image", called=called, extra="image", package="pillow")
    try:
        image = images.open(io.BytesIO(_text(contents)))
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise _no_picture(called, f"bytes that cannot be read: {error}") from error
    return image


def _no_picture(called: str, found: str) -> InvalidArgumentError:
    return InvalidArgumentError.of(
        called,
        found=found,
        rule="contents is a complete JPEG, PNG, BMP or GIF file",
        remedy="read the file with tf.io.read_file; tf.io.decode_image accepts all four formats",
    )


def _pixels(image: Any, channels: int | None) -> np.ndarray[Any, Any]:
    wanted = channels or {"L": 1, "1": 1, "I;16": 1, "LA": 4, "RGBA": 4}.get(image.mode, 3)
    if wanted not in _LAYOUTS:
        raise ValueError(f"channels must be 0, 1, 3 or 4, not {channels}")
    pixels = np.asarray(image if image.mode == _LAYOUTS[wanted] else image.convert(_LAYOUTS[wanted]))
    return pixels.reshape(*pixels.shape[:2], wanted)


def _in_dtype(pixels: np.ndarray[Any, Any], dtype: Any) -> Any:
    wanted = _dtypes.as_dtype(dtype)
    if wanted.is_floating:
        return jnp.asarray((pixels / 255).astype(_dtypes.array_dtype(wanted)))
    if wanted == _dtypes.uint16:
        return jnp.asarray(pixels.astype(np.uint16) * 257)
    return jnp.asarray(pixels)


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Any:
    """Encodes pixels ``uint8[height, width, channels]`` as a PNG file.

    TensorFlow: `tf.io.encode_png`.
    """
    del compression, name
    return _encoded(image, "PNG", "tf.io.encode_png")


def encode_jpeg(image: Any, format: str = "", quality: int = 95, **_: Any) -> Any:
    """Encodes pixels ``uint8[height, width, channels]`` as a JPEG file.

    TensorFlow: `tf.io.encode_jpeg`.
    """
    del format
    return _encoded(image, "JPEG", "tf.io.encode_jpeg", quality=quality)


def _encoded(image: Any, kind: str, called: str, **settings: Any) -> Any:
    images = load("PIL.Image", called=called, extra="image", package="pillow")
    pixels = np.asarray(as_tensor(image))
    if pixels.ndim != 3 or pixels.shape[-1] not in _LAYOUTS or pixels.dtype != np.uint8:
        raise InvalidArgumentError.of(
            called,
            found=f"an image {pixels.dtype}{list(pixels.shape)}",
            rule="an image is uint8[height, width, channels] with 1, 3 or 4 channels",
            remedy="use tf.image.convert_image_dtype(image, tf.uint8), one image at a time",
        )
    file = io.BytesIO()
    images.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, kind, **settings)
    return on_host(file.getvalue())


_DECODERS: Final = {
    "decode_bmp": _decoder("decode_bmp", ("BMP",)),
    "decode_jpeg": _decoder("decode_jpeg", ("JPEG", "MPO", "PNG", "BMP", "GIF")),
    "decode_png": _decoder("decode_png", ("PNG", "JPEG", "MPO", "BMP", "GIF")),
    "decode_image": decode_image,
    "encode_jpeg": encode_jpeg,
    "encode_png": encode_png,
}
_OTHERS: Final = (TFRecordOptions, TFRecordWriter, decode_csv, read_file, write_file)

NAMES: Final[dict[str, Any]] = {
    **{f"io.{one.__name__}": one for one in _OTHERS},
    **{f"{place}.{name}": one for name, one in _DECODERS.items() for place in ("io", "image")},
}
