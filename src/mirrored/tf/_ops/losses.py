"""`tf.nn`: cross entropy and other losses computed from logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import Operand
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._table import op, reported, tensors
from mirrored.tf._tensors import as_tensor


@op("nn.softmax_cross_entropy_with_logits")
def softmax_cross_entropy_with_logits(labels: Operand, logits: Operand, axis: int = -1) -> jax.Array:
    """Computes the softmax cross entropy between label probabilities and logits along `axis`."""
    true, scores = tensors(labels, logits)
    with reported("tf.nn.softmax_cross_entropy_with_logits", [true, scores]):
        return -jnp.sum(true * jax.nn.log_softmax(scores, axis=axis), axis=axis)


@op("nn.sparse_softmax_cross_entropy_with_logits")
def sparse_softmax_cross_entropy_with_logits(labels: Operand, logits: Operand) -> jax.Array:
    """Computes the softmax cross entropy between class indices and logits; invalid indices give NaN.

    Raises:
        InvalidArgumentError: The shapes of labels and logits do not match.
    """
    true, scores = as_tensor(labels), as_tensor(logits)
    if true.shape != scores.shape[:-1]:
        raise InvalidArgumentError.of(
            "tf.nn.sparse_softmax_cross_entropy_with_logits",
            found=f"the labels have the shape {true.shape}, the logits {scores.shape}",
            rule="labels must have the shape of the logits without the last axis",
            remedy="squeeze the labels, or use softmax_cross_entropy_with_logits for one-hot labels",
        )
    own = jnp.take_along_axis(jax.nn.log_softmax(scores), true[..., None], axis=-1, mode="fill", fill_value=np.nan)
    return -own[..., 0]


@op("nn.sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy_with_logits(labels: Operand = None, logits: Operand = None) -> jax.Array:
    """Computes the cross entropy between binary labels and the sigmoid of logits, without overflow.

    Source: the documentation of `tf.nn.sigmoid_cross_entropy_with_logits`: max(x, 0) - x z + log(1 + exp(-|x|)).
    """
    true, scores = tensors(labels, logits)
    with reported("tf.nn.sigmoid_cross_entropy_with_logits", [true, scores]):
        return jax.nn.relu(scores) - scores * true + jnp.log1p(jnp.exp(-jnp.abs(scores)))


@op("nn.weighted_cross_entropy_with_logits")
def weighted_cross_entropy_with_logits(labels: Operand, logits: Operand, pos_weight: Operand) -> jax.Array:
    """Computes the sigmoid cross entropy of logits; multiplies the loss of positive labels by `pos_weight`.

    Source: the documentation of `tf.nn.weighted_cross_entropy_with_logits`.
    """
    true, scores = tensors(labels, logits)
    weight = 1 + (as_tensor(pos_weight) - 1) * true
    return (1 - true) * scores + weight * (jnp.log1p(jnp.exp(-jnp.abs(scores))) + jax.nn.relu(-scores))


@op("nn.log_poisson_loss")
def log_poisson_loss(targets: Operand, log_input: Operand, compute_full_loss: bool = False) -> jax.Array:
    """Computes the Poisson loss ``exp(c) - z * c`` between log predictions c and targets z.

    Optionally adds an approximation of ``ln z!``.
    """
    true, scores = tensors(targets, log_input)
    loss = jnp.exp(scores) - scores * true
    if not compute_full_loss:
        return loss
    stirling = true * jnp.log(true) - true + 0.5 * jnp.log(2 * jnp.pi * true)
    return loss + jnp.where((true >= 0) & (true <= 1), 0, stirling)
