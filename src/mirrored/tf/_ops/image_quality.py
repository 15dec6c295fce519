"""`tf.image`: conversions between color spaces, edge detection and image similarity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np

from mirrored.tf._dtypes import as_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.convolution import avg_pool, depthwise_conv2d
from mirrored.tf._ops.image import convert_image_dtype
from mirrored.tf._ops.image_checks import require_alike, require_floats
from mirrored.tf._table import Int, op

# Weights of the five scales. Source: Z. Wang, E. Simoncelli, A. Bovik, Multi-scale structural similarity for image
# quality assessment, Asilomar 2003.
_SCALES = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)

_COLOURS = {
    "rgb_to_yiq": (
        (0.299, 0.59590059, 0.2115), (0.587, -0.27455667, -0.52273617), (0.114, -0.32134392, 0.31119955),
    ),
    "yiq_to_rgb": (
        (1.0, 1.0, 1.0), (0.95598634, -0.27201283, -1.10674021), (0.6208248, -0.64720424, 1.70423049),
    ),
    "rgb_to_yuv": (
        (0.299, -0.14714119, 0.61497538), (0.587, -0.28886916, -0.51496512), (0.114, 0.43601035, -0.10001026),
    ),
    "yuv_to_rgb": (
        (1.0, 1.0, 1.0), (0.0, -0.394642334, 2.03206185), (1.13988303, -0.58062185, 0.0),
    ),
}  # fmt: skip


def _colours(name: str, matrix: Sequence[Sequence[float]]) -> None:
    def converted(images: jax.Array) -> jax.Array:
        require_floats(f"tf.image.{name}", images)
        return jnp.tensordot(images, jnp.asarray(matrix, images.dtype), axes=1)

    converted.__name__ = converted.__qualname__ = name
    source, _, target = name.upper().partition("_TO_")
    converted.__doc__ = f"Converts float {source} images [..., 3] to {target}."
    op(f"image.{name}", named=False)(converted)


for _name, _matrix in _COLOURS.items():
    _colours(_name, _matrix)


@op("image.sobel_edges", named=False)
def sobel_edges(image: jax.Array) -> jax.Array:
    """Computes the Sobel derivatives of images along height and width.

    The result is [batch, height, width, channels, 2].
    """
    require_floats("tf.image.sobel_edges", image)
    along_height = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]])
    kernels = np.stack([along_height, along_height.T], axis=-1)[:, :, None]
    filters = jnp.asarray(np.tile(kernels, (1, 1, image.shape[-1], 1)), image.dtype)
    padded = jnp.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    return depthwise_conv2d(padded, filters, [1, 1, 1, 1], "VALID").reshape((*image.shape, 2))


@op("image.psnr")
def psnr(a: jax.Array, b: jax.Array, max_val: SupportsFloat) -> jax.Array:
    """Computes the peak signal-to-noise ratio between two images, in decibels."""
    require_alike("tf.image.psnr", a, b)
    largest = float(max_val) / (float(as_dtype(a.dtype).max) if a.dtype.kind in "iu" else 1.0)
    difference = convert_image_dtype(a, "float32") - convert_image_dtype(b, "float32")
    return 20 * np.float32(np.log10(largest)) - 10 * jnp.log10(jnp.mean(jnp.square(difference), axis=(-3, -2, -1)))


def _require_window(called: str, images: jax.Array, size: int, scales: int = 1) -> None:
    """Raises an error unless images are at least as large as the filter window at each of `scales` scales.

    The mean over no window would be NaN.
    """
    smallest = [-(-side // 2 ** (scales - 1)) for side in images.shape[-3:-1] if isinstance(side, int)]
    if min(smallest, default=size) >= size:
        return
    raise InvalidArgumentError.of(
        called,
        found=f"images of shape {images.shape}, which at the smallest of {scales} scales have the sides {smallest}, "
        f"and filter_size={size}",
        rule="the images must be at least as large as the window, at each scale",
        remedy="pass a smaller filter_size, or fewer power_factors",
    )


@op("image.ssim", named=False)
def ssim(
    img1: jax.Array,
    img2: jax.Array,
    max_val: jax.Array,
    filter_size: Int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    return_index_map: bool = False,
) -> jax.Array:
    """Computes the structural similarity of pairs of images, which is 1 for equal images.

    From images [..., height, width, channels], the result is f32[...].

    Args:
        img1: Images of integers or floats.
        img2: Images like `img1`.
        max_val: The largest possible pixel value.
        filter_size: Size of the Gaussian window in pixels; at most that of the images.
        filter_sigma: Standard deviation of the window.
        k1: Stabilizes the luminance comparison.
        k2: Stabilizes the contrast comparison.
        return_index_map: Whether to return the similarity around each pixel: f32[..., height, width].

    Source: Z. Wang and others, Image quality assessment: from error visibility to structural similarity, IEEE Trans.
    Image Processing 13, 2004.
    """
    require_alike("tf.image.ssim", img1, img2)
    _require_window("tf.image.ssim", img1, filter_size)
    first, second, largest = _in_float(img1, img2, max_val)
    luminance, contrast = _similarity(first, second, largest, _gaussian(filter_size, filter_sigma), k1, k2)
    alike = luminance * contrast
    return jnp.mean(alike, axis=-1) if return_index_map else jnp.mean(alike, axis=(-3, -2, -1))


@op("image.ssim_multiscale", named=False)
def ssim_multiscale(
    img1: jax.Array,
    img2: jax.Array,
    max_val: jax.Array,
    power_factors: Sequence[float] = _SCALES,
    filter_size: Int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> jax.Array:
    """Computes the structural similarity of pairs of images over several scales.

    Each scale is half the previous one; the result is f32[...].

    Args:
        img1: Images [..., height, width, channels] of integers or floats.
        img2: Images like `img1`.
        max_val: The largest possible pixel value.
        power_factors: The weight of each scale.
        filter_size: As for `ssim`; at most the size of the smallest scale.
        filter_sigma: As for `ssim`.
        k1: As for `ssim`.
        k2: As for `ssim`.
    """
    require_alike("tf.image.ssim_multiscale", img1, img2)
    _require_window("tf.image.ssim_multiscale", img1, filter_size, len(power_factors))
    first, second, largest = _in_float(img1, img2, max_val)
    leading = first.shape[:-3]
    images = [one.reshape((-1, *one.shape[-3:])) for one in (first, second)]
    window = _gaussian(filter_size, filter_sigma)
    found = []
    for scale in range(len(power_factors)):
        images = [_half(one) for one in images] if scale else images
        luminance, contrast = _similarity(images[0], images[1], largest, window, k1, k2)
        last = scale == len(power_factors) - 1
        found.append(jax.nn.relu(jnp.mean(luminance * contrast if last else contrast, axis=(-3, -2))))
    powers = jnp.asarray(power_factors, jnp.float32)
    return jnp.mean(jnp.prod(jnp.stack(found, -1) ** powers, axis=-1), axis=-1).reshape(leading)


def _in_float(img1: jax.Array, img2: jax.Array, max_val: jax.Array) -> list[jax.Array]:
    return [convert_image_dtype(one, "float32") for one in (img1, img2, max_val.astype(img1.dtype))]


def _gaussian(size: int, sigma: float) -> np.ndarray[Any, Any]:
    places = np.arange(size) - (size - 1) / 2
    line = np.exp(-0.5 * places**2 / sigma**2)
    square = np.outer(line, line)
    return square / square.sum()  # type: ignore[no-any-return]


def _similarity(
    first: jax.Array, second: jax.Array, largest: jax.Array, window: np.ndarray[Any, Any], k1: float, k2: float
) -> tuple[jax.Array, jax.Array]:
    """Computes the luminance and contrast-structure terms of SSIM for the window around each pixel, per channel."""
    mean = _averaging(window, first.shape)
    c1, c2 = (k1 * largest) ** 2, (k2 * largest) ** 2
    one, other = mean(first), mean(second)
    product, squares = one * other * 2, one**2 + other**2
    luminance = (product + c1) / (squares + c1)
    contrast = (mean(first * second) * 2 - product + c2) / (mean(first**2 + second**2) - squares + c2)
    return luminance, contrast


def _averaging(window: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    filters = jnp.asarray(np.tile(window[:, :, None, None], (1, 1, shape[-1], 1)), jnp.float32)

    def mean(value: jax.Array) -> jax.Array:
        found = depthwise_conv2d(value.reshape((-1, *shape[-3:])), filters, [1, 1, 1, 1], "VALID")
        return found.reshape((*shape[:-3], *found.shape[1:]))

    return mean


def _half(images: jax.Array) -> jax.Array:
    odd = [(0, 0), *((0, size % 2) for size in images.shape[1:3]), (0, 0)]
    return avg_pool(jnp.pad(images, odd, mode="symmetric"), 2, 2, "VALID")
