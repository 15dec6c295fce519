"""`tf.reduce_*`, `cumsum`, `argmax`, `sort`, `top_k`, `bincount` and similar operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.lib.array_utils import normalize_axis_tuple

from mirrored._jax.traces import Tracer
from mirrored._typing import DTypeLike, Operand
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.indexing import require_indices, require_prefix
from mirrored.tf._ops.real_numbers import of_reals, refuse_complex
from mirrored.tf._static import known_elements
from mirrored.tf._table import Axes, Int, op, rows
from mirrored.tf._tensors import as_tensor
from mirrored.values.index_checks import values_now
from mirrored.values.sparse_rows import without_wrapping


def _check_numbers(x: jax.Array) -> None:
    if x.dtype.kind == "b":
        raise TypeError("booleans have no sum, product or mean: convert them with tf.cast(x, tf.float32)")


def check_axes(x: jax.Array, axis: int | tuple[int, ...] | None) -> None:
    """Raises an error if an axis is out of range for an array.

    Raises:
        numpy.exceptions.AxisError: An axis is out of range.
    """
    if axis is not None:
        normalize_axis_tuple(axis, x.ndim)


def _sum(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    _check_numbers(x)
    return jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _prod(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    _check_numbers(x)
    return jnp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    """Computes the mean; the mean of integers is an integer, rounded towards zero, as in TensorFlow."""
    _check_numbers(x)
    check_axes(x, axis)
    if x.dtype.kind not in "iu":
        return jnp.mean(x, axis=axis, keepdims=keepdims)
    # The sum can exceed the dtype. So quotients and remainders by the count are summed apart, in 32 bits or more.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.uint32 if x.dtype.kind == "u" else jnp.int32))
    add = functools.partial(jnp.sum, axis=axis, keepdims=keepdims, dtype=wide.dtype)
    count = max(x.size // max(jax.eval_shape(add, wide).size, 1), 1)
    divisor = jnp.asarray(count, wide.dtype)
    rest = add(wide % divisor)
    mean = add(wide // divisor) + rest // divisor  # rounded down
    return jnp.where((mean < 0) & (rest % divisor != 0), mean + 1, mean).astype(x.dtype)


def _max(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    """Computes the maximum over axes; the maximum of no elements is the lowest value of the dtype."""
    refuse_complex(x)
    return jnp.max(x, axis=axis, keepdims=keepdims, **_initial(x, lowest=True))


def _min(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    """Computes the minimum over axes; the minimum of no elements is the highest value of the dtype."""
    refuse_complex(x)
    return jnp.min(x, axis=axis, keepdims=keepdims, **_initial(x, lowest=False))


def _initial(x: jax.Array, *, lowest: bool) -> dict[str, Any]:
    """Returns the keyword ``{"initial": value}`` for the minimum or maximum of an empty array; {} for other arrays."""
    if 0 not in x.shape:
        return {}
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        return {"initial": x.dtype.type(limits.min if lowest else limits.max)}
    return {"initial": not lowest if x.dtype.kind == "b" else -jnp.inf if lowest else jnp.inf}


def _norm(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    found = jnp.sqrt(jnp.sum(jnp.real(x * jnp.conj(x)), axis=axis, keepdims=keepdims))
    return found.astype(x.dtype) if x.dtype.kind in "iu" else found  # rounded down, as in TensorFlow


def _std(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    """Computes the standard deviation, the square root of the variance."""
    check_axes(x, axis)
    return jnp.std(x, axis=axis, keepdims=keepdims)


def _variance(x: jax.Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> jax.Array:
    """Computes the variance, the mean of the squared distances from the mean."""
    check_axes(x, axis)
    return jnp.var(x, axis=axis, keepdims=keepdims)


_REDUCED = "input_tensor>a axis=None keepdims=False"
_OWN = "input_tensor axis=None keepdims=False"

rows(
    {
        "math.reduce_all reduce_all": (_REDUCED, jnp.all),
        "math.reduce_any reduce_any": (_REDUCED, jnp.any),
        "math.reduce_euclidean_norm": (_OWN, _norm),
        "math.reduce_logsumexp reduce_logsumexp": (_REDUCED, of_reals(jax.nn.logsumexp)),
        "math.reduce_max reduce_max": (_OWN, _max),
        "math.reduce_mean reduce_mean": (_OWN, _mean),
        "math.reduce_min reduce_min": (_OWN, _min),
        "math.reduce_prod reduce_prod": (_OWN, _prod),
        "math.reduce_std": (_OWN, _std),
        "math.reduce_sum reduce_sum": (_OWN, _sum),
        "math.reduce_variance": (_OWN, _variance),
    }
)


@op("math.argmax argmax", on_host=True)
def argmax(input: jax.Array, axis: Int | None = None, output_type: DTypeLike = "int64") -> jax.Array:
    """Returns the index of the largest element along `axis` (the first such index); ignores NaN."""
    check_axes(input, axis or 0)
    return jnp.argmax(_without_nan(input, -jnp.inf), axis=axis or 0).astype(array_dtype(output_type))


@op("math.argmin argmin", on_host=True)
def argmin(input: jax.Array, axis: Int | None = None, output_type: DTypeLike = "int64") -> jax.Array:
    """Returns the index of the smallest element along `axis` (the first such index); ignores NaN."""
    check_axes(input, axis or 0)
    return jnp.argmin(_without_nan(input, jnp.inf), axis=axis or 0).astype(array_dtype(output_type))


def _without_nan(x: jax.Array, instead: float) -> jax.Array:
    return jnp.where(jnp.isnan(x), jnp.asarray(instead, x.dtype), x) if jnp.issubdtype(x.dtype, jnp.floating) else x


@op("math.count_nonzero")
def count_nonzero(
    input: jax.Array, axis: Axes = None, keepdims: bool | None = None, dtype: DTypeLike = "int64"
) -> jax.Array:
    """Counts the nonzero elements of a tensor, over all axes or given ones."""
    return jnp.count_nonzero(input, axis=axis, keepdims=bool(keepdims)).astype(array_dtype(dtype))


def _scan(
    value: jax.Array, axis: int, exclusive: bool, reverse: bool, run: Callable[..., jax.Array], neutral: float
) -> jax.Array:
    if not -value.ndim <= axis < value.ndim:
        raise ValueError(f"axis {axis} is out of bounds for a tensor of {value.ndim} dimensions")
    if exclusive:
        axis %= value.ndim
        edges = [(0, 0, 0)] * value.ndim
        edges[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
        value = lax.pad(value, jnp.asarray(neutral, value.dtype), edges)
    return run(value, axis=axis % value.ndim, reverse=reverse)


@op("math.cumsum cumsum")
def cumsum(x: jax.Array, axis: Int = 0, exclusive: bool = False, reverse: bool = False) -> jax.Array:
    """Computes the cumulative sum of a tensor along `axis`."""
    return _scan(x, axis, exclusive, reverse, lax.cumsum, 0)


@op("math.cumprod")
def cumprod(x: jax.Array, axis: Int = 0, exclusive: bool = False, reverse: bool = False) -> jax.Array:
    """Computes the cumulative product of a tensor along `axis`."""
    return _scan(x, axis, exclusive, reverse, lax.cumprod, 1)


@op("math.cumulative_logsumexp")
def cumulative_logsumexp(x: jax.Array, axis: Int = 0, exclusive: bool = False, reverse: bool = False) -> jax.Array:
    """Computes the cumulative log-sum-exp of a tensor along `axis`; that of no elements is the dtype's least number."""
    refuse_complex(x)
    return _scan(x, axis, exclusive, reverse, lax.cumlogsumexp, float(jnp.finfo(x.dtype).min))  # type: ignore[no-untyped-call]


