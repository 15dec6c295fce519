"""`tf.image.resize` and its interpolation methods."""

from __future__ import annotations

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import HostArray
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._table import Ints, op, register

# TensorFlow's name -> JAX'; None: not in JAX
_METHODS: Final = {
    "bilinear": "linear",
    "nearest": "nearest",
    "bicubic": "cubic",
    "area": None,
    "lanczos3": "lanczos3",
    "lanczos5": "lanczos5",
    "gaussian": None,
    "mitchellcubic": None,
}


class ResizeMethod:
    """The names of the interpolation methods of `tf.image.resize`."""

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"


register(["image.ResizeMethod"], ResizeMethod)


@op("image.resize")
def resize(
    images: jax.Array,
    size: Ints,
    method: str = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
) -> jax.Array:
    """Resizes images to a given height and width.

    Returns float32, or for "nearest" the dtype of the images. A pixel that is NaN or infinite makes its whole channel
    NaN, except with "nearest", and with "bilinear" without `antialias`, where it affects only its neighbors. TensorFlow
    has no gradient for "area".

    Raises:
        InvalidArgumentError: The method is unknown.
    """
    if method not in _METHODS:
        raise InvalidArgumentError.of(
            "tf.image.resize",
            found=f"`method` is {method!r}",
            rule=f"`method` must be one of {', '.join(_METHODS)}",
            remedy="pass one of them",
        )
    height, width = size
    old_height, old_width = images.shape[-3:-1]
    if preserve_aspect_ratio:
        scale = min(height / old_height, width / old_width)
        height, width = round(scale * old_height), round(scale * old_width)
    if method in _KERNELS or method == "area":
        return _weighted(images.astype(jnp.float32), (height, width), method, antialias)
    source = images if method == "nearest" else images.astype(jnp.float32)
    if (height, width) == (old_height, old_width):
        return source
    if isinstance(old_height, int) and isinstance(old_width, int):
        if method == "nearest":
            rows, columns = _nearest(old_height, height), _nearest(old_width, width)
            return jnp.take(jnp.take(source, rows, axis=-3), columns, axis=-2)
        if method == "bilinear" and not antialias:
            return _interpolated(_interpolated(source, -2, width), -3, height)
    shape = (*images.shape[:-3], height, width, images.shape[-1])
    return jax.image.resize(source, shape, _METHODS[method] or "", antialias=antialias)  # type: ignore[no-any-return]


def _nearest(size: int, wanted: int) -> HostArray:
    """Returns for each pixel of a resized axis the index of the nearest input pixel.

    Computed in float32 as in TensorFlow: where two pixels are equally near, rounding decides, and JAX's is another.
    """
    scale = np.float32(size) / np.float32(wanted)
    places: HostArray = np.floor((np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * scale)
    return np.minimum(places.astype(np.int32), size - 1)


def _interpolated(images: jax.Array, axis: int, wanted: int) -> jax.Array:
    """Resizes one axis by linear interpolation between the two nearest pixels, computed as in TensorFlow.

    `jax.image.resize` multiplies by a matrix of weights: a pixel that is NaN would make its whole row and column NaN.
    """
    size = images.shape[axis]
    at = (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * (np.float32(size) / np.float32(wanted))
    at -= np.float32(0.5)
    below = np.floor(at)
    lower = jnp.take(images, np.maximum(below, 0).astype(np.int32), axis=axis)
    upper = jnp.take(images, np.minimum(np.ceil(at), size - 1).astype(np.int32), axis=axis)
    fraction = (at - below).reshape((-1,) + (1,) * (-axis - 1))
    return lower + (upper - lower) * fraction


def _weighted(images: jax.Array, size: tuple[int, int], method: str, antialias: bool) -> jax.Array:
    """Resizes images by multiplying their height and width axes by matrices of interpolation weights."""
    weights = [
        _areas(old, new) if method == "area" else _of_kernel(old, new, method, antialias)
        for old, new in zip(images.shape[-3:-1], size, strict=True)
    ]
    return jnp.einsum("...hwc,ih,jw->...ijc", images, *weights, precision="highest")


def _areas(size: int, wanted: int) -> jax.Array:
    """Returns the weight of each input pixel (column) for each output pixel (row): its share of that pixel's area."""
    scale, rows, pixels = size / wanted, jnp.arange(wanted)[:, None], jnp.arange(size)
    shared = jnp.minimum((rows + 1) * scale, pixels + 1) - jnp.maximum(rows * scale, pixels)
    shared = jnp.maximum(shared, 0)
    return (shared / jnp.sum(shared, axis=1, keepdims=True)).astype(jnp.float32)


def _of_kernel(size: int, wanted: int, method: str, antialias: bool) -> jax.Array:
    """Returns the weight of each input pixel (column) for each output pixel (row), from the distance of their centers.

    Images that become smaller have a kernel as wide as the resized pixels, if `antialias` is true.
    """
    scale = size / wanted
    centers = (jnp.arange(wanted)[:, None] + 0.5) * scale
    distances = jnp.abs(jnp.arange(size) + 0.5 - centers)
    weights = _KERNELS[method](distances / max(scale, 1.0) if antialias else distances)
    return (weights / jnp.sum(weights, axis=1, keepdims=True)).astype(jnp.float32)


def _gaussian(x: jax.Array) -> jax.Array:
    """Returns the values of a Gaussian with standard deviation 0.5, set to 0 at distances of 1.5 or more."""
    return jnp.where(x < 1.5, jnp.exp(-2 * x * x), 0)


def _mitchell(x: jax.Array) -> jax.Array:
    """Returns the values of the cubic filter with B = C = 1/3.

    Source: D. P. Mitchell, A. N. Netravali, Reconstruction filters in computer graphics, SIGGRAPH 1988.
    """
    near = (7 * x - 12) * x * x + 16 / 3
    far = ((-7 / 3 * x + 12) * x - 20) * x + 32 / 3
    return jnp.where(x < 1, near, jnp.where(x < 2, far, 0)) / 6


_KERNELS: Final = {"gaussian": _gaussian, "mitchellcubic": _mitchell}
