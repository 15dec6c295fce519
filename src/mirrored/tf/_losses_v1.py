"""`tf.compat.v1.losses`: loss functions of TensorFlow 1, which return a weighted mean by default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp

from mirrored._typing import Operand
from mirrored.errors import ArgumentError
from mirrored.tape import stop_gradient
from mirrored.tf._ops import kinks
from mirrored.tf._ops import losses as ops_losses
from mirrored.tf._tensors import as_tensor


class Reduction:
    """The ways in which `compute_weighted_loss` combines the weighted losses.

    Attributes:
        NONE: Not at all.
        SUM: Their sum.
        MEAN: Their sum, divided by the sum of the weights.
        SUM_OVER_BATCH_SIZE: Their sum, divided by the number of losses.
        SUM_OVER_NONZERO_WEIGHTS: The same as SUM_BY_NONZERO_WEIGHTS.
        SUM_BY_NONZERO_WEIGHTS: Their sum, divided by the number of weights that are not 0.

    TensorFlow: `tf.compat.v1.losses.Reduction`.
    """

    NONE: Final = "none"
    SUM: Final = "weighted_sum"
    MEAN: Final = "weighted_mean"
    SUM_OVER_BATCH_SIZE: Final = "weighted_sum_over_batch_size"
    SUM_OVER_NONZERO_WEIGHTS: Final = "weighted_sum_by_nonzero_weights"
    SUM_BY_NONZERO_WEIGHTS: Final = "weighted_sum_by_nonzero_weights"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """Returns the string values of all reductions, such as ``"weighted_mean"``, as a tuple."""
        return (cls.NONE, cls.SUM, cls.MEAN, cls.SUM_OVER_BATCH_SIZE, cls.SUM_BY_NONZERO_WEIGHTS)


def compute_weighted_loss(
    losses: Operand,
    weights: Operand = 1.0,
    scope: str | None = None,
    loss_collection: str | None = None,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> jax.Array:
    """Multiplies losses by weights, and combines the weighted losses according to `reduction`.

    Context: any. In replica context it combines the losses of this replica's examples; `tf.nn.compute_average_loss`
    divides by the global batch.

    Args:
        losses: ``f32[batch, ...]``, the losses of examples.
        weights: A scalar, or an array of the same rank whose dimensions are 1 or those of the losses.
        scope: Accepted for compatibility and ignored.
        loss_collection: Accepted for compatibility and ignored: there are no collections.
        reduction: One of `Reduction`.

    Returns:
        A scalar, or for `Reduction.NONE` the weighted losses. 0 if the divisor is 0. It is computed in float32, and has
        the dtype of the losses.

    Raises:
        ArgumentError: `reduction` is not a reduction, or the shape of the weights does not fit.

    Example:
        >>> import mirrored.tf as tf
        >>> float(tf.compat.v1.losses.compute_weighted_loss([1.0, 2.0, 6.0], [1.0, 1.0, 0.0]))
        1.5

    TensorFlow: `tf.compat.v1.losses.compute_weighted_loss`, without collections.
    """
    del scope, loss_collection
    if reduction not in Reduction.all():
        raise ArgumentError(
            "compute_weighted_loss",
            found=f"reduction={reduction!r}",
            rule=f"reduction must be one of {', '.join(Reduction.all())}",
            remedy="pass an attribute of tf.compat.v1.losses.Reduction",
        )
    given = as_tensor(losses)
    values = given.astype(jnp.float32)  # sums of float16 overflow, and counts in bfloat16 are rounded
    factors = _broadcast(as_tensor(weights).astype(jnp.float32), values)
    weighted = values * factors
    if reduction == Reduction.NONE:
        return weighted.astype(given.dtype)
    divisors: dict[str, Any] = {
        Reduction.SUM: 1.0,
        Reduction.MEAN: jnp.sum(factors),
        Reduction.SUM_OVER_BATCH_SIZE: float(weighted.size),
        Reduction.SUM_BY_NONZERO_WEIGHTS: jnp.sum(factors != 0).astype(values.dtype),
    }
    divisor = divisors[reduction]
    # The inner `where` keeps a division by 0 out of the gradient.
    loss = jnp.where(divisor == 0, 0.0, jnp.sum(weighted) / jnp.where(divisor == 0, 1.0, divisor))
    return loss.astype(given.dtype)


def _broadcast(weights: jax.Array, values: jax.Array) -> jax.Array:
    fits = weights.ndim == values.ndim and all(
        mine in (1, theirs) for mine, theirs in zip(weights.shape, values.shape, strict=True)
    )
    if weights.ndim and not fits:
        raise ArgumentError(
            "compute_weighted_loss",
            found=f"weights of shape {weights.shape} for losses of shape {values.shape}",
            rule="weights can not be broadcast to values: they must be a scalar, or have the rank of the losses, and "
            "in each dimension the size 1 or the size of the losses",
            remedy="add the missing dimensions (weights[:, None])",
        )
    return jnp.broadcast_to(weights, values.shape)


# Losses of labels and predictions, each a weighted mean by default.


def _loss(losses: Callable[..., jax.Array], called: str) -> Callable[..., jax.Array]:
    """Creates a TensorFlow 1 loss function, which weights and reduces the elementwise losses that `losses` returns."""
    parameters = list(inspect.signature(losses).parameters)

    def loss(*args: Any, **kwargs: Any) -> jax.Array:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        elements = losses(*(given[one] for one in parameters))
        return compute_weighted_loss(elements, given["weights"], reduction=given["reduction"])

    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [one.replace(kind=place) for one in inspect.signature(losses).parameters.values()]
    required = [one for one in own if one.default is one.empty]
    options = [inspect.Parameter("weights", place, default=1.0), *(one for one in own if one.default is not one.empty)]
    last = {"scope": None, "loss_collection": None, "reduction": Reduction.SUM_BY_NONZERO_WEIGHTS}
    options += [inspect.Parameter(name, place, default=default) for name, default in last.items()]
    signature = inspect.Signature([*required, *options])
    loss.__signature__ = signature  # type: ignore[attr-defined]
    loss.__name__ = loss.__qualname__ = called
    loss.__doc__ = losses.__doc__
    return loss


def _in_float32(labels: Operand, predictions: Operand) -> tuple[jax.Array, jax.Array]:
    """Converts labels and predictions to float32, as TensorFlow does except in cross-entropies of logits."""
    return _pair(labels, as_tensor(predictions).astype(jnp.float32))


def _pair(labels: Operand, predictions: Operand) -> tuple[jax.Array, jax.Array]:
    found, expected = as_tensor(predictions), as_tensor(labels)
    found = found if jnp.issubdtype(found.dtype, jnp.floating) else found.astype(jnp.float32)
    if found.shape != expected.shape:
        raise ArgumentError(
            "tf.compat.v1.losses",
            found=f"labels of shape {expected.shape} and predictions of shape {found.shape}",
            rule="labels and predictions must have one shape",
            remedy="reshape one of them; to broadcast, use tf.reduce_mean of the difference",
        )
    return expected.astype(found.dtype), found


def _absolute_difference(labels: Operand, predictions: Operand) -> jax.Array:
    """Returns the weighted mean of absolute differences."""
    expected, found = _in_float32(labels, predictions)
    return kinks.absolute(found - expected)


def _mean_squared_error(labels: Operand, predictions: Operand) -> jax.Array:
    """Returns the weighted mean of squared differences."""
    expected, found = _in_float32(labels, predictions)
    return jnp.square(found - expected)


def _huber_loss(labels: Operand, predictions: Operand, delta: float = 1.0) -> jax.Array:
    """Returns the weighted mean of Huber's losses: quadratic for errors up to `delta`, linear beyond."""
    expected, found = _in_float32(labels, predictions)
    error = jnp.abs(found - expected)
    quadratic = jnp.minimum(error, delta)
    return 0.5 * jnp.square(quadratic) + delta * (error - quadratic)


