"""`tf.nn`: activation functions, normalization and embeddings."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mirrored._typing import Operand
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops import kinks
from mirrored.tf._ops.convolution import channels_first
from mirrored.tf._ops.indexing import gather
from mirrored.tf._ops.linalg import clip_by_norm
from mirrored.tf._ops.math import squared_difference, squared_magnitude
from mirrored.tf._ops.real_numbers import of_reals, refuse_complex
from mirrored.tf._ops.reductions import check_axes
from mirrored.tf._table import Axes, Common, Int, op, rows
from mirrored.tf._tensors import as_tensor


def _crelu(features: jax.Array, axis: int) -> jax.Array:
    return jax.nn.relu(jnp.concatenate([features, -features], axis=axis))


def _softmax(logits: jax.Array, axis: int | None) -> jax.Array:
    return jax.nn.softmax(logits, axis=-1 if axis is None else axis)


def _log_softmax(logits: jax.Array, axis: int | None) -> jax.Array:
    return jax.nn.log_softmax(logits, axis=-1 if axis is None else axis)


def _relu6(features: jax.Array) -> jax.Array:
    return jax.nn.relu6(features).astype(features.dtype)  # JAX's upper bound of 6.0 makes integers float32


rows(
    {
        "nn.crelu": ("features axis=-1", of_reals(_crelu)),
        "nn.elu": ("features", of_reals(jax.nn.elu)),
        "nn.gelu": ("features approximate=False", jax.nn.gelu),
        "nn.log_softmax math.log_softmax": ("logits axis=None", of_reals(_log_softmax)),
        "nn.relu": ("features", of_reals(jax.nn.relu)),
        "nn.relu6": ("features", of_reals(_relu6)),
        "nn.selu": ("features", of_reals(kinks.selu)),
        "nn.softmax math.softmax": ("logits axis=None", of_reals(_softmax)),
        "nn.softplus math.softplus": ("features", of_reals(jax.nn.softplus)),
        "nn.softsign math.softsign": ("features", of_reals(jax.nn.soft_sign)),
        "nn.sigmoid math.sigmoid sigmoid": ("x", jax.nn.sigmoid),
        "math.log_sigmoid": ("x", of_reals(jax.nn.log_sigmoid)),
    },
    elementwise=True,
)


@op("nn.leaky_relu")
def leaky_relu(features: jax.Array, alpha: Operand = 0.2) -> jax.Array:
    """Computes ``x`` where x is above 0, and ``alpha * x`` elsewhere (leaky ReLU); converts integers to float32.

    `alpha` may be a tensor or a variable that broadcasts against `features`, as for a slope that is trained.
    """
    refuse_complex(features, alpha)
    if jnp.issubdtype(features.dtype, jnp.integer):
        features = features.astype(jnp.float32)
    return kinks.leaky_relu(features, _like_features(alpha, features))


def _like_features(parameter: Operand, features: jax.Array) -> jax.Array:
    """Converts an activation function's parameter to a tensor, in the dtype of `features` if they are floats."""
    dtype = features.dtype if jnp.issubdtype(features.dtype, jnp.inexact) else None
    tensor = as_tensor(parameter, dtype)
    return tensor if dtype is None else tensor.astype(dtype)


@op("nn.silu nn.swish", named=False)
def silu(features: jax.Array, beta: Operand = 1.0) -> jax.Array:
    """Computes the SiLU or Swish activation: ``x * sigmoid(beta * x)``."""
    return features * jax.nn.sigmoid(_like_features(beta, features) * features)


@op("nn.bias_add")
def bias_add(value: Common, bias: Common, data_format: str | None = None) -> jax.Array:
    """Adds a vector of biases, one per channel, to a tensor.

    Channels are the last axis, or the second with ``data_format="NC..."``.
    """
    axis = 1 if channels_first("tf.nn.bias_add", data_format) else value.ndim - 1
    if value.ndim < 2 or bias.shape != (value.shape[axis],):
        raise InvalidArgumentError.of(
            "tf.nn.bias_add",
            found=f"`bias` has the shape {bias.shape}, `value` {value.shape}",
            rule=f"`bias` must be a vector with one number for each channel, along axis {axis} of two or more",
            remedy="reshape the bias, or use tf.add, which broadcasts",
        )
    if axis < value.ndim - 1:
        return value + bias.reshape((1, -1) + (1,) * (value.ndim - 2))
    return value + bias


@op("nn.l2_loss")
def l2_loss(t: jax.Array) -> jax.Array:
    """Computes half the sum of the squares of all elements of a tensor; of complex elements, of ``|t|²``."""
    return jnp.sum(squared_magnitude(t)) / 2


