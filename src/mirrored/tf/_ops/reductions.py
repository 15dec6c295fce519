"""`tf.reduce_*`, `cumsum`, `argmax`, `sort`, `top_k`, `bincount` and similar operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._typing import DTypeLike, Operand, StaticInts
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._static import static_axis, static_int
from mirrored.tf._table import op, reported, rows
from mirrored.tf._tensors import as_tensor
from mirrored.values.sparse_rows import without_wrapping


def _sum(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    return jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _prod(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    return jnp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    """Computes the mean; integers stay integers and round towards zero, as in TensorFlow."""
    if x.dtype.kind not in "iu":
        return jnp.mean(x, axis=axis, keepdims=keepdims)
    total = jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
    return lax.div(total, jnp.full_like(total, x.size // max(total.size, 1)))


def _norm(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.real(x * jnp.conj(x)), axis=axis, keepdims=keepdims))


_REDUCED = "input_tensor>a axis=None keepdims=False"
_OWN = "input_tensor axis=None keepdims=False"

rows(
    {
        "math.reduce_all reduce_all": (_REDUCED, jnp.all),
        "math.reduce_any reduce_any": (_REDUCED, jnp.any),
        "math.reduce_euclidean_norm": (_OWN, _norm),
        "math.reduce_logsumexp reduce_logsumexp": (_REDUCED, jax.nn.logsumexp),
        "math.reduce_max reduce_max": (_REDUCED, jnp.max),
        "math.reduce_mean reduce_mean": (_OWN, _mean),
        "math.reduce_min reduce_min": (_REDUCED, jnp.min),
        "math.reduce_prod reduce_prod": (_OWN, _prod),
        "math.reduce_std": (_REDUCED, jnp.std),
        "math.reduce_sum reduce_sum": (_OWN, _sum),
        "math.reduce_variance": (_REDUCED, jnp.var),
    }
)


@op("math.argmax argmax", on_host=True)
def argmax(input: Operand, axis: SupportsIndex | None = None, output_type: DTypeLike = "int64") -> jax.Array:
    """Returns the index of the largest element along `axis`, of the first one if several are equal."""
    where = 0 if axis is None else static_int(axis, called="tf.argmax", argument="axis")
    return jnp.argmax(as_tensor(input), axis=where).astype(array_dtype(output_type))


@op("math.argmin argmin", on_host=True)
def argmin(input: Operand, axis: SupportsIndex | None = None, output_type: DTypeLike = "int64") -> jax.Array:
    """Returns the index of the smallest element along `axis`, of the first one if several are equal."""
    where = 0 if axis is None else static_int(axis, called="tf.argmin", argument="axis")
    return jnp.argmin(as_tensor(input), axis=where).astype(array_dtype(output_type))


@op("math.count_nonzero")
def count_nonzero(
    input: Operand, axis: StaticInts | None = None, keepdims: bool | None = None, dtype: DTypeLike = "int64"
) -> jax.Array:
    """Counts the nonzero elements of a tensor, over all axes or given ones."""
    where = static_axis(axis, called="tf.math.count_nonzero")
    return jnp.count_nonzero(as_tensor(input), axis=where, keepdims=bool(keepdims)).astype(array_dtype(dtype))


def _scan(
    called: str,
    run: Callable[..., jax.Array],
    neutral: float,
    x: Operand,
    axis: SupportsIndex,
    exclusive: bool,
    reverse: bool,
) -> jax.Array:
    value = as_tensor(x)
    where = static_int(axis, called=called, argument="axis")
    with reported(called, [value]):
        value = jnp.flip(value, where) if reverse else value
        if exclusive:
            edge = jnp.full_like(lax.slice_in_dim(value, 0, 1, axis=where), neutral)
            value = jnp.concatenate([edge, lax.slice_in_dim(value, 0, value.shape[where] - 1, axis=where)], axis=where)
        value = run(value, axis=where)
        return jnp.flip(value, where) if reverse else value


def _cumulative_sum(value: jax.Array, axis: int) -> jax.Array:
    return jnp.cumsum(value, axis=axis, dtype=value.dtype)


def _cumulative_product(value: jax.Array, axis: int) -> jax.Array:
    return jnp.cumprod(value, axis=axis, dtype=value.dtype)


def _cumulative_logsumexp(value: jax.Array, axis: int) -> jax.Array:
    return lax.cumlogsumexp(value, axis=axis % value.ndim)


@op("math.cumsum cumsum")
def cumsum(x: Operand, axis: SupportsIndex = 0, exclusive: bool = False, reverse: bool = False) -> jax.Array:
    """Computes the cumulative sum of a tensor along `axis`."""
    return _scan("tf.cumsum", _cumulative_sum, 0, x, axis, exclusive, reverse)


@op("math.cumprod")
def cumprod(x: Operand, axis: SupportsIndex = 0, exclusive: bool = False, reverse: bool = False) -> jax.Array:
    """Computes the cumulative product of a tensor along `axis`."""
    return _scan("tf.math.cumprod", _cumulative_product, 1, x, axis, exclusive, reverse)


@op("math.cumulative_logsumexp")
def cumulative_logsumexp(
    x: Operand, axis: SupportsIndex = 0, exclusive: bool = False, reverse: bool = False
) -> jax.Array:
    """Computes the cumulative log-sum-exp of a tensor along `axis`."""
    return _scan("tf.math.cumulative_logsumexp", _cumulative_logsumexp, -jnp.inf, x, axis, exclusive, reverse)


@op("sort")
def sort(values: Operand, axis: SupportsIndex = -1, direction: str = "ASCENDING") -> jax.Array:
    """Sorts the elements of a tensor along `axis`."""
    where = static_int(axis, called="tf.sort", argument="axis")
    return jnp.sort(as_tensor(values), axis=where, descending=_descends(direction))


@op("argsort")
def argsort(values: Operand, axis: SupportsIndex = -1, direction: str = "ASCENDING", stable: bool = False) -> jax.Array:
    """Returns the indices that sort a tensor along `axis`; equal elements keep their order."""
    del stable
    where = static_int(axis, called="tf.argsort", argument="axis")
    return jnp.argsort(as_tensor(values), axis=where, descending=_descends(direction)).astype(jnp.int32)


def _descends(direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"Argument `direction` should be one of 'ASCENDING' or 'DESCENDING'. Received: {direction!r}")
    return direction == "DESCENDING"


class TopK(NamedTuple):
    """The result of `tf.math.top_k`: the largest values and their indices."""

    values: jax.Array
    indices: jax.Array


@op("math.top_k nn.top_k")
def top_k(input: Operand, k: SupportsIndex = 1, sorted: bool = True, index_type: DTypeLike = "int32") -> TopK:
    """Returns the `k` largest values along the last axis, in descending order, and their indices."""
    del sorted
    values, indices = lax.top_k(as_tensor(input), static_int(k, called="tf.math.top_k", argument="k"))
    return TopK(values, indices.astype(array_dtype(index_type)))


@op("math.in_top_k nn.in_top_k")
def in_top_k(targets: Operand, predictions: Operand, k: Operand) -> jax.Array:
    """Returns for each example whether the target class is among the `k` classes with the highest predictions.

    A class tied with the k-th one counts as among them.
    """
    scores, wanted = as_tensor(predictions), as_tensor(targets)
    own = jnp.take_along_axis(scores, wanted[:, None], axis=1)
    return jnp.isfinite(own[:, 0]) & (jnp.sum(scores > own, axis=1) < k)  # type: ignore[no-any-return]


@op("math.bincount")
def bincount(
    arr: Operand,
    weights: Operand | None = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: DTypeLike = "int32",
    axis: SupportsIndex | None = None,
    binary_output: bool = False,
) -> jax.Array:
    """Counts how often each integer occurs in a tensor, or sums weights for each integer.

    Inside `tf.function`, pass the same value as `minlength` and `maxlength`: the length is a shape.
    """
    values = as_tensor(arr)
    length = None if minlength is None or minlength != maxlength else int(maxlength)
    if length is None:
        length = int(jnp.max(values, initial=-1)) + 1
        length = max(length, int(minlength or 0))
        length = length if maxlength is None else min(length, int(maxlength))
    one = jax.nn.one_hot(values, length, dtype=array_dtype(dtype) if weights is None else as_tensor(weights).dtype)
    if weights is not None:
        one = one * as_tensor(weights)[..., None]
    counted = one.reshape(-1, length).sum(0) if axis is None else jnp.sum(one, axis=-2)
    return jnp.minimum(counted, 1) if binary_output else counted


@op("math.confusion_matrix")
def confusion_matrix(
    labels: Operand,
    predictions: Operand,
    num_classes: SupportsIndex | None = None,
    weights: Operand | None = None,
    dtype: DTypeLike = "int32",
) -> jax.Array:
    """Returns the matrix of the numbers of examples with each label (row) and prediction (column).

    Inside `tf.function`, pass `num_classes`.
    """
    true, guessed = as_tensor(labels).reshape(-1), as_tensor(predictions).reshape(-1)
    size = int(num_classes) if num_classes is not None else int(jnp.maximum(true.max(), guessed.max())) + 1
    amount = (
        jnp.ones(true.shape, array_dtype(dtype)) if weights is None else as_tensor(weights).astype(array_dtype(dtype))
    )
    places = without_wrapping(true, size), without_wrapping(guessed, size)
    return jnp.zeros((size, size), array_dtype(dtype)).at[places].add(amount, mode="drop")


@op("math.zero_fraction nn.zero_fraction")
def zero_fraction(value: Operand) -> jax.Array:
    """Returns the fraction of a tensor's elements that are zero."""
    return jnp.mean(as_tensor(value) == 0, dtype=jnp.float32)