def _log_loss(labels: Operand, predictions: Operand, epsilon: float = 1e-7) -> jax.Array:
    """Returns the weighted mean of the cross entropy between labels and probabilities."""
    expected, found = _in_float32(labels, predictions)
    return -expected * jnp.log(found + epsilon) - (1 - expected) * jnp.log(1 - found + epsilon)


def _hinge_loss(labels: Operand, logits: Operand) -> jax.Array:
    """Returns the weighted mean of hinge losses for labels that are 0 or 1."""
    expected, found = _in_float32(labels, logits)
    return jax.nn.relu(1 - (2 * expected - 1) * found)


def _sigmoid_cross_entropy(multi_class_labels: Operand, logits: Operand, label_smoothing: float = 0) -> jax.Array:
    """Returns the weighted mean of the sigmoid cross entropy between the labels and logits of independent classes."""
    expected, found = _pair(multi_class_labels, logits)
    if label_smoothing > 0:
        expected = expected * (1 - label_smoothing) + 0.5 * label_smoothing
    return ops_losses.sigmoid_cross_entropy_with_logits(expected, found)


def _softmax_cross_entropy(onehot_labels: Operand, logits: Operand, label_smoothing: float = 0) -> jax.Array:
    """Returns the weighted mean of the cross entropy between one-hot labels and logits."""
    expected, found = _pair(onehot_labels, logits)
    if label_smoothing > 0:
        expected = expected * (1 - label_smoothing) + label_smoothing / expected.shape[1]
    expected = stop_gradient(expected)
    return ops_losses.softmax_cross_entropy_with_logits(expected, found)


def _sparse_softmax_cross_entropy(labels: Operand, logits: Operand) -> jax.Array:
    """Returns the weighted mean of the cross entropy between class indices and logits."""
    expected, found = as_tensor(labels), as_tensor(logits)
    squeezes = expected.ndim == found.ndim and expected.shape[-1] == 1
    return ops_losses.sparse_softmax_cross_entropy_with_logits(expected[..., 0] if squeezes else expected, found)


NAMES: Final[dict[str, Any]] = {
    "compat.v1.losses.Reduction": Reduction,
    "compat.v1.losses.compute_weighted_loss": compute_weighted_loss,
    **{
        f"compat.v1.losses.{one.__name__.lstrip('_')}": _loss(one, one.__name__.lstrip("_"))
        for one in (
            _absolute_difference, _hinge_loss, _huber_loss, _log_loss, _mean_squared_error, _sigmoid_cross_entropy,
            _softmax_cross_entropy, _sparse_softmax_cross_entropy,
        )
    },
}  # fmt: skip
