"""`tf.nn`: cross entropy and other losses computed from logits."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.custom_derivatives
import jax.numpy as jnp
import numpy as np
import optax

from mirrored._typing import Operand
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.indexing import require_indices
from mirrored.tf._ops.real_numbers import refuse_complex
from mirrored.tf._table import Common, Int, op
from mirrored.values.sparse_rows import without_wrapping


@op("nn.softmax_cross_entropy_with_logits")
def softmax_cross_entropy_with_logits(labels: Common, logits: Common, axis: Int = -1) -> jax.Array:
    """Computes the softmax cross entropy between label probabilities and logits along `axis`.

    Logits of 16 bits are converted to float32 first. The labels of an example should add up to 1; the derivatives are
    TensorFlow's, which assume it: ``softmax(logits) - labels`` with respect to the logits, and
    ``-log_softmax(logits)`` with respect to the labels.
    """
    refuse_complex(labels, logits)
    precise = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return _in_dtype_of(logits, _softmax_cross_entropy(labels.astype(precise.dtype), precise, axis))


def _in_dtype_of(logits: jax.Array, loss: jax.Array) -> jax.Array:
    """Converts a loss to the dtype of the logits if those are floats; otherwise returns the loss unchanged.

    An integer dtype would truncate the loss.
    """
    return loss.astype(logits.dtype) if jnp.issubdtype(logits.dtype, jnp.floating) else loss


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _softmax_cross_entropy(labels: jax.Array, logits: jax.Array, axis: int) -> jax.Array:
    return optax.softmax_cross_entropy(logits, labels, axis=axis)  # type: ignore[no-any-return]


@functools.partial(_softmax_cross_entropy.defjvp, symbolic_zeros=True)
def _softmax_cross_entropy_jvp(
    axis: int, primals: tuple[jax.Array, jax.Array], tangents: tuple[Any, Any]
) -> tuple[jax.Array, jax.Array]:
    """Computes the JVP of softmax cross entropy; skips zero tangents, because zero times infinity would be NaN."""
    labels, logits = primals
    logarithms = jax.nn.log_softmax(logits, axis)
    factors = (-logarithms, jnp.exp(logarithms) - labels)
    value = _softmax_cross_entropy(labels, logits, axis)
    products = [
        jnp.sum(factor * tangent, axis)
        for factor, tangent in zip(factors, tangents, strict=True)
        if not isinstance(tangent, jax.custom_derivatives.SymbolicZero)
    ]
    return value, sum(products, start=jnp.zeros_like(value))


@op("nn.sparse_softmax_cross_entropy_with_logits")
def sparse_softmax_cross_entropy_with_logits(labels: jax.Array, logits: jax.Array) -> jax.Array:
    """Computes the softmax cross entropy between class indices and logits.

    Logits of 16 bits are converted to float32 first. In compiled code and on GPUs, an invalid index gives NaN.

    Raises:
        InvalidArgumentError: The shapes of labels and logits do not match, or an index is out of range, in eager code
            on a CPU.
    """
    refuse_complex(labels, logits)
    if labels.shape != logits.shape[:-1]:
        raise InvalidArgumentError.of(
            "tf.nn.sparse_softmax_cross_entropy_with_logits",
            found=f"the labels have the shape {labels.shape}, the logits {logits.shape}",
            rule="labels must have the shape of the logits without the last axis",
            remedy="squeeze the labels, or use softmax_cross_entropy_with_logits for one-hot labels",
        )
    require_indices("tf.nn.sparse_softmax_cross_entropy_with_logits", labels, logits.shape[-1], "labels")
    # Not optax's function, which subtracts the logarithm of a sum from a logit: large logits lose all digits.
    places = without_wrapping(labels, logits.shape[-1])
    precise = jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
    own = jnp.take_along_axis(precise, places[..., None], axis=-1, mode="fill", fill_value=np.nan)
    return -_in_dtype_of(logits, own[..., 0])


def _check_shapes(called: str, first: str, one: jax.Array, second: str, other: jax.Array) -> None:
    """Raises an error unless two tensors have the same shape, because JAX would broadcast [n, 1] and [n] to [n, n]."""
    if one.shape == other.shape:
        return
    raise InvalidArgumentError.of(
        called,
        found=f"`{first}` has the shape {one.shape}, `{second}` {other.shape}",
        rule=f"`{first}` and `{second}` must have the same shape",
        remedy="reshape one of them, such as labels[:, None]; to broadcast, use tf.broadcast_to",
    )


@op("nn.sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy_with_logits(labels: Common, logits: Common) -> jax.Array:
    """Computes the cross entropy between binary labels and the sigmoid of logits, without overflow.

    Raises:
        InvalidArgumentError: Labels and logits have different shapes.
    """
    refuse_complex(labels, logits)
    _check_shapes("tf.nn.sigmoid_cross_entropy_with_logits", "labels", labels, "logits", logits)
    return optax.sigmoid_binary_cross_entropy(logits, labels)  # type: ignore[no-any-return]


@op("nn.weighted_cross_entropy_with_logits")
def weighted_cross_entropy_with_logits(labels: Common, logits: Common, pos_weight: Operand) -> jax.Array:
    """Computes the sigmoid cross entropy of logits; multiplies the loss of positive labels by `pos_weight`.

    Source: the documentation of `tf.nn.weighted_cross_entropy_with_logits`.

    Raises:
        InvalidArgumentError: Labels and logits have different shapes.
    """
    _check_shapes("tf.nn.weighted_cross_entropy_with_logits", "labels", labels, "logits", logits)
    refuse_complex(labels, logits)
    return (1 - labels) * logits + (1 + (pos_weight - 1) * labels) * jax.nn.softplus(-logits)  # type: ignore[no-any-return]


@op("nn.log_poisson_loss")
def log_poisson_loss(targets: Common, log_input: Common, compute_full_loss: bool = False) -> jax.Array:
    """Computes the Poisson loss ``exp(c) - z * c`` between log predictions c and targets z.

    Optionally adds an approximation of ``ln z!``.

    Raises:
        InvalidArgumentError: Targets and predictions have different shapes.
    """
    _check_shapes("tf.nn.log_poisson_loss", "targets", targets, "log_input", log_input)
    loss = jnp.exp(log_input) - log_input * targets
    if not compute_full_loss:
        return loss
    stirling = targets * jnp.log(targets) - targets + 0.5 * jnp.log(2 * jnp.pi * targets)
    return loss + jnp.where((targets >= 0) & (targets <= 1), 0, stirling)
