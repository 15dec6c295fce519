"""Loss functions whose gradients, summed over replicas, equal the gradients of the global batch's mean loss.

Optimizers sum gradients over replicas. So each replica's loss must be its *part of the global mean*: the sum over its
own examples, divided by the number of examples on all replicas. `average_loss` determines that number.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array
from mirrored._jax.promotion import at_least_float32
from mirrored._typing import Operand
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ArgumentError, ContextError, StructureError
from mirrored.runtime.ambient import ambient
from mirrored.strategies import get_replica_context, get_strategy
from mirrored.strategies.context import total_count
from mirrored.values.distributed_values import PerReplica


def average_loss(per_example: Operand | PerReplica, sample_weight: Operand | PerReplica | None = None) -> jax.Array:
    """Returns this replica's part of the global batch's mean loss; the parts of all replicas add up to the mean.

    The sum of all replicas' parts is the mean, even if per-replica batches differ in size, are empty or are
    padded. No gradient flows through the divisor. A mean over no examples is 0.

    Context: any. In replica context it returns this replica's part. It needs no collective if the divisor is known
    while tracing (compiled, without weights), and otherwise one all-reduce of a single number. In cross-replica
    context, and without a strategy, it returns the mean itself.

    Args:
        per_example: ``f32[examples, ...]``: one loss per example, or one per element of each example (per token). The
            mean is over all elements.
        sample_weight: ``[examples]``, or more of the leading dimensions of `per_example`: weights, or a bool mask that
            is False for padding. The result is the weighted mean: the divisor is the sum of the weights of all
            replicas. An entry of weight 0 contributes exactly 0, even if its loss is NaN or infinite, and its loss gets
            a gradient of exactly 0. The operations that computed the loss can still turn this zero into NaN (0 * inf in
            the derivative of `jnp.log` at 0). Mask their inputs too: ``jnp.log(jnp.where(mask, x, 1.0))``.

    Returns:
        A scalar with the dtype of `per_example`.

    Raises:
        ArgumentError: `per_example` is a scalar.
        ContextError: A per-replica value is passed outside of every scope.
        StructureError: The shape of `sample_weight` is not a prefix of the shape of `per_example`.

    Example:
        >>> import jax.numpy as jnp
        >>> float(average_loss(jnp.array([1.0, 2.0, 6.0])))
        3.0
        >>> float(average_loss(jnp.array([1.0, 3.0, 99.0]), jnp.array([True, True, False])))
        2.0

    TensorFlow: `tf.nn.compute_average_loss` divides by the *local* number of examples times the number of replicas,
    which is wrong for uneven per-replica batches. It ignores weights in the divisor, and counts examples, not elements.
    """
    context = get_replica_context()
    is_per_replica = isinstance(per_example, PerReplica) or isinstance(sample_weight, PerReplica)
    if is_per_replica and context is not None and ambient().replica is None:
        raise ContextError(
            "average_loss",
            found="a per-replica value was passed outside of every scope",
            rule="the strategy whose replicas have the components must be known",
            remedy="call it in `with strategy.scope():`, or in the function passed to strategy.run",
        )
    if context is None and is_per_replica:
        strategy = get_strategy()
        parts = strategy.run(average_loss, args=(per_example, sample_weight))
        mean: jax.Array = strategy.reduce(ReduceOp.SUM, parts, axis=None)
        return mean
    losses = _losses(per_example, "average_loss")
    total, count = _total_and_count(losses, sample_weight)
    if context is not None and context.num_replicas_in_sync > 1:
        count = total_count("average_loss", count, context)
    return _quotient(total, count).astype(losses.dtype)


def compute_average_loss(
    per_example_loss: Operand, sample_weight: Operand | None = None, global_batch_size: Operand | None = None
) -> jax.Array:
    """Divides the sum of a replica's losses by the global batch size, as TensorFlow's function of this name does.

    Context: replica context, or without a strategy.

    Args:
        per_example_loss: ``f32[examples, ...]``.
        sample_weight: ``f32[examples]`` or a scalar; multiplies the losses and does not change the divisor.
        global_batch_size: Default: the number of local examples times the number of replicas, which is correct only
            for even per-replica batches. `average_loss` is correct for all.

    Raises:
        ArgumentError: The loss is a scalar, or the batch size is not a nonnegative integer.
        ContextError: Cross-replica context without `global_batch_size`.
        StructureError: The weights do not broadcast to the losses.

    Example:
        >>> import jax.numpy as jnp
        >>> float(compute_average_loss(jnp.array([1.0, 2.0]), global_batch_size=4))
        0.75

    TensorFlow: `tf.nn.compute_average_loss`.
    """
    losses = _losses(per_example_loss, "compute_average_loss")
    wide = losses.astype(at_least_float32(losses.dtype))
    total = jnp.sum(wide if sample_weight is None else _weighted(wide, _like_tensorflow(wide, sample_weight)))
    if global_batch_size is None:
        _check_replica_context("compute_average_loss")
        global_batch_size = losses.shape[0] * get_strategy().num_replicas_in_sync
    return _quotient(total, _batch_size(global_batch_size)).astype(losses.dtype)


def scale_regularization_loss(regularization_loss: Operand) -> jax.Array:
    """Divides the sum of a regularization loss by the number of replicas, because gradients are summed over replicas.

    Context: replica context, or without a strategy.

    Args:
        regularization_loss: ``f32[...]``, equal on every replica.

    Raises:
        ContextError: Cross-replica context.

    Example:
        >>> import jax.numpy as jnp
        >>> float(scale_regularization_loss(jnp.array([3.0])))
        3.0

    TensorFlow: `tf.nn.scale_regularization_loss`.
    """
    _check_replica_context("scale_regularization_loss")
    losses = _floating(regularization_loss)
    wide = losses.astype(at_least_float32(losses.dtype))
    return (jnp.sum(wide) / get_strategy().num_replicas_in_sync).astype(losses.dtype)


def _losses(per_example: Operand, called: str) -> jax.Array:
    losses = _floating(per_example)
    if losses.ndim == 0:
        raise ArgumentError(
            called,
            found="per_example is a scalar",
            rule="there must be one loss per example, so that the examples can be counted",
            remedy="do not reduce the losses of a batch (Reduction.NONE), or divide by the global batch size",
        )
    return losses


def _floating(value: Operand) -> jax.Array:
    array = as_array(value)
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.result_type(float))


def _total_and_count(losses: jax.Array, sample_weight: Operand | None) -> tuple[jax.Array, Any]:
    """Returns the sum of the losses and their count; with weights, the weighted sum and the sum of the weights."""
    wide = at_least_float32(losses.dtype)
    if sample_weight is None:
        return jnp.sum(losses.astype(wide)), losses.size
    weights = as_array(sample_weight)
    if weights.shape != losses.shape[: weights.ndim]:
        raise StructureError(
            "average_loss",
            found=f"sample_weight of shape {weights.shape} for per_example of shape {losses.shape}",
            rule="the shape of the weights must be a prefix of the shape of the losses",
            remedy="pass one weight per example: sample_weight.reshape(per_example.shape[:1])",
        )
    repeats = math.prod(losses.shape[weights.ndim :])
    weights = weights.astype(wide)
    spread = weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
    return jnp.sum(_weighted(losses.astype(wide), spread)), jax.lax.stop_gradient(jnp.sum(weights)) * float(repeats)


def _weighted(losses: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the losses times their weights. A weight of 0 gives 0, with a gradient of 0, even for a loss of NaN.

    The weight keeps its derivative, so that a trained weight can move away from 0.
    """
    masked = weights == 0
    # Replaced before the product: 0 * NaN is NaN, in the forward and in the backward pass.
    known = jnp.where(masked & ~jnp.isfinite(losses), 0, losses)
    return jnp.where(masked, jax.lax.stop_gradient(known), known) * weights


