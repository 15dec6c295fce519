"""Checks of the arguments of `tf.image`: dtypes, channels, and the ranges of random changes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import Operand
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._tensors import as_tensor
from mirrored.values.index_checks import values_now


def require_floats(called: str, images: jax.Array) -> None:
    """Raises an error unless images are floats, because integers would wrap around and lose fractions."""
    if jnp.issubdtype(images.dtype, jnp.floating):
        return
    raise InvalidArgumentError.of(
        called,
        found=f"the images have dtype {images.dtype}",
        rule="the images must be of floats",
        remedy="convert them with tf.image.convert_image_dtype(images, tf.float32)",
    )


def require_images(called: str, images: jax.Array) -> None:
    """Raises an error unless a tensor has at least three dimensions, as images [height, width, channels] have.

    Of an array [height, width], another axis would be flipped.
    """
    if images.ndim >= 3:
        return
    raise InvalidArgumentError.of(
        called,
        found=f"a tensor of shape {images.shape}",
        rule="images must have the shape [height, width, channels], after any leading axes",
        remedy="add the axis of channels: images[..., tf.newaxis]",
    )


def require_alike(called: str, first: jax.Array, second: jax.Array) -> None:
    """Raises an error unless two images have the same height, width and channels: JAX would broadcast them."""
    require_images(called, first)
    if first.shape[-3:] == second.shape[-3:]:
        return
    raise InvalidArgumentError.of(
        called,
        found=f"images of the shapes {first.shape} and {second.shape}",
        rule="both images must have the same height, width and channels",
        remedy="convert or resize one of them",
    )


def require_channels(called: str, images: jax.Array, channels: int) -> None:
    """Raises an error unless the last dimension of images has the given number of channels.

    Another number of channels could broadcast against weights.
    """
    if images.ndim and images.shape[-1] == channels:
        return
    raise InvalidArgumentError.of(
        called,
        found=f"the images have the shape {images.shape}",
        rule=f"the last dimension must have {channels} channel{'s' * (channels > 1)}",
        remedy="convert or slice the images, for instance images[..., :3]",
    )


def _known(value: Operand) -> Any:
    """Returns the value of a Python number or of an eager array on a CPU; None for other arrays."""
    return value if isinstance(value, (int, float, np.number)) else values_now(as_tensor(value))


def require_range(called: str, lower: Operand, upper: Operand) -> None:
    """Raises an error unless ``0 <= lower < upper``; checks only Python numbers and eager arrays on a CPU."""
    low, high = _known(lower), _known(upper)
    if low is None or high is None or 0 <= low < high:
        return
    raise InvalidArgumentError.of(
        called,
        found=f"`lower` is {low} and `upper` {high}",
        rule="`lower` must not be negative, and `upper` must be greater than `lower`",
        remedy="pass the bounds of the factor, for instance lower=0.8, upper=1.2",
    )


def require_shift(called: str, max_delta: Operand, largest: float | None) -> None:
    """Raises an error unless ``0 <= max_delta <= largest``; without an upper limit if `largest` is None."""
    found = _known(max_delta)
    if found is None or (found >= 0 and (largest is None or found <= largest)):
        return
    raise InvalidArgumentError.of(
        called,
        found=f"`max_delta` is {found}",
        rule=f"`max_delta` must not be negative{'' if largest is None else f' or greater than {largest}'}",
        remedy="pass the largest shift in either direction",
    )


def require_gamma(called: str, gamma: Operand) -> None:
    """Raises an error if a gamma exponent is negative; checks only Python numbers and eager arrays on a CPU."""
    found = _known(gamma)
    if found is None or not np.any(np.less(found, 0)):
        return
    raise InvalidArgumentError.of(
        called,
        found=f"gamma={found} was passed",
        rule="`gamma` must not be negative: black pixels would become infinite",
        remedy="pass 1 / gamma for the inverse correction",
    )
