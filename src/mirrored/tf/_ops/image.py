"""`tf.image`: flips, crops, pads and adjusts the colors of images [..., height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand
from mirrored.tf._dtypes import DType, array_dtype, as_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops import kinks
from mirrored.tf._ops.generator import key_from_seed, next_key
from mirrored.tf._ops.image_checks import (
    require_channels,
    require_floats,
    require_gamma,
    require_images,
    require_range,
    require_shift,
)
from mirrored.tf._ops.image_resizing import resize
from mirrored.tf._ops.math import cast, saturate_cast
from mirrored.tf._table import Int, Ints, op


def _flipped(name: str, axis: int) -> Callable[[jax.Array], jax.Array]:
    def flip(image: jax.Array) -> jax.Array:
        """Flips images along one axis."""
        require_images(f"tf.image.{name}", image)
        return jnp.flip(image, axis)

    return flip


flip_left_right = op("image.flip_left_right")(_flipped("flip_left_right", -2))
flip_up_down = op("image.flip_up_down")(_flipped("flip_up_down", -3))


@op("image.transpose")
def transpose(image: jax.Array) -> jax.Array:
    """Swaps the height and width of images."""
    return jnp.swapaxes(image, -3, -2)


@op("image.rot90")
def rot90(image: jax.Array, k: Int = 1) -> jax.Array:
    """Rotates images counter-clockwise by `k` times 90 degrees."""
    return jnp.rot90(image, k, axes=(-3, -2))


@op("image.convert_image_dtype")
def convert_image_dtype(image: jax.Array, dtype: DTypeLike, saturate: bool = False) -> jax.Array:
    """Converts images to another dtype, and scales pixels such that integers 0..max correspond to floats 0..1."""
    source, wanted = as_dtype(image.dtype), as_dtype(dtype)
    if source == wanted:
        return image
    if source.is_integer and wanted.is_integer:
        return _between_integers(image, source.max, wanted, saturate)
    if source.is_integer:
        return image.astype(array_dtype(wanted)) * (1.0 / float(source.max))
    if not wanted.is_integer:
        return image.astype(array_dtype(wanted))
    scaled = image * (float(wanted.max) + 0.5)
    return (jnp.clip(scaled, float(wanted.min), float(wanted.max)) if saturate else scaled).astype(array_dtype(wanted))


def _between_integers(value: jax.Array, largest: np.integer[Any], wanted: DType, saturate: bool) -> jax.Array:
    convert = saturate_cast if saturate else cast
    if largest > wanted.max:
        return convert(value // ((int(largest) + 1) // (int(wanted.max) + 1)), wanted)
    return convert(value, wanted) * ((int(wanted.max) + 1) // (int(largest) + 1))


def _in_float(image: jax.Array, change: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return convert_image_dtype(change(convert_image_dtype(image, "float32")), image.dtype, saturate=True)


@op("image.rgb_to_grayscale")
def rgb_to_grayscale(images: jax.Array) -> jax.Array:
    """Converts RGB images to grayscale, with the weights 0.2989, 0.5870 and 0.1140."""
    require_channels("tf.image.rgb_to_grayscale", images, 3)
    weights = jnp.asarray([0.2989, 0.5870, 0.1140], jnp.float32)
    return _in_float(images, lambda value: jnp.sum(value * weights, axis=-1, keepdims=True))


@op("image.grayscale_to_rgb")
def grayscale_to_rgb(images: jax.Array) -> jax.Array:
    """Converts grayscale images to RGB with three equal channels."""
    require_channels("tf.image.grayscale_to_rgb", images, 1)
    return jnp.repeat(images, 3, axis=-1)


@op("image.adjust_brightness", named=False)
def adjust_brightness(image: jax.Array, delta: jax.Array) -> jax.Array:
    """Adds `delta` to all pixels of images, on a scale from 0 to 1."""
    if image.dtype.kind == "f":
        return image + delta.astype(image.dtype)
    return _in_float(image, lambda one: one + delta)


@op("image.adjust_contrast", named=False)
def adjust_contrast(images: jax.Array, contrast_factor: Operand) -> jax.Array:
    """Multiplies each pixel's difference from the mean of its channel by `contrast_factor`."""

    def change(value: jax.Array) -> jax.Array:
        mean = jnp.mean(value, axis=(-3, -2), keepdims=True)
        return (value - mean) * contrast_factor + mean  # type: ignore[no-any-return]

    return change(images).astype(images.dtype) if images.dtype.kind == "f" else _in_float(images, change)


