"""`tf.image`: resizes, flips, crops and adjusts the colors of images [..., height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand, StaticInts
from mirrored.tf._dtypes import DType, array_dtype, as_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.generator import key_from_seed, next_key
from mirrored.tf._static import static_ints
from mirrored.tf._table import op, reported
from mirrored.tf._tensors import as_tensor

_METHODS = {
    "bilinear": "linear",
    "nearest": "nearest",
    "bicubic": "cubic",
    "lanczos3": "lanczos3",
    "lanczos5": "lanczos5",
}


class ResizeMethod:
    """The names of the methods by which `tf.image.resize` interpolates pixels."""

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"


op("image.ResizeMethod")(ResizeMethod)


@op("image.resize")
def resize(
    images: Operand,
    size: StaticInts,
    method: str = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
) -> jax.Array:
    """Resizes images to a given height and width.

    Returns float32, or for "nearest" the dtype of the images.
    """
    value = as_tensor(images)
    if method not in _METHODS:
        raise ValueError(f"Resize method {method!r} is not implemented: mirrored.tf has {', '.join(_METHODS)}")
    height, width = static_ints(size, called="tf.image.resize", argument="size")
    old_height, old_width = value.shape[-3:-1]
    if preserve_aspect_ratio:
        scale = min(height / old_height, width / old_width)
        height, width = round(scale * old_height), round(scale * old_width)
    if (height, width) == (old_height, old_width):
        return value if method == "nearest" else value.astype(jnp.float32)
    source = value if method == "nearest" else value.astype(jnp.float32)
    shape = (*value.shape[:-3], height, width, value.shape[-1])
    return jax.image.resize(source, shape, _METHODS[method], antialias=antialias)  # type: ignore[no-any-return]


def _flipped(axis: int) -> Callable[..., jax.Array]:
    def flip(image: Operand) -> jax.Array:
        """Flips images along one axis."""
        return jnp.flip(as_tensor(image), axis)

    return flip


flip_left_right = op("image.flip_left_right")(_flipped(-2))
flip_up_down = op("image.flip_up_down")(_flipped(-3))


@op("image.transpose")
def transpose(image: Operand) -> jax.Array:
    """Swaps the height and width of images."""
    return jnp.swapaxes(as_tensor(image), -3, -2)


@op("image.rot90")
def rot90(image: Operand, k: int = 1) -> jax.Array:
    """Rotates images counter-clockwise by `k` times 90 degrees."""
    return jnp.rot90(as_tensor(image), k, axes=(-3, -2))


@op("image.convert_image_dtype")
def convert_image_dtype(image: Operand, dtype: DTypeLike, saturate: bool = False) -> jax.Array:
    """Converts images to another dtype, and scales pixels: integers 0..max correspond to floats 0..1."""
    value, wanted = as_tensor(image), as_dtype(dtype)
    source = as_dtype(value.dtype)
    if source == wanted:
        return value
    if source.is_integer and wanted.is_integer:
        return _between_integers(value, source.max, wanted)
    if source.is_integer:
        return value.astype(array_dtype(wanted)) * (1.0 / float(source.max))
    if not wanted.is_integer:
        return value.astype(array_dtype(wanted))
    scaled = value * (float(wanted.max) + 0.5)
    return (jnp.clip(scaled, float(wanted.min), float(wanted.max)) if saturate else scaled).astype(array_dtype(wanted))


def _between_integers(value: jax.Array, largest: np.integer[Any], wanted: DType) -> jax.Array:
    if largest > wanted.max:
        return (value // ((int(largest) + 1) // (int(wanted.max) + 1))).astype(array_dtype(wanted))
    return value.astype(array_dtype(wanted)) * ((int(wanted.max) + 1) // (int(largest) + 1))


def _in_float(image: Operand, change: Callable[[jax.Array], jax.Array]) -> jax.Array:
    value = as_tensor(image)
    changed = change(as_tensor(convert_image_dtype(value, "float32")))
    return convert_image_dtype(changed, value.dtype, saturate=True)


@op("image.rgb_to_grayscale")
def rgb_to_grayscale(images: Operand) -> jax.Array:
    """Converts RGB images to grayscale, with the weights 0.2989, 0.5870 and 0.1140."""
    weights = jnp.asarray([0.2989, 0.5870, 0.1140], jnp.float32)
    return _in_float(images, lambda value: jnp.sum(value * weights, axis=-1, keepdims=True))


@op("image.grayscale_to_rgb")
def grayscale_to_rgb(images: Operand) -> jax.Array:
    """Converts grayscale images to RGB with three equal channels."""
    return jnp.repeat(as_tensor(images), 3, axis=-1)


@op("image.adjust_brightness", named=False)
def adjust_brightness(image: Operand, delta: Operand) -> jax.Array:
    """Adds `delta` to all pixels of images, on a scale from 0 to 1."""
    value = as_tensor(image)
    if value.dtype.kind == "f":
        return value + as_tensor(delta).astype(value.dtype)
    return _in_float(value, lambda one: one + delta)


@op("image.adjust_contrast", named=False)
def adjust_contrast(images: Operand, contrast_factor: Operand) -> jax.Array:
    """Multiplies each pixel's difference from the mean of its channel by `contrast_factor`."""

    def change(value: jax.Array) -> jax.Array:
        mean = jnp.mean(value, axis=(-3, -2), keepdims=True)
        return (value - mean) * contrast_factor + mean  # type: ignore[no-any-return]

    value = as_tensor(images)
    return change(value) if value.dtype.kind == "f" else _in_float(value, change)


