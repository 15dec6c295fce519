"""Converts Pillow images to arrays of pixels, and encodes PNG images with 16 bits per channel."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, HostArray
from mirrored.tf import _dtypes
from mirrored.tf._errors import InvalidArgumentError

# channels -> Pillow's image mode
_LAYOUTS: Final = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_COLOR_TYPES: Final = {1: 0, 2: 4, 3: 2, 4: 6}  # channels -> PNG's color type
_GRAY: Final = np.array([9797, 19234, 3737])  # libpng's weights of red, green and blue, times 2**15


def pixels_of(image: Any, contents: bytes, channels: int | None, dtype: DTypeLike, called: str) -> Any:
    """Returns the pixels of an image that Pillow has decoded, as an array of the given dtype.

    Args:
        image: The image, decoded by Pillow.
        contents: The file.
        channels: 1, 3 or 4; None or 0 keeps the number of channels in the file.
        dtype: uint8, uint16 or a floating type.
        called: What the user called, for messages.

    Raises:
        InvalidArgumentError: The dtype is another one, or the image has more bits than Pillow decodes.
    """
    wanted = _dtypes.as_dtype(dtype)
    require_dtype(called, dtype)
    is_gray = image.mode.startswith("I")
    if wanted != _dtypes.uint8 and not is_gray and _bits_of_png(contents) == 16:
        raise InvalidArgumentError.of(
            called,
            found=f"dtype={wanted!r} for a PNG image of several channels with 16 bits each",
            rule="Pillow decodes only the upper 8 bits of such images; all 16 are kept for images with one channel",
            remedy="pass dtype=tf.uint8, or read the file with another library (cv2.imread with IMREAD_UNCHANGED) in "
            "Dataset.map",
        )
    if image.mode == "RGBA" and _bits_of_png(contents) == 16 and contents[25] == _COLOR_TYPES[2]:
        image = image.convert("LA")  # Pillow has no gray image of 16 bits with alpha
    return in_dtype(_gray_of_16_bits(image, channels) if is_gray else in_mode(image, channels), dtype)


def require_dtype(called: str, dtype: DTypeLike) -> None:
    """Raises an error unless a dtype is valid for pixels: uint8, uint16 or a floating type."""
    wanted = _dtypes.as_dtype(dtype)
    if wanted.is_floating or wanted in (_dtypes.uint8, _dtypes.uint16):
        return
    raise InvalidArgumentError.of(
        called,
        found=f"dtype={wanted!r}",
        rule="dtype must be tf.uint8, tf.uint16 or a floating type",
        remedy="decode to tf.uint8, and convert with tf.cast",
    )


def _bits_of_png(contents: bytes) -> int | None:
    """Returns the number of bits per channel of a PNG file; None if the file has another format."""
    return contents[24] if contents.startswith(b"\x89PNG\r\n\x1a\n") else None


def _gray_of_16_bits(image: Any, channels: int | None) -> np.ndarray[Any, Any]:
    """Returns the 16-bit pixels of a gray Pillow image; avoids Pillow's own conversion, which clips to 8 bits."""
    pixels = np.asarray(image).astype(np.uint16)[..., None]
    if (channels or 1) == 1:
        return pixels
    opaque = [np.full_like(pixels, np.iinfo(np.uint16).max)] if _checked(channels) == 4 else []
    return np.concatenate([pixels, pixels, pixels, *opaque], -1)


def in_mode(image: Any, channels: int | None) -> np.ndarray[Any, Any]:
    """Converts an 8-bit Pillow image to pixels with `channels` channels; None or 0 keeps the number of channels."""
    own = {"L": 1, "1": 1, "LA": 2, "RGBA": 4}.get(image.mode, 3)
    if image.mode == "P" and image.format == "PNG" and "transparency" in image.info:
        own = 4
    wanted = _checked(channels) if channels else own
    if image.format == "PNG" and (own, wanted) in ((3, 1), (4, 1)):
        gray: HostArray = (np.asarray(image.convert("RGB")) @ _GRAY >> 15).astype(np.uint8)[..., None]
        return gray
    pixels = np.asarray(image if image.mode == _LAYOUTS[wanted] else image.convert(_LAYOUTS[wanted]))
    return pixels.reshape(*pixels.shape[:2], wanted)


def _checked(channels: int | None) -> int:
    if channels not in (1, 3, 4):
        raise ValueError(f"channels must be 0, 1, 3 or 4, not {channels}")
    return channels


def in_dtype(pixels: np.ndarray[Any, Any], dtype: DTypeLike) -> Any:
    """Converts 8-bit or 16-bit pixels to the given dtype; floating-point results range from 0 to 1."""
    wanted, wide = _dtypes.as_dtype(dtype), pixels.dtype == np.uint16
    if wanted.is_floating:
        return jnp.asarray((pixels / np.iinfo(pixels.dtype).max).astype(_dtypes.array_dtype(wanted)))
    if wanted == _dtypes.uint16:
        return jnp.asarray(pixels if wide else pixels.astype(np.uint16) * 257)
    return jnp.asarray((pixels >> 8).astype(np.uint8) if wide else pixels)


def png_of_16_bits(pixels: HostArray, level: int) -> bytes:
    """Encodes ``u16[height, width, channels]`` as a PNG file, because Pillow writes only 8 bits per color channel.

    Args:
        pixels: The image, with 1 to 4 channels.
        level: The level of compression, from 0 to 9; -1: the default.
    """
    height, width, channels = pixels.shape
    rows = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    lines = np.pad(rows, [(0, 0), (1, 0)])  # each line begins with the number of its filter, 0: none
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOR_TYPES[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), level)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