@op("image.adjust_gamma", named=False)
def adjust_gamma(image: jax.Array, gamma: Operand = 1, gain: Operand = 1) -> jax.Array:
    """Applies gamma correction to images, ``gain * image ** gamma``, on a scale from 0 to 1.

    Raises:
        InvalidArgumentError: `gamma` is known to be negative.
    """
    require_gamma("tf.image.adjust_gamma", gamma)

    def change(value: jax.Array) -> jax.Array:
        return gain * value**gamma  # type: ignore[no-any-return]

    return change(image).astype(image.dtype) if image.dtype.kind == "f" else _in_float(image, change)


@op("image.rgb_to_hsv")
def rgb_to_hsv(images: jax.Array) -> jax.Array:
    """Converts RGB images to hue, saturation and value, each from 0 to 1.

    Source: A. R. Smith, "Color gamut transform pairs", SIGGRAPH 1978.
    """
    require_floats("tf.image.rgb_to_hsv", images)
    require_channels("tf.image.rgb_to_hsv", images, 3)
    red, green, blue = jnp.moveaxis(images, -1, 0)
    high, spread = jnp.max(images, axis=-1), jnp.ptp(images, axis=-1)
    safe = jnp.where(spread > 0, spread, 1)
    sectors = [(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe]
    hue = jnp.select([high == red, high == green, high == blue], sectors)
    hue = jnp.where(spread > 0, jnp.mod(hue / 6, 1), 0)
    return jnp.stack([hue, jnp.where(high > 0, spread / jnp.where(high > 0, high, 1), 0), high], axis=-1)


@op("image.hsv_to_rgb")
def hsv_to_rgb(images: jax.Array) -> jax.Array:
    """Converts HSV images to RGB: the inverse of `rgb_to_hsv`."""
    require_floats("tf.image.hsv_to_rgb", images)
    require_channels("tf.image.hsv_to_rgb", images, 3)
    hue, saturation, high = images[..., 0] * 6, images[..., 1], images[..., 2]
    offsets = (jnp.abs(hue - 3) - 1, 2 - jnp.abs(hue - 2), 2 - jnp.abs(hue - 4))
    return jnp.stack([high * (1 - saturation * (1 - jnp.clip(one, 0, 1))) for one in offsets], axis=-1)


def _in_hsv(image: jax.Array, channel: int, change: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Converts RGB images to HSV, applies `change` to one channel, and converts the result back to RGB."""

    def changed(rgb: jax.Array) -> jax.Array:
        hsv = rgb_to_hsv(rgb)
        return hsv_to_rgb(hsv.at[..., channel].set(change(hsv[..., channel])))

    return _in_float(image, changed)


@op("image.adjust_hue")
def adjust_hue(image: jax.Array, delta: Operand) -> jax.Array:
    """Adds `delta` to the hue of RGB images, where 1 is a full circle."""
    return _in_hsv(image, 0, lambda hue: jnp.mod(hue + delta, 1))


@op("image.adjust_saturation")
def adjust_saturation(image: jax.Array, saturation_factor: Operand) -> jax.Array:
    """Multiplies the saturation of RGB images by `saturation_factor`."""
    return _in_hsv(image, 1, lambda saturation: jnp.clip(saturation * saturation_factor, 0, 1))


@op("image.central_crop", named=False)
def central_crop(image: jax.Array, central_fraction: float) -> jax.Array:
    """Crops images to the central fraction of their height and width.

    Raises:
        InvalidArgumentError: The fraction is not in (0, 1].
    """
    if not 0 < central_fraction <= 1:
        raise InvalidArgumentError.of(
            "tf.image.central_crop",
            found=f"`central_fraction` is {central_fraction}",
            rule="central_fraction must be within (0, 1]",
            remedy="pass 0.5 to keep the central half of height and width",
        )
    height, width = image.shape[-3:-1]
    top, left = int((height - height * central_fraction) / 2), int((width - width * central_fraction) / 2)
    return image[..., top : height - top, left : width - left, :]


@op("image.crop_to_bounding_box", named=False)
def crop_to_bounding_box(
    image: jax.Array, offset_height: Int, offset_width: Int, target_height: Int, target_width: Int
) -> jax.Array:
    """Crops images to a rectangle, given by its upper left corner and its size."""
    bottom, right = offset_height + target_height, offset_width + target_width
    sizes = offset_height, offset_width, target_height, target_width
    if min(sizes) < 0 or bottom > image.shape[-3] or right > image.shape[-2]:
        raise InvalidArgumentError.of(
            "tf.image.crop_to_bounding_box",
            found=f"the box is [{offset_height}:{bottom}, {offset_width}:{right}]; the image has the shape "
            f"{image.shape}",
            rule="the box must lie within the image",
            remedy="pass a smaller box; tf.image.resize_with_crop_or_pad returns images of any size",
        )
    return image[..., offset_height:bottom, offset_width:right, :]


@op("image.pad_to_bounding_box", named=False)
def pad_to_bounding_box(
    image: jax.Array, offset_height: Int, offset_width: Int, target_height: Int, target_width: Int
) -> jax.Array:
    """Pads images with zeros to a given size, with the image at a given offset."""
    below, right = target_height - offset_height - image.shape[-3], target_width - offset_width - image.shape[-2]
    return jnp.pad(image, [(0, 0)] * (image.ndim - 3) + [(offset_height, below), (offset_width, right), (0, 0)])


@op("image.resize_with_crop_or_pad", named=False)
def resize_with_crop_or_pad(image: jax.Array, target_height: Int, target_width: Int) -> jax.Array:
    """Crops images or pads them with zeros to a given size, by equal amounts on opposite sides."""
    old_height, old_width = image.shape[-3:-1]
    top, left = max((old_height - target_height) // 2, 0), max((old_width - target_width) // 2, 0)
    cut = crop_to_bounding_box(image, top, left, min(target_height, old_height), min(target_width, old_width))
    above, before = max((target_height - old_height) // 2, 0), max((target_width - old_width) // 2, 0)
    return pad_to_bounding_box(cut, above, before, target_height, target_width)


@op("image.resize_with_pad", named=False)
def resize_with_pad(
    image: jax.Array, target_height: Int, target_width: Int, method: str = "bilinear", antialias: bool = False
) -> jax.Array:
    """Resizes images to a given size without changing their aspect ratio, and pads them with zeros."""
    # In float32 as in TensorFlow, because the sizes and offsets are rounded down.
    height, width, rows, columns = np.array([*image.shape[-3:-1], target_height, target_width], np.float32)
    ratio = max(width / columns, height / rows)
    small = resize(image, (int(height / ratio), int(width / ratio)), method, antialias=antialias)
    above, before = max(int((rows - height / ratio) // 2), 0), max(int((columns - width / ratio) // 2), 0)
    return pad_to_bounding_box(small, above, before, target_height, target_width)


@op("image.per_image_standardization", named=False)
def per_image_standardization(image: jax.Array) -> jax.Array:
    """Scales each image to mean 0 and variance 1.

    The standard deviation by which it divides is at least ``1 / sqrt(number of elements)``.
    """
    value, axes = image.astype(jnp.float32), (-3, -2, -1)
    least = np.float32(1 / np.sqrt(np.prod(value.shape[-3:])))
    deviation = jnp.maximum(jnp.std(value, axis=axes, keepdims=True), least)
    return (value - jnp.mean(value, axis=axes, keepdims=True)) / deviation


@op("image.total_variation")
def total_variation(images: jax.Array) -> jax.Array:
    """Computes the sum of absolute differences between neighboring pixels of each image."""
    if images.dtype.kind == "u":
        require_floats("tf.image.total_variation", images)
    steps = (kinks.absolute(jnp.diff(images, axis=axis)) for axis in (-3, -2))
    down, across = (jnp.sum(one, axis=(-3, -2, -1)) for one in steps)
    return down + across


@op("image.image_gradients", named=False)
def image_gradients(image: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the vertical and the horizontal differences between neighboring pixels, each with the images' shape.

    They are the pixel below, or to the right, minus the pixel itself; 0 in the last row, or column.
    """
    down = jnp.pad(jnp.diff(image, axis=1), [(0, 0), (0, 1), (0, 0), (0, 0)])
    return down, jnp.pad(jnp.diff(image, axis=2), [(0, 0), (0, 0), (0, 1), (0, 0)])


def _draw(seed: Operand, stateless: bool) -> jax.Array:
    return key_from_seed(seed) if stateless else next_key(seed)


def _factor(key: jax.Array, low: float, high: float) -> jax.Array:
    return jax.random.uniform(key, (), jnp.float32, low, high)


def _random_flip(name: str, axis: int, stateless: bool) -> None:
    def flip(image: jax.Array, seed: Operand = None) -> jax.Array:
        """Flips each image with probability one half."""
        require_images(f"tf.image.{name}", image)
        coin = jax.random.bernoulli(_draw(seed, stateless), np.float32(0.5), image.shape[:-3])
        return jnp.where(coin[..., None, None, None], jnp.flip(image, axis), image)

    flip.__name__ = flip.__qualname__ = name
    op(f"image.{name}", named=False)(flip)


def _random_adjust(name: str, adjust: Callable[..., jax.Array], stateless: bool) -> None:
    def change(image: jax.Array, lower: float, upper: float, seed: Operand = None) -> jax.Array:
        """Adjusts images by a factor drawn from [lower, upper)."""
        require_range(f"tf.image.{name}", lower, upper)
        return adjust(image, _factor(_draw(seed, stateless), lower, upper))

    change.__name__ = change.__qualname__ = name
    op(f"image.{name}", named=False)(change)


def _random_shift(name: str, adjust: Callable[..., jax.Array], stateless: bool) -> None:
    def change(image: jax.Array, max_delta: float, seed: Operand = None) -> jax.Array:
        """Adjusts images by a shift drawn from [-max_delta, max_delta)."""
        require_shift(f"tf.image.{name}", max_delta, 0.5 if name.endswith("hue") else None)
        return adjust(image, _factor(_draw(seed, stateless), -max_delta, max_delta))

    change.__name__ = change.__qualname__ = name
    op(f"image.{name}", named=False)(change)


for _prefix, _stateless in {"random": False, "stateless_random": True}.items():
    _random_flip(f"{_prefix}_flip_left_right", -2, _stateless)
    _random_flip(f"{_prefix}_flip_up_down", -3, _stateless)
    _random_adjust(f"{_prefix}_contrast", adjust_contrast, _stateless)
    _random_adjust(f"{_prefix}_saturation", adjust_saturation, _stateless)
    _random_shift(f"{_prefix}_brightness", adjust_brightness, _stateless)
    _random_shift(f"{_prefix}_hue", adjust_hue, _stateless)


def _cropped(value: jax.Array, size: tuple[int, ...], key: jax.Array) -> jax.Array:
    room = jnp.asarray([old - new + 1 for old, new in zip(value.shape, size, strict=True)], jnp.int32)
    return jax.lax.dynamic_slice(value, list(jax.random.randint(key, (len(size),), 0, room, jnp.int32)), size)


@op("image.random_crop")
def random_crop(value: jax.Array, size: Ints, seed: int | None = None) -> jax.Array:
    """Crops a tensor to the shape `size` at a random position."""
    return _cropped(value, size, next_key(seed))


@op("image.stateless_random_crop")
def stateless_random_crop(value: jax.Array, size: Ints, seed: Operand) -> jax.Array:
    """Crops a tensor to the shape `size` at a position that depends only on `seed`."""
    return _cropped(value, size, key_from_seed(seed))


@op("image.extract_patches")
def extract_patches(images: jax.Array, sizes: Ints, strides: Ints, rates: Ints, padding: str) -> jax.Array:
    """Extracts rectangular patches from images; each output pixel contains the values of one patch as channels.

    The result is [n, rows, columns, height * width * channels].
    """
    # Not `conv_general_dilated_patches`, which multiplies by zeros: one NaN would reach all elements of a patch.
    reach = [(size - 1) * rate + 1 for size, rate in zip(sizes[1:3], rates[1:3], strict=True)]
    pads = jax.lax.padtype_to_pads(images.shape[1:3], reach, strides[1:3], padding.upper())
    padded = jnp.pad(images, [(0, 0), *pads, (0, 0)])
    rows, columns = (
        np.arange(max(0, (padded.shape[axis] - reach[axis - 1]) // strides[axis] + 1))[:, None] * strides[axis]
        + np.arange(sizes[axis]) * rates[axis]
        for axis in (1, 2)
    )
    found = jnp.take(jnp.take(padded, rows, axis=1), columns, axis=3)  # [n, rows, height, columns, width, channels]
    depth = sizes[1] * sizes[2] * images.shape[3]
    return found.transpose(0, 1, 3, 2, 4, 5).reshape(images.shape[0], len(rows), len(columns), depth)