@op("nn.l2_normalize math.l2_normalize linalg.l2_normalize")
def l2_normalize(x: jax.Array, axis: Axes = None, epsilon: float = 1e-12) -> jax.Array:
    """Divides a tensor by its L2 norm along `axis`."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(squared_magnitude(x), axis=axis, keepdims=True), epsilon))


@op("nn.moments")
def moments(x: jax.Array, axes: Axes, shift: object = None, keepdims: bool = False) -> tuple[jax.Array, jax.Array]:
    """Computes the mean and variance of a tensor over `axes`; 16-bit floats are converted to float32 first."""
    check_axes(x, axes)
    wide = _in_32_bits(x)
    mean = jnp.mean(wide, axis=axes, keepdims=True)
    # Not `jnp.var`: in TensorFlow, second derivatives do not depend on the mean.
    apart = wide - jax.lax.stop_gradient(mean)
    squares = jnp.conj(apart) * apart if jnp.iscomplexobj(apart) else jnp.square(apart)
    variance = jnp.mean(squares, axis=axes, keepdims=keepdims)
    return _in_dtype_of(x, mean if keepdims else jnp.squeeze(mean, axes), variance)


def _in_32_bits(x: jax.Array) -> jax.Array:
    """Converts 16-bit floats to float32, so that their squares do not overflow."""
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4 else x


def _in_dtype_of(x: jax.Array, mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Converts a mean and a variance to the dtype of `x`; if `x` is an integer tensor, to the dtype of the mean."""
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else mean.dtype
    return mean.astype(dtype), variance.astype(dtype)


@op("nn.weighted_moments")
def weighted_moments(
    x: jax.Array, axes: Axes, frequency_weights: jax.Array, keepdims: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Computes the mean and variance of a tensor over `axes`, with a weight for each element."""
    wide = _in_32_bits(x)
    weights = jnp.broadcast_to(frequency_weights.astype(wide.dtype), x.shape)
    mean = jnp.average(wide, axes, weights, keepdims=True)
    variance = jnp.average(squared_difference(wide, mean), axes, weights, keepdims=True)
    return _in_dtype_of(x, *((one if keepdims else jnp.squeeze(one, axes)) for one in (mean, variance)))


@op("nn.batch_normalization")
def batch_normalization(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    offset: jax.Array | None,
    scale: jax.Array | None,
    variance_epsilon: Operand,
) -> jax.Array:
    """Normalizes a tensor by a given mean and variance, then scales and shifts it.

    Computes ``scale * (x - mean) / sqrt(variance + epsilon) + offset``, in the dtype of the tensor.
    """
    factor = jax.lax.rsqrt(variance + variance_epsilon)
    factor = factor if scale is None else factor * scale
    shift = -mean * factor if offset is None else offset - mean * factor
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else factor.dtype
    return x * factor.astype(dtype) + shift.astype(dtype)


@op("nn.local_response_normalization nn.lrn")
def local_response_normalization(
    input: jax.Array, depth_radius: Int = 5, bias: float = 1.0, alpha: float = 1.0, beta: float = 0.5
) -> jax.Array:
    """Divides each element by a power of the sum of squares over neighboring channels.

    Computes ``x / (bias + alpha * sum of squares) ** beta``.
    """
    refuse_complex(input)
    padded = jnp.pad(jnp.square(input), [(0, 0)] * (input.ndim - 1) + [(depth_radius, depth_radius)])
    channels = input.shape[-1]
    window = sum(padded[..., i : i + channels] for i in range(2 * depth_radius + 1))
    return input / (bias + alpha * window) ** beta


@op("nn.embedding_lookup")
def embedding_lookup(params: Operand, ids: jax.Array, max_norm: Operand = None) -> jax.Array:
    """Returns the rows `ids` of an embedding table, scaled down to an L2 norm of at most `max_norm` if that is given.

    A list of tables contains consecutive parts of one table, of which the first ones may have one row more.
    """
    parts = params if isinstance(params, (list, tuple)) and all(hasattr(one, "shape") for one in params) else [params]
    tables = [as_tensor(one) for one in parts]
    found = gather(tables[0] if len(tables) == 1 else jnp.concatenate(tables), ids)
    return found if max_norm is None else clip_by_norm(found, max_norm, tuple(range(ids.ndim, found.ndim)))


@op("nn.space_to_depth")
def space_to_depth(input: jax.Array, block_size: Int, data_format: str = "NHWC") -> jax.Array:
    """Merges each block of ``block_size x block_size`` pixels into one pixel with more channels."""
    first = channels_first("tf.nn.space_to_depth", data_format)
    value = jnp.moveaxis(input, 1, -1) if first else input
    n, h, w, c = value.shape
    b = block_size
    blocks = value.reshape(n, h // b, b, w // b, b, c).transpose(0, 1, 3, 2, 4, 5)
    merged = blocks.reshape(n, h // b, w // b, b * b * c)
    return jnp.moveaxis(merged, -1, 1) if first else merged


@op("nn.depth_to_space")
def depth_to_space(input: jax.Array, block_size: Int, data_format: str = "NHWC") -> jax.Array:
    """Splits the channels of each pixel into ``block_size x block_size`` pixels: inverts `space_to_depth`."""
    first = channels_first("tf.nn.depth_to_space", data_format)
    value = jnp.moveaxis(input, 1, -1) if first else input
    n, h, w, c = value.shape
    b = block_size
    blocks = value.reshape(n, h, w, b, b, c // (b * b)).transpose(0, 1, 3, 2, 4, 5)
    split = blocks.reshape(n, h * b, w * b, c // (b * b))
    return jnp.moveaxis(split, -1, 1) if first else split
