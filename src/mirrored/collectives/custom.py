"""Custom reductions of the library: reductions that are robust against outliers, and Adasum."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Median(ReduceOp):
    """The element-wise median over replicas. For an even number, it is the mean of the middle two.

    Source: coordinate-wise median, D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-robust distributed
    learning: towards optimal statistical rates", ICML 2018.

    Example:
        >>> import jax.numpy as jnp
        >>> Median()(jnp.asarray([[1.0, 2.0], [3.0, 4.0], [100.0, -100.0]])).tolist()
        [3.0, 2.0]
    """

    def __call__(self, per_replica: Any) -> Any:
        """Reduces over axis 0, and keeps the dtype of the components."""
        return jnp.median(per_replica, axis=0).astype(per_replica.dtype)


@dataclasses.dataclass(frozen=True)
class TrimmedMean(ReduceOp):
    """The element-wise mean over replicas without the `k` smallest and the `k` largest values.

    Args:
        k: The number of values to omit on either side; less than half of the replicas.

    Raises:
        ArgumentError: `k` is negative, or, when the reduction runs, `k` omits all values.

    Source: coordinate-wise trimmed mean, D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-robust distributed
    learning: towards optimal statistical rates", ICML 2018.

    Example:
        >>> import jax.numpy as jnp
        >>> TrimmedMean(1)(jnp.asarray([1.0, 2.0, 4.0, 100.0])).tolist()
        3.0
    """

    k: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 0:
            raise ArgumentError(
                "TrimmedMean",
                found=f"k={self.k!r}",
                rule="k is the number of values to omit on either side, an integer of 0 or more",
                remedy="pass such an integer, for instance TrimmedMean(1)",
            )

    def __call__(self, per_replica: Any) -> Any:
        """Reduces over axis 0, and keeps the dtype of the components."""
        count = per_replica.shape[0]
        if 2 * self.k >= count:
            raise ArgumentError(
                "TrimmedMean",
                found=f"k={self.k} for {count} replicas",
                rule="at least one value remains after omitting k values on either side",
                remedy=f"use a k of at most {(count - 1) // 2}, or more replicas",
            )
        kept = jnp.sort(per_replica, axis=0)[self.k : count - self.k]
        return jnp.mean(kept, axis=0).astype(per_replica.dtype)


@dataclasses.dataclass(frozen=True)
class Adasum(ReduceOp):
    """Adaptive summation: adds the orthogonal parts of gradients and averages their parallel parts.

    Two gradients a and b become ``(1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b``: their sum if they are orthogonal,
    their mean if they are equal. A balanced tree over replicas combines more than two. Each array is treated as a
    separate vector.

    Source: S. Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021, section 3.

    Example:
        >>> import jax.numpy as jnp
        >>> Adasum()(jnp.asarray([[1.0, 0.0], [0.0, 1.0]])).tolist()
        [1.0, 1.0]
        >>> Adasum()(jnp.asarray([[1.0, 0.0], [1.0, 0.0]])).tolist()
        [1.0, 0.0]
    """

    def __call__(self, per_replica: Any) -> Any:
        """Reduces over axis 0. Dot products use at least float32."""
        values = list(per_replica.astype(jnp.promote_types(per_replica.dtype, jnp.float32)))
        while len(values) > 1:
            paired = [_adasum(one, other) for one, other in zip(values[::2], values[1::2], strict=False)]
            values = paired + values[len(paired) * 2 :]
        return values[0].astype(per_replica.dtype)


def _adasum(one: Any, other: Any) -> Any:
    shared = jnp.real(jnp.vdot(one, other))
    return (1 - _half_of(shared, one)) * one + (1 - _half_of(shared, other)) * other


def _half_of(shared: Any, vector: Any) -> Any:
    """Returns the fraction of `vector` to subtract, or 0 if `vector` is zero."""
    squared = jnp.real(jnp.vdot(vector, vector))
    return jnp.where(squared > 0, shared / (2 * jnp.where(squared > 0, squared, 1)), 0)