def _quotient(total: jax.Array, count: int | jax.Array) -> jax.Array:
    """Returns `total / count`; 0, with a gradient of 0, if `count` is 0."""
    if isinstance(count, int):
        if count:
            return total / float(count)  # JAX takes no int of 2**31 or more
        # Traced division: a replica without examples then has gradients of 0 instead of no gradients.
        count = as_array(count)
    empty = count == 0
    return jnp.where(empty, 0, total / jnp.where(empty, 1, count).astype(total.dtype))


def _like_tensorflow(losses: jax.Array, sample_weight: Operand) -> jax.Array:
    """Reshapes weights like TensorFlow: drops or adds a last dimension of 1 to match the rank of the losses."""
    weights = as_array(sample_weight).astype(losses.dtype)
    if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    elif 0 < weights.ndim == losses.ndim - 1:
        weights = weights[..., None]
    try:
        fits = np.broadcast_shapes(weights.shape, losses.shape) == losses.shape
    except ValueError:
        fits = False
    if not fits:
        raise StructureError(
            "compute_average_loss",
            found=f"sample_weight of shape {weights.shape} for per_example_loss of shape {losses.shape}",
            rule="the weights must broadcast to the shape of the losses",
            remedy="pass one weight per example",
        )
    return weights


def _batch_size(given: Operand) -> Any:
    integral = np.ndim(given) == 0 and jnp.issubdtype(jnp.result_type(given), jnp.integer)
    if not integral or (isinstance(given, int | np.integer) and given < 0):
        raise ArgumentError(
            "compute_average_loss",
            found=f"global_batch_size={given!r}",
            rule="a batch size must be a nonnegative integer",
            remedy="pass the number of examples on all replicas, or omit it",
        )
    return int(given) if isinstance(given, int | np.integer) else as_array(given)


def _check_replica_context(called: str) -> None:
    if get_replica_context() is None:
        raise ContextError(
            called,
            found="it was called in cross-replica context",
            rule="each replica must scale its own loss, in replica context",
            remedy=f"call {called} in the function passed to strategy.run",
        )
