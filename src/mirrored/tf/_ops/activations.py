"""`tf.nn`: activation functions, dropout, normalization and embeddings."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mirrored._typing import Operand, StaticInts
from mirrored.tf._ops.indexing import gather
from mirrored.tf._ops.linalg import clip_by_norm
from mirrored.tf._static import static_axis
from mirrored.tf._table import op, reported, rows, tensors
from mirrored.tf._tensors import as_tensor


def _crelu(features: jax.Array, axis: int) -> jax.Array:
    return jax.nn.relu(jnp.concatenate([features, -features], axis=axis))


def _softmax(logits: jax.Array, axis: int | None) -> jax.Array:
    return jax.nn.softmax(logits, axis=-1 if axis is None else axis)


def _log_softmax(logits: jax.Array, axis: int | None) -> jax.Array:
    return jax.nn.log_softmax(logits, axis=-1 if axis is None else axis)


rows(
    {
        "nn.crelu": ("features axis=-1", _crelu),
        "nn.elu": ("features", jax.nn.elu),
        "nn.gelu": ("features approximate=False", jax.nn.gelu),
        "nn.leaky_relu": ("features alpha>negative_slope=0.2", jax.nn.leaky_relu),
        "nn.log_softmax math.log_softmax": ("logits axis=None", _log_softmax),
        "nn.relu": ("features", jax.nn.relu),
        "nn.relu6": ("features", jax.nn.relu6),
        "nn.selu": ("features", jax.nn.selu),
        "nn.softmax math.softmax": ("logits axis=None", _softmax),
        "nn.softplus math.softplus": ("features", jax.nn.softplus),
        "nn.softsign math.softsign": ("features", jax.nn.soft_sign),
        "nn.sigmoid math.sigmoid sigmoid": ("x", jax.nn.sigmoid),
        "math.log_sigmoid": ("x", jax.nn.log_sigmoid),
    },
    elementwise=True,
)


@op("nn.silu nn.swish")
def silu(features: Operand, beta: Operand = 1.0) -> jax.Array:
    """Computes the SiLU or Swish activation: ``x * sigmoid(beta * x)``."""
    value = as_tensor(features)
    return value * jax.nn.sigmoid(beta * value)


@op("nn.bias_add")
def bias_add(value: Operand, bias: Operand, data_format: str | None = None, name: str | None = None) -> jax.Array:
    """Adds a vector of biases, one per channel, to a tensor.

    Channels are the last axis, or the second with ``data_format="NC..."``.
    """
    del name
    tensor, one = tensors(value, bias)
    with reported("tf.nn.bias_add", [tensor, one]):
        if data_format is not None and data_format.startswith("NC"):
            return tensor + one.reshape((1, -1) + (1,) * (tensor.ndim - 2))
        return tensor + one


@op("nn.l2_loss")
def l2_loss(t: Operand, name: str | None = None) -> jax.Array:
    """Computes half the sum of the squares of all elements of a tensor."""
    del name
    value = as_tensor(t)
    return jnp.sum(jnp.square(value)) / 2


@op("nn.l2_normalize math.l2_normalize linalg.l2_normalize")
def l2_normalize(
    x: Operand, axis: StaticInts | None = None, epsilon: float = 1e-12, name: str | None = None
) -> jax.Array:
    """Divides a tensor by its L2 norm along `axis`."""
    del name
    value = as_tensor(x)
    square = jnp.sum(jnp.square(value), axis=static_axis(axis, called="tf.nn.l2_normalize"), keepdims=True)
    return value * jax.lax.rsqrt(jnp.maximum(square, epsilon))


@op("nn.moments")
def moments(
    x: Operand, axes: StaticInts, shift: object = None, keepdims: bool = False, name: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Computes the mean and variance of a tensor over `axes`."""
    del shift, name
    value, where = as_tensor(x), static_axis(axes, called="tf.nn.moments", argument="axes")
    mean = jnp.mean(value, axis=where, keepdims=True)
    variance = jnp.mean(jnp.square(value - jax.lax.stop_gradient(mean)), axis=where, keepdims=keepdims)
    return (mean if keepdims else jnp.squeeze(mean, where)), variance


