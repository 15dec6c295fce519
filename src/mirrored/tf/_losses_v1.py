"""`tf.compat.v1.losses`: a weighted mean of losses, as programs of TensorFlow 1 compute it."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp

from mirrored._typing import Operand
from mirrored.errors import ArgumentError
from mirrored.tf._tensors import as_tensor


class Reduction:
    """How `compute_weighted_loss` combines the weighted losses.

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
        """Returns all reductions."""
        return (cls.NONE, cls.SUM, cls.MEAN, cls.SUM_OVER_BATCH_SIZE, cls.SUM_BY_NONZERO_WEIGHTS)


def compute_weighted_loss(
    losses: Operand,
    weights: Operand = 1.0,
    scope: str | None = None,
    loss_collection: str | None = None,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> jax.Array:
    """Multiplies losses by weights, and combines them.

    Context: any. In replica context it combines the losses of this replica's examples; `tf.nn.compute_average_loss`
    divides by the global batch.

    Args:
        losses: ``f32[batch, ...]``, the losses of examples.
        weights: A scalar, or an array of the same rank whose dimensions are 1 or those of the losses.
        scope: Accepted for compatibility and ignored.
        loss_collection: Accepted for compatibility and ignored: there are no collections.
        reduction: One of `Reduction`.

    Returns:
        A scalar, or for `Reduction.NONE` the weighted losses. 0 if the divisor is 0.

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
    values = as_tensor(losses)
    values = values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(jnp.float32)
    factors = _broadcast(as_tensor(weights).astype(values.dtype), values)
    weighted = values * factors
    if reduction == Reduction.NONE:
        return weighted
    divisors: dict[str, Any] = {
        Reduction.SUM: 1.0,
        Reduction.MEAN: jnp.sum(factors),
        Reduction.SUM_OVER_BATCH_SIZE: float(weighted.size),
        Reduction.SUM_BY_NONZERO_WEIGHTS: jnp.sum(factors != 0).astype(values.dtype),
    }
    divisor = divisors[reduction]
    # The inner `where` keeps a division by 0 out of the gradient.
    return jnp.where(divisor == 0, 0.0, jnp.sum(weighted) / jnp.where(divisor == 0, 1.0, divisor))


def _broadcast(weights: jax.Array, values: jax.Array) -> jax.Array:
    fits = weights.ndim == values.ndim and all(
        mine in (1, theirs) for mine, theirs in zip(weights.shape, values.shape, strict=True)
    )
    if weights.ndim and not fits:
        raise ArgumentError(
            "compute_weighted_loss",
            found=f"weights of shape {weights.shape} for losses of shape {values.shape}",
            rule="weights can not be broadcast to values: they must be a scalar, or have the rank of the losses and in "
            "each dimension the size 1 or theirs",
            remedy="add the missing dimensions (weights[:, None])",
        )
    return jnp.broadcast_to(weights, values.shape)


NAMES: Final = {
    "compat.v1.losses.Reduction": Reduction,
    "compat.v1.losses.compute_weighted_loss": compute_weighted_loss,
}