@op("histogram_fixed_width")
def histogram_fixed_width(
    values: Operand, value_range: Operand, nbins: Operand = 100, dtype: DTypeLike = "int32"
) -> jax.Array:
    """Counts the values in `nbins` bins of equal width, into which a range of values is divided.

    The first and last bins include values outside of the range.
    """
    bins = histogram_fixed_width_bins(values, value_range, nbins).reshape(-1)
    return jnp.zeros(int(nbins), array_dtype(dtype)).at[bins].add(1)


@op("histogram_fixed_width_bins")
def histogram_fixed_width_bins(
    values: Operand, value_range: Operand, nbins: Operand = 100, dtype: DTypeLike = "int32"
) -> jax.Array:
    """Returns for each value the index of the bin in which `histogram_fixed_width` counts it."""
    tensor, (low, high) = as_tensor(values), as_tensor(value_range)
    scaled = (tensor - low) / (high - low) * nbins
    return jnp.clip(jnp.floor(scaled), 0, nbins - 1).astype(array_dtype(dtype))


@op("searchsorted")
def searchsorted(
    sorted_sequence: Operand, values: Operand, side: str = "left", output_type: DTypeLike = "int32"
) -> jax.Array:
    """Returns the indices at which values can be inserted into a sorted sequence to keep it sorted.

    Sequence and values are along the last axis.
    """
    haystack, needles = as_tensor(sorted_sequence), as_tensor(values)

    def search(a: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.searchsorted(a, v, side=side)

    for _ in range(haystack.ndim - 1):
        search = jax.vmap(search)
    return search(haystack, needles).astype(array_dtype(output_type))