@op("nn.weighted_moments")
def weighted_moments(
    x: Operand, axes: StaticInts, frequency_weights: Operand, keepdims: bool = False, name: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Computes the mean and variance of a tensor over `axes`, with a weight for each element."""
    del name
    value, where = as_tensor(x), static_axis(axes, called="tf.nn.weighted_moments", argument="axes")
    weights = jnp.broadcast_to(as_tensor(frequency_weights).astype(value.dtype), value.shape)
    total = jnp.sum(weights, axis=where, keepdims=True)
    mean = jnp.sum(value * weights, axis=where, keepdims=True) / total
    variance = jnp.sum(weights * jnp.square(value - mean), axis=where, keepdims=True) / total
    return (mean, variance) if keepdims else (jnp.squeeze(mean, where), jnp.squeeze(variance, where))


@op("nn.batch_normalization")
def batch_normalization(
    x: Operand,
    mean: Operand,
    variance: Operand,
    offset: Operand,
    scale: Operand,
    variance_epsilon: Operand,
    name: str | None = None,
) -> jax.Array:
    """Normalizes a tensor by a given mean and variance, then scales and shifts it.

    Computes ``scale * (x - mean) / sqrt(variance + epsilon) + offset``.
    """
    del name
    value = as_tensor(x)
    factor = jax.lax.rsqrt(as_tensor(variance) + variance_epsilon)
    factor = factor if scale is None else factor * as_tensor(scale)
    with reported("tf.nn.batch_normalization", [value, factor]):
        shifted = -as_tensor(mean) * factor if offset is None else as_tensor(offset) - as_tensor(mean) * factor
        return value * factor + shifted


@op("nn.local_response_normalization nn.lrn")
def local_response_normalization(
    input: Operand,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    name: str | None = None,
) -> jax.Array:
    """Divides each element by a power of the sum of squares over neighboring channels.

    Computes ``x / (bias + alpha * sum of squares) ** beta``.
    """
    del name
    value = as_tensor(input)
    padded = jnp.pad(jnp.square(value), [(0, 0)] * (value.ndim - 1) + [(depth_radius, depth_radius)])
    channels = value.shape[-1]
    window = sum(padded[..., i : i + channels] for i in range(2 * depth_radius + 1))
    return value / (bias + alpha * window) ** beta


@op("nn.embedding_lookup")
def embedding_lookup(params: Operand, ids: Operand, max_norm: Operand = None, name: str | None = None) -> jax.Array:
    """Looks up the embedding vectors with the indices `ids` in a table; limits their norm to `max_norm`."""
    del name
    rows_ = gather(params, ids)
    if max_norm is None:
        return rows_  # type: ignore[no-any-return]
    axes = list(range(as_tensor(ids).ndim, rows_.ndim))
    return clip_by_norm(rows_, max_norm, axes=axes)


@op("nn.space_to_depth")
def space_to_depth(input: Operand, block_size: int, data_format: str = "NHWC", name: str | None = None) -> jax.Array:
    """Merges each block of ``block_size x block_size`` pixels into one pixel with more channels."""
    del name
    value = _channels_last(input, data_format)
    n, h, w, c = value.shape
    b = block_size
    blocks = value.reshape(n, h // b, b, w // b, b, c).transpose(0, 1, 3, 2, 4, 5)
    return _channels_back(blocks.reshape(n, h // b, w // b, b * b * c), data_format)


@op("nn.depth_to_space")
def depth_to_space(input: Operand, block_size: int, data_format: str = "NHWC", name: str | None = None) -> jax.Array:
    """Splits the channels of each pixel into ``block_size x block_size`` pixels: inverts `space_to_depth`."""
    del name
    value = _channels_last(input, data_format)
    n, h, w, c = value.shape
    b = block_size
    blocks = value.reshape(n, h, w, b, b, c // (b * b)).transpose(0, 1, 3, 2, 4, 5)
    return _channels_back(blocks.reshape(n, h * b, w * b, c // (b * b)), data_format)


def _channels_last(input: Operand, data_format: str) -> jax.Array:
    value = as_tensor(input)
    return jnp.moveaxis(value, 1, -1) if data_format == "NCHW" else value


def _channels_back(value: jax.Array, data_format: str) -> jax.Array:
    return jnp.moveaxis(value, -1, 1) if data_format == "NCHW" else value
