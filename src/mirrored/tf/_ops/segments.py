"""`tf.math.segment_*` and `unsorted_segment_*`: reductions over the rows of each segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.indexing import require_indices, require_prefix
from mirrored.tf._ops.real_numbers import of_reals
from mirrored.tf._static import static_int
from mirrored.tf._table import op
from mirrored.values.index_checks import values_now


def _segments(called: str, reduce: Callable[..., jax.Array], *, in_order: bool) -> None:
    """Defines the operation `called`, which reduces the rows of each segment by the function `reduce`."""

    def run(data: jax.Array, segment_ids: jax.Array, num_segments: SupportsIndex | None = None) -> jax.Array:
        require_prefix(f"tf.math.{called}", "segment_ids", segment_ids, "data", data)
        count = jnp.max(segment_ids, initial=-1) + 1 if num_segments is None else num_segments
        total = static_int(count, called=f"tf.math.{called}", argument="num_segments")
        (_check_order if in_order else _check_range)(f"tf.math.{called}", segment_ids, total)
        flat, ids = data.reshape((-1,) + data.shape[segment_ids.ndim :]), segment_ids.reshape(-1)
        return reduce(flat, ids, total)

    run.__name__ = run.__qualname__ = called
    run.__doc__ = f"Computes `tf.math.{called}`: a reduction over the rows of each segment."
    op(f"math.{called}")(run)


def _check_range(called: str, ids: jax.Array, count: int) -> None:
    """Raises an error if a segment id is too large; accepts negative ids, whose rows are dropped as in TensorFlow."""
    require_indices(called, jnp.maximum(ids, 0), count, "segment_ids")


def _check_order(called: str, ids: jax.Array, count: int) -> None:
    require_indices(called, ids, count, "segment_ids")
    values = values_now(ids)
    if values is not None and (np.diff(values) < 0).any():
        raise InvalidArgumentError.of(
            called,
            found=f"`segment_ids` are not in ascending order: {np.array2string(values, threshold=10)}",
            rule="the rows of a segment must follow each other, in the order of the segments",
            remedy=f"sort the rows by segment, or use {called.replace('segment', 'unsorted_segment')}",
        )


def _sizes(data: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    """Returns the number of rows of each segment as int32, shaped to broadcast against the reduced data."""
    # Not in the dtype of the data, in which the number could wrap around.
    return jax.ops.segment_sum(jnp.ones((ids.size,) + (1,) * (data.ndim - 1), jnp.int32), ids, count)


def _divisors(data: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    """Returns the number of rows of each segment, at least 1, in the dtype of the data; in float32 for integers."""
    dtype = data.dtype if jnp.issubdtype(data.dtype, jnp.inexact) else jnp.float32
    return jnp.maximum(_sizes(data, ids, count), 1).astype(dtype)


def _mean(data: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    return jax.ops.segment_sum(data, ids, count) / _divisors(data, ids, count)


def _mean_of_dtype(data: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    """Computes the mean of each segment; means of integers are integers, rounded towards zero."""
    if data.dtype.kind not in "iu":
        return _mean(data, ids, count)
    total = jax.ops.segment_sum(data, ids, count)
    # The common type of uint32 and int32 is int64, which is int32 without x64.
    wide = total.dtype if total.dtype.itemsize >= 4 else jnp.int32
    sizes = jnp.broadcast_to(jnp.maximum(_sizes(data, ids, count), 1), total.shape)
    return lax.div(total.astype(wide), sizes.astype(wide)).astype(total.dtype)


def _sqrt_n(data: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    return jax.ops.segment_sum(data, ids, count) / jnp.sqrt(_divisors(data, ids, count))


@jax.custom_jvp
def _product(data: jax.Array, ids: jax.Array, empty: jax.Array) -> jax.Array:
    """Computes the product of the rows of each segment; `empty` is an array of ones with the shape of the result."""
    return jax.ops.segment_prod(data, ids, empty.shape[0])


@_product.defjvp
def _product_jvp(
    primals: tuple[jax.Array, jax.Array, jax.Array], tangents: tuple[jax.Array, object, object]
) -> tuple[jax.Array, jax.Array]:
    """Computes the JVP of segment products, where a row's derivative is the product of the segment's other rows.

    JAX has no derivative of a product over repeated indices.
    """
    data, ids, empty = primals
    zero = data == 0
    factors = jnp.where(zero, 1, data)
    rest = _product(factors, ids, empty)
    zeros = jax.ops.segment_sum(zero.astype(jnp.int32), ids, empty.shape[0])
    known = jnp.clip(ids, 0, empty.shape[0] - 1)
    others = jnp.where(zero, rest[known], jnp.where(zeros[known] > 0, 0, rest[known] / factors))
    change = jnp.where(zeros[known] > 1, 0, others) * tangents[0]
    return _product(data, ids, empty), jax.ops.segment_sum(change, ids, empty.shape[0])


def _prod(data: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    return _product(data, ids, jnp.ones((count, *data.shape[1:]), data.dtype))


def _filled(reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Wraps a segment reduction to return 0 for segments without rows."""

    def run(data: jax.Array, ids: jax.Array, count: int) -> jax.Array:
        result = reduce(data, ids, count)
        return jnp.where(_sizes(data, ids, count) > 0, result, jnp.zeros((), result.dtype))

    return run


def _finite(reduce: Callable[..., jax.Array], side: str) -> Callable[..., jax.Array]:
    """Wraps a segment maximum (minimum) to return the lowest (highest) finite value instead of -inf (inf)."""

    def run(data: jax.Array, ids: jax.Array, count: int) -> jax.Array:
        result = reduce(data, ids, count)
        if not jnp.issubdtype(result.dtype, jnp.floating):
            return result
        infinite = -jnp.inf if side == "min" else jnp.inf
        limit = jnp.asarray(getattr(jnp.finfo(result.dtype), side), result.dtype)  # type: ignore[no-untyped-call]
        return jnp.where(result == infinite, limit, result)

    return run


_IN_ORDER: Final[dict[str, Callable[..., jax.Array]]] = {
    "sum": jax.ops.segment_sum,
    "prod": _prod,
    "mean": _mean_of_dtype,
    "max": _filled(of_reals(jax.ops.segment_max)),
    "min": _filled(of_reals(jax.ops.segment_min)),
}
_UNSORTED: Final[dict[str, Callable[..., jax.Array]]] = {
    "sum": jax.ops.segment_sum,
    "prod": _prod,
    "mean": _mean,
    "sqrt_n": _sqrt_n,
    "max": _finite(of_reals(jax.ops.segment_max), "min"),
    "min": _finite(of_reals(jax.ops.segment_min), "max"),
}
for _called, _reduce in _IN_ORDER.items():
    _segments(f"segment_{_called}", _reduce, in_order=True)
for _called, _reduce in _UNSORTED.items():
    _segments(f"unsorted_segment_{_called}", _reduce, in_order=False)