@op("sort")
def sort(values: jax.Array, axis: Int = -1, direction: str = "ASCENDING") -> jax.Array:
    """Sorts the elements of a tensor along `axis`."""
    refuse_complex(values)
    return jnp.sort(values, axis=axis, descending=_descends("tf.sort", direction))


@op("argsort")
def argsort(values: jax.Array, axis: Int = -1, direction: str = "ASCENDING", stable: bool = False) -> jax.Array:
    """Returns the indices that sort a tensor along `axis`; equal elements keep their order."""
    refuse_complex(values)
    return jnp.argsort(values, axis=axis, descending=_descends("tf.argsort", direction)).astype(jnp.int32)


def _descends(called: str, direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise InvalidArgumentError.of(
            called,
            found=f"`direction` is {direction!r}",
            rule="`direction` must be 'ASCENDING' or 'DESCENDING'",
            remedy="pass one of them",
        )
    return direction == "DESCENDING"


class TopK(NamedTuple):
    """The result of `tf.math.top_k`: the largest values and their indices."""

    values: jax.Array
    indices: jax.Array


@op("math.top_k nn.top_k")
def top_k(input: jax.Array, k: Int = 1, sorted: bool = True, index_type: DTypeLike = "int32") -> TopK:
    """Returns the `k` largest values along the last axis, in descending order, and their indices."""
    values, indices = lax.top_k(input, k)
    return TopK(values, indices.astype(array_dtype(index_type)))


@op("math.in_top_k nn.in_top_k")
def in_top_k(targets: jax.Array, predictions: jax.Array, k: Operand) -> jax.Array:
    """Returns for each example whether the target class is among the `k` classes with the highest predictions.

    A class tied with the k-th one counts as among them. The result is False if the target is not a class, or if a
    prediction of the example is not finite.
    """
    require_prefix("tf.math.in_top_k", "targets", targets, "predictions", predictions)
    places = without_wrapping(targets, predictions.shape[1])
    own = jnp.take_along_axis(predictions, places[:, None], axis=1, mode="fill", fill_value=np.nan)
    known = jnp.isfinite(own[:, 0]) & jnp.all(jnp.isfinite(predictions), axis=1)
    return known & (jnp.sum(predictions > own, axis=1) < k)  # type: ignore[no-any-return]


def _check_bincount_axis(axis: int | None) -> None:
    if axis in (None, 0, -1):
        return
    raise InvalidArgumentError.of(
        "tf.math.bincount",
        found=f"axis={axis} was passed",
        rule="axis must be 0 or None for all integers, or -1 for those of each row",
        remedy="reshape the tensor to [rows, integers], and pass axis=-1",
    )


def _check_weights(arr: jax.Array, weights: jax.Array) -> None:
    """Raises an error unless `weights` has the shape of `arr`: one weight for each integer.

    JAX would broadcast weights of shape [n, 1] to all pairs.
    """
    if weights.shape == arr.shape:
        return
    raise InvalidArgumentError.of(
        "tf.math.bincount",
        found=f"`arr` has the shape {arr.shape}, `weights` {weights.shape}",
        rule="`weights` must have the shape of `arr`: one weight for each integer",
        remedy="reshape the weights, for instance tf.reshape(weights, tf.shape(arr))",
    )


@op("math.bincount")
def bincount(
    arr: jax.Array,
    weights: jax.Array | None = None,
    minlength: Int | None = None,
    maxlength: Int | None = None,
    dtype: DTypeLike = "int32",
    axis: Int | None = None,
    binary_output: bool = False,
) -> jax.Array:
    """Counts how often each integer occurs in a tensor, or sums weights for each integer.

    With ``axis=-1`` it counts in each row; None and 0 mean the whole tensor. Inside `tf.function`, pass the same value
    as `minlength` and `maxlength`: the length is a shape.

    Raises:
        UnimplementedError: The length depends on values that compiled code computes.
    """
    if values_now(arr) is not None and arr.size and int(jnp.min(arr)) < 0:
        raise InvalidArgumentError.of(
            "tf.math.bincount",
            found="a negative integer",
            rule="all integers must be 0 or more",
            remedy="drop them, or add an offset to all integers",
        )
    _check_bincount_axis(axis)
    arr = arr.astype(jnp.int32) if arr.dtype.itemsize < 4 else arr  # in which lengths could wrap around
    length = maxlength
    if length is None or length != minlength:
        length = max(_number_of_classes("tf.math.bincount", arr, "minlength=n, maxlength=n"), minlength or 0)
        length = length if maxlength is None else min(length, maxlength)
    if weights is not None:
        _check_weights(arr, weights)
    counted = _counted(arr if axis == -1 else arr.reshape(-1), weights, length)
    counted = counted.astype(array_dtype(dtype) if weights is None else weights.dtype)
    return jnp.minimum(counted, 1) if binary_output else counted


def _number_of_classes(called: str, arr: jax.Array, sizes: str) -> int:
    """Returns the largest integer in a tensor, plus one; 0 for an empty tensor."""
    instead = f"{called}(..., {sizes}), with the number of classes n"
    return int(known_elements(arr, called, instead, jnp.max)) + 1 if arr.size else 0


def _counted(arr: jax.Array, weights: jax.Array | None, length: int) -> jax.Array:
    """Counts how often each integer below `length` occurs along the last axis, or sums the weights of its occurrences.

    It counts in int32 and sums in 32 bits or more: narrow floats do not change when a small number is added to a large.
    """
    rows = arr.reshape(math.prod(arr.shape[:-1]), arr.shape[-1] if arr.ndim else 1)
    added = jnp.ones((), jnp.int32) if weights is None else weights.reshape(rows.shape)
    if added.dtype.itemsize < 4:
        added = added.astype(jnp.promote_types(added.dtype, "float32" if added.dtype.kind not in "biu" else "int32"))
    places = jnp.arange(rows.shape[0])[:, None], without_wrapping(rows, length)
    counted = jnp.zeros((rows.shape[0], length), added.dtype).at[places].add(added, mode="drop")
    return counted.reshape(*arr.shape[:-1], length)


@op("math.confusion_matrix")
def confusion_matrix(
    labels: jax.Array,
    predictions: jax.Array,
    num_classes: Int | None = None,
    weights: jax.Array | None = None,
    dtype: DTypeLike = "int32",
) -> jax.Array:
    """Returns a matrix that counts the examples with each label (row) and prediction (column).

    Inside `tf.function`, pass `num_classes`.

    Raises:
        UnimplementedError: The number of classes depends on values that compiled code computes.
    """
    true, guessed = _as_classes(labels), _as_classes(predictions)
    require_prefix("tf.math.confusion_matrix", "labels", true, "predictions", guessed)
    if weights is not None:
        weights = weights.reshape(-1)
        require_prefix("tf.math.confusion_matrix", "labels", true, "weights", weights)
    if (size := num_classes) is None:
        size = max(_number_of_classes("tf.math.confusion_matrix", one, "num_classes=n") for one in (true, guessed))
    require_indices("tf.math.confusion_matrix", true, size, "labels")
    require_indices("tf.math.confusion_matrix", guessed, size, "predictions")
    amount = jnp.ones(true.shape) if weights is None else weights
    places = without_wrapping(true, size), without_wrapping(guessed, size)
    empty = jnp.zeros((size, size), array_dtype(dtype))
    return empty.at[places].add(amount.astype(empty.dtype), mode="drop")


def _as_classes(values: jax.Array) -> jax.Array:
    """Flattens class labels to a vector of integers; truncates floats, as TensorFlow does."""
    return values.reshape(-1).astype(jnp.int32 if not jnp.issubdtype(values.dtype, jnp.integer) else values.dtype)


@op("math.zero_fraction nn.zero_fraction")
def zero_fraction(value: jax.Array) -> jax.Array:
    """Returns the fraction of a tensor's elements that are zero."""
    return jnp.mean(value == 0, dtype=jnp.float32)


@op("histogram_fixed_width")
def histogram_fixed_width(
    values: jax.Array, value_range: Operand, nbins: Int = 100, dtype: DTypeLike = "int32"
) -> jax.Array:
    """Counts values in `nbins` bins of equal width, into which the range `value_range` is divided.

    The first and last bins include values outside of the range. As in TensorFlow, the bins are computed in 64 bits, and
    those of `histogram_fixed_width_bins` in the dtype of the values: numbers at edges may be in different bins. In
    compiled code, a range that is not constant has edges of 32 bits.
    """
    bounds = _bounds(values, value_range)
    low, high = bounds
    inside, known = jnp.where(values > low, values, low), _known_elements(bounds)
    if array_dtype("float64") == np.float64:
        inside, low, high = (one.astype("float64") for one in (inside, low, high))
        bins = jnp.clip(jnp.floor((inside - low) / ((high - low) / nbins)), 0, nbins - 1).astype("int32")
    elif known is None:
        bins = histogram_fixed_width_bins(values, value_range, nbins)
    else:
        bins = jnp.searchsorted(_edges(known[0], known[1], nbins, inside.dtype), inside, side="right")
    return jnp.bincount(bins.reshape(-1), length=nbins).astype(array_dtype(dtype))


def _known_elements(array: jax.Array) -> np.ndarray[Any, Any] | None:
    """Returns an array's elements as a NumPy array, or None if compiled code computes the array."""
    if isinstance(array, Tracer) or not array.is_fully_addressable:
        return values_now(array)
    return np.asarray(array)


def _edges(low: Any, high: Any, nbins: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns the smallest number of `dtype` in each histogram bin except the first; computes the bins in float64."""
    start, places = np.float64(low), np.arange(1, nbins)
    step = (np.float64(high) - start) / nbins
    near = (start + places * step).astype(dtype)
    if dtype.kind in "iu":
        candidates = np.stack([near - 1, near, near + 1])
    else:
        candidates = np.stack([np.nextafter(near, -np.inf, dtype=dtype), near, np.nextafter(near, np.inf, dtype=dtype)])
    reached = np.floor((candidates.astype(np.float64) - start) / step) >= places
    return candidates[np.argmax(reached, axis=0), places - 1]


@op("histogram_fixed_width_bins")
def histogram_fixed_width_bins(
    values: jax.Array, value_range: Operand, nbins: Int = 100, dtype: DTypeLike = "int32"
) -> jax.Array:
    """Returns for each value the index of its bin, of `nbins` bins of equal width in `value_range`."""
    low, high = _bounds(values, value_range)
    bins = jnp.floor((values - low) / (high - low) * nbins)
    return jnp.clip(bins, 0, nbins - 1).astype(array_dtype(dtype))


def _bounds(values: jax.Array, value_range: Operand) -> jax.Array:
    """Converts `value_range` to a tensor of two bounds; for float values, in their dtype, but at least float32.

    The bins are then computed in at least float32, too, because 16-bit floats cannot represent every bin index.
    """
    floats = jnp.issubdtype(values.dtype, jnp.floating)
    bounds = as_tensor(value_range, jnp.promote_types(values.dtype, jnp.float32) if floats else None)
    if jnp.issubdtype(bounds.dtype, jnp.floating):
        bounds = bounds.astype(jnp.promote_types(bounds.dtype, jnp.float32)) if bounds.dtype.itemsize < 4 else bounds
    known = values_now(bounds)
    if known is not None and known.shape == (2,) and not known[0] < known[1]:
        raise InvalidArgumentError.of(
            "tf.histogram_fixed_width",
            found=f"`value_range` is {known.tolist()}",
            rule="the first number must be less than the second",
            remedy="exchange them, or pass a wider range",
        )
    return bounds


@op("searchsorted")
def searchsorted(
    sorted_sequence: jax.Array, values: jax.Array, side: str = "left", output_type: DTypeLike = "int32"
) -> jax.Array:
    """Returns the indices at which values can be inserted into a sorted sequence to keep it sorted.

    Sequence and values are along the last axis.
    """
    refuse_complex(sorted_sequence, values)
    search = functools.partial(jnp.searchsorted, side=side)
    for _ in range(sorted_sequence.ndim - 1):
        search = jax.vmap(search)
    return search(sorted_sequence, values).astype(array_dtype(output_type))
