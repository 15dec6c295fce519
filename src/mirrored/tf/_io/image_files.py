"""Functions of `tf.io` and `tf.image` that read the shape of JPEG files, crop JPEG files and decode GIF frames."""

from __future__ import annotations

from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand
from mirrored.tf import _dtypes
from mirrored.tf._data.host_arrays import Texts, as_bytes_array, on_host
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._io.files import decode_image, decode_jpeg, opened
from mirrored.tf._tensors import as_tensor


def is_jpeg(contents: Texts, name: str | None = None) -> Any:
    """Returns whether bytes begin like a JPEG file."""
    del name
    return on_host(np.bool_(bytes(as_bytes_array(contents)[()]).startswith(b"\xff\xd8\xff")))


def extract_jpeg_shape(contents: Texts, output_type: DTypeLike = _dtypes.int32, name: str | None = None) -> Any:
    """Returns the height, width and number of channels of a JPEG file, without decoding its pixels.

    Raises:
        InvalidArgumentError: The bytes are not a JPEG file.
    """
    del name
    image = _jpeg(contents, "tf.io.extract_jpeg_shape")
    shape = [image.height, image.width, len(image.getbands())]
    return jnp.asarray(shape, _dtypes.array_dtype(output_type))


def decode_and_crop_jpeg(
    contents: Texts,
    crop_window: Operand,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Any:
    """Decodes a rectangle of a JPEG file to pixels ``u8[height, width, channels]``.

    Args:
        contents: The file.
        crop_window: The upper left corner and the size, ``[y, x, height, width]``, after the reduction by `ratio`.
        channels: As in `decode_jpeg`, like all further arguments.
        ratio: 1, 2, 4 or 8.
        fancy_upscaling: Ignored.
        try_recover_truncated: Ignored.
        acceptable_fraction: Ignored.
        dct_method: See `decode_jpeg`.
        name: Ignored.

    Raises:
        InvalidArgumentError: The bytes are not a JPEG file, or the rectangle is empty or exceeds the image.
    """
    called = "tf.io.decode_and_crop_jpeg"
    del fancy_upscaling, try_recover_truncated, acceptable_fraction, name
    _jpeg(contents, called)
    image = decode_jpeg(contents, channels, ratio, dct_method=dct_method)
    top, left, height, width = (int(one) for one in np.asarray(as_tensor(crop_window)))
    if min(top, left) < 0 or min(height, width) < 1 or top + height > image.shape[0] or left + width > image.shape[1]:
        raise InvalidArgumentError.of(
            called,
            found=f"crop_window={[top, left, height, width]} for an image of {image.shape[:2]} pixels",
            rule="crop_window is [y, x, height, width] of a rectangle of at least one pixel within the image",
            remedy="take the size of the image from tf.io.extract_jpeg_shape",
        )
    return image[top : top + height, left : left + width]


def _jpeg(contents: Texts, called: str) -> Any:
    image = opened(contents, called, decoded=False)
    if image.format not in ("JPEG", "MPO"):
        raise InvalidArgumentError.of(
            called,
            found=f"`contents` is a {image.format} image",
            rule="`contents` must be a JPEG file",
            remedy="use tf.io.decode_image, which accepts JPEG, PNG, BMP and GIF files, and slice its result",
        )
    return image


def decode_gif(contents: Texts, name: str | None = None) -> Any:
    """Decodes all frames of a GIF file to pixels ``u8[frames, height, width, 3]``.

    Raises:
        InvalidArgumentError: The bytes are not a GIF file.
    """
    del name
    found = opened(contents, "tf.io.decode_gif", decoded=False).format
    if found != "GIF":
        raise InvalidArgumentError.of(
            "tf.io.decode_gif",
            found=f"`contents` is a {found} image",
            rule="`contents` must be a GIF file",
            remedy="use tf.io.decode_image, which accepts JPEG, PNG, BMP and GIF files",
        )
    return decode_image(contents, 3)


_ALL: Final = (decode_and_crop_jpeg, decode_gif, extract_jpeg_shape, is_jpeg)

NAMES: Final[dict[str, Any]] = {f"{place}.{one.__name__}": one for one in _ALL for place in ("io", "image")}