@op("image.adjust_gamma", named=False)
def adjust_gamma(image: Operand, gamma: Operand = 1, gain: Operand = 1) -> jax.Array:
    """Applies gamma correction to images, ``gain * image ** gamma``, on a scale from 0 to 1."""
    value = as_tensor(image)
    return gain * value**gamma if value.dtype.kind == "f" else _in_float(value, lambda one: gain * one**gamma)


@op("image.rgb_to_hsv")
def rgb_to_hsv(images: Operand) -> jax.Array:
    """Converts RGB images to hue, saturation and value, each from 0 to 1.

    Source: A. R. Smith, "Color gamut transform pairs", SIGGRAPH 1978.
    """
    value = as_tensor(images)
    red, green, blue = value[..., 0], value[..., 1], value[..., 2]
    high, low = jnp.max(value, axis=-1), jnp.min(value, axis=-1)
    spread = high - low
    safe = jnp.where(spread > 0, spread, 1)
    hue = jnp.where(
        high == red, (green - blue) / safe, jnp.where(high == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    )
    hue = jnp.where(spread > 0, jnp.mod(hue / 6, 1), 0)
    saturation = jnp.where(high > 0, spread / jnp.where(high > 0, high, 1), 0)
    return jnp.stack([hue, saturation, high], axis=-1)


@op("image.hsv_to_rgb")
def hsv_to_rgb(images: Operand) -> jax.Array:
    """Converts HSV images to RGB: the inverse of `rgb_to_hsv`."""
    value = as_tensor(images)
    hue, saturation, high = value[..., 0] * 6, value[..., 1], value[..., 2]
    offsets = (jnp.abs(hue - 3) - 1, 2 - jnp.abs(hue - 2), 2 - jnp.abs(hue - 4))
    return jnp.stack([high * (1 - saturation * (1 - jnp.clip(one, 0, 1))) for one in offsets], axis=-1)


@op("image.adjust_hue")
def adjust_hue(image: Operand, delta: Operand) -> jax.Array:
    """Adds `delta` to the hue of RGB images, where 1 is a full circle."""

    def change(value: jax.Array) -> jax.Array:
        hsv = rgb_to_hsv(value)
        return hsv_to_rgb(hsv.at[..., 0].set(jnp.mod(hsv[..., 0] + delta, 1)))

    return _in_float(image, change)


@op("image.adjust_saturation")
def adjust_saturation(image: Operand, saturation_factor: Operand) -> jax.Array:
    """Multiplies the saturation of RGB images by `saturation_factor`."""

    def change(value: jax.Array) -> jax.Array:
        hsv = rgb_to_hsv(value)
        return hsv_to_rgb(hsv.at[..., 1].set(jnp.clip(hsv[..., 1] * saturation_factor, 0, 1)))

    return _in_float(image, change)


@op("image.central_crop", named=False)
def central_crop(image: Operand, central_fraction: float) -> jax.Array:
    """Crops images to the central fraction of their height and width."""
    if not 0 < central_fraction <= 1:
        raise ValueError("central_fraction must be within (0, 1]")
    value = as_tensor(image)
    height, width = value.shape[-3:-1]
    top, left = int((height - height * central_fraction) / 2), int((width - width * central_fraction) / 2)
    return value[..., top : height - top, left : width - left, :]


@op("image.crop_to_bounding_box", named=False)
def crop_to_bounding_box(
    image: Operand,
    offset_height: SupportsIndex,
    offset_width: SupportsIndex,
    target_height: SupportsIndex,
    target_width: SupportsIndex,
) -> jax.Array:
    """Crops images to a rectangle, given by its upper left corner and its size."""
    called = "tf.image.crop_to_bounding_box"
    value = as_tensor(image)
    corner = (offset_height, offset_width, target_height, target_width)
    top, left, height, width = static_ints(corner, called=called, argument="offset and target")
    if min(top, left) < 0 or top + height > value.shape[-3] or left + width > value.shape[-2]:
        raise InvalidArgumentError.of(
            called,
            found=f"the box is [{top}:{top + height}, {left}:{left + width}]; the image has the shape {value.shape}",
            rule="the box must lie within the image",
            remedy="pass a smaller box; tf.image.resize_with_crop_or_pad returns images of any size",
        )
    return value[..., top : top + height, left : left + width, :]


@op("image.pad_to_bounding_box", named=False)
def pad_to_bounding_box(
    image: Operand,
    offset_height: SupportsIndex,
    offset_width: SupportsIndex,
    target_height: SupportsIndex,
    target_width: SupportsIndex,
) -> jax.Array:
    """Pads images with zeros to a given size, with the image at a given offset."""
    called = "tf.image.pad_to_bounding_box"
    value = as_tensor(image)
    corner = (offset_height, offset_width, target_height, target_width)
    top, left, height, width = static_ints(corner, called=called, argument="offset and target")
    after = (height - top - value.shape[-3], width - left - value.shape[-2])
    widths = [(0, 0)] * (value.ndim - 3) + [(top, after[0]), (left, after[1]), (0, 0)]
    with reported(called, [value]):
        return jnp.pad(value, widths)


@op("image.resize_with_crop_or_pad", named=False)
def resize_with_crop_or_pad(image: Operand, target_height: SupportsIndex, target_width: SupportsIndex) -> jax.Array:
    """Crops images, or pads them with zeros, equally on both sides to a given size."""
    value = as_tensor(image)
    height, width = static_ints((target_height, target_width), called="tf.image", argument="target")
    old_height, old_width = value.shape[-3:-1]
    top, left = max((old_height - height) // 2, 0), max((old_width - width) // 2, 0)
    cut = crop_to_bounding_box(value, top, left, min(height, old_height), min(width, old_width))
    above, before = max((height - old_height) // 2, 0), max((width - old_width) // 2, 0)
    return pad_to_bounding_box(cut, above, before, height, width)


@op("image.resize_with_pad", named=False)
def resize_with_pad(
    image: Operand,
    target_height: SupportsIndex,
    target_width: SupportsIndex,
    method: str = "bilinear",
    antialias: bool = False,
) -> jax.Array:
    """Resizes images to a given size without changing their aspect ratio, and pads them with zeros."""
    small = resize(image, (target_height, target_width), method, preserve_aspect_ratio=True, antialias=antialias)
    return resize_with_crop_or_pad(small, target_height, target_width)


@op("image.per_image_standardization", named=False)
def per_image_standardization(image: Operand) -> jax.Array:
    """Scales each image to mean 0 and variance 1.

    The standard deviation by which it divides is at least ``1 / sqrt(number of elements)``.
    """
    value = as_tensor(image).astype(jnp.float32)
    axes = (-3, -2, -1)
    least = 1 / np.sqrt(np.prod(value.shape[-3:]))
    deviation = jnp.maximum(jnp.std(value, axis=axes, keepdims=True), least)
    return (value - jnp.mean(value, axis=axes, keepdims=True)) / deviation


@op("image.total_variation")
def total_variation(images: Operand) -> jax.Array:
    """Computes the sum of absolute differences between neighboring pixels of each image."""
    value = as_tensor(images)
    down, across = jnp.abs(jnp.diff(value, axis=-3)), jnp.abs(jnp.diff(value, axis=-2))
    return jnp.sum(down, axis=(-3, -2, -1)) + jnp.sum(across, axis=(-3, -2, -1))


@op("image.psnr")
def psnr(a: Operand, b: Operand, max_val: SupportsFloat) -> jax.Array:
    """Computes the peak signal-to-noise ratio between two images, in decibels."""
    left, right = convert_image_dtype(a, "float32"), convert_image_dtype(b, "float32")
    largest = float(max_val) / (float(as_dtype(as_tensor(a).dtype).max) if as_tensor(a).dtype.kind in "iu" else 1.0)
    error = jnp.mean(jnp.square(left - right), axis=(-3, -2, -1))
    return 20 * jnp.log10(largest) - 10 * jnp.log10(error)


@op("image.image_gradients", named=False)
def image_gradients(image: Operand) -> tuple[jax.Array, jax.Array]:
    """Returns vertical and horizontal differences: from each pixel to the pixel below, and to the right one.

    They are 0 in the last row and column.
    """
    value = as_tensor(image)
    down = jnp.pad(jnp.diff(value, axis=1), [(0, 0), (0, 1), (0, 0), (0, 0)])
    across = jnp.pad(jnp.diff(value, axis=2), [(0, 0), (0, 0), (0, 1), (0, 0)])
    return down, across


def _draw(seed: Operand, stateless: bool) -> jax.Array:
    return key_from_seed(seed) if stateless else next_key(seed)


def _random_flip(name: str, axis: int, stateless: bool) -> None:
    def flip(image: Operand, seed: Operand = None) -> jax.Array:
        """Flips each image with probability one half."""
        value = as_tensor(image)
        coin = jax.random.bernoulli(_draw(seed, stateless), 0.5, value.shape[:-3])
        return jnp.where(coin[..., None, None, None], jnp.flip(value, axis), value)

    flip.__name__ = flip.__qualname__ = name
    op(f"image.{name}", named=False)(flip)


def _random_adjust(name: str, adjust: Callable[..., jax.Array], stateless: bool) -> None:
    def change(image: Operand, lower: float, upper: float, seed: Operand = None) -> jax.Array:
        """Adjusts images by a factor drawn from [lower, upper)."""
        factor = jax.random.uniform(_draw(seed, stateless), (), minval=lower, maxval=upper)
        return adjust(image, factor)

    change.__name__ = change.__qualname__ = name
    op(f"image.{name}", named=False)(change)


def _random_shift(name: str, adjust: Callable[..., jax.Array], stateless: bool) -> None:
    def change(image: Operand, max_delta: float, seed: Operand = None) -> jax.Array:
        """Adjusts images by a shift drawn from [-max_delta, max_delta)."""
        shift = jax.random.uniform(_draw(seed, stateless), (), minval=-max_delta, maxval=max_delta)
        return adjust(image, shift)

    change.__name__ = change.__qualname__ = name
    op(f"image.{name}", named=False)(change)


for _prefix, _stateless in {"random": False, "stateless_random": True}.items():
    _random_flip(f"{_prefix}_flip_left_right", -2, _stateless)
    _random_flip(f"{_prefix}_flip_up_down", -3, _stateless)
    _random_adjust(f"{_prefix}_contrast", adjust_contrast, _stateless)
    _random_adjust(f"{_prefix}_saturation", adjust_saturation, _stateless)
    _random_shift(f"{_prefix}_brightness", adjust_brightness, _stateless)
    _random_shift(f"{_prefix}_hue", adjust_hue, _stateless)


def _cropped(value: jax.Array, size: StaticInts, key: jax.Array) -> jax.Array:
    sizes = static_ints(size, called="tf.image.random_crop", argument="size")
    room = jnp.asarray([old - new + 1 for old, new in zip(value.shape, sizes, strict=True)], jnp.int32)
    corner = jax.random.randint(key, (len(sizes),), 0, room)
    return jax.lax.dynamic_slice(value, list(corner), sizes)


@op("image.random_crop")
def random_crop(value: Operand, size: StaticInts, seed: int | None = None) -> jax.Array:
    """Crops a tensor to the shape `size` at a random position."""
    return _cropped(as_tensor(value), size, next_key(seed))


@op("image.stateless_random_crop")
def stateless_random_crop(value: Operand, size: StaticInts, seed: Operand) -> jax.Array:
    """Crops a tensor to the shape `size` at a position that depends only on `seed`."""
    return _cropped(as_tensor(value), size, key_from_seed(seed))


@op("image.extract_patches")
def extract_patches(
    images: Operand, sizes: StaticInts, strides: StaticInts, rates: StaticInts, padding: str
) -> jax.Array:
    """Extracts rectangular patches from images; the pixels of a patch become the channels of one output pixel.

    The result is [n, rows, columns, height * width * channels].
    """
    value = as_tensor(images)
    called = "tf.image.extract_patches"
    window = static_ints(sizes, called=called, argument="sizes")[1:3]
    steps = static_ints(strides, called=called, argument="strides")[1:3]
    holes = static_ints(rates, called=called, argument="rates")[1:3]
    patches = jax.lax.conv_general_dilated_patches(
        value, window, steps, padding, rhs_dilation=holes, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    channels = value.shape[-1]  # within a patch, channels come first in JAX and last in TensorFlow
    split = patches.reshape(*patches.shape[:-1], channels, window[0] * window[1])
    return jnp.swapaxes(split, -1, -2).reshape(patches.shape)
