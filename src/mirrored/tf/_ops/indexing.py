"""Indexing operations: `gather`, `scatter_nd`, `slice`, `where`, `unique`, segment reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand, StaticInts
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._static import static_int, static_ints
from mirrored.tf._table import op, reported, tensors
from mirrored.tf._tensors import as_tensor
from mirrored.values.sparse_rows import without_wrapping


@op("gather", on_host=True)
def gather(
    params: Operand,
    indices: Operand,
    validate_indices: object = None,
    axis: SupportsIndex | None = None,
    batch_dims: int = 0,
) -> jax.Array:
    """Gathers slices of `params` at `indices` along `axis`; an index out of range gives zeros."""
    del validate_indices
    table, where = as_tensor(params), as_tensor(indices)
    batch = batch_dims % max(where.ndim, 1) if batch_dims < 0 else batch_dims
    along = batch if axis is None else static_int(axis, called="tf.gather", argument="axis") % table.ndim

    def take(table: jax.Array, where: jax.Array) -> jax.Array:
        places = without_wrapping(where, table.shape[along - batch])
        return jnp.take(table, places, axis=along - batch, mode="fill", fill_value=0)

    for _ in range(batch):
        take = jax.vmap(take)
    with reported("tf.gather", [table, where]):
        return take(table, where)


@op("gather_nd")
def gather_nd(
    params: Operand, indices: Operand, batch_dims: int = 0, name: str | None = None, bad_indices_policy: str = ""
) -> jax.Array:
    """Gathers slices of `params` at multi-dimensional indices; an index out of range gives zeros.

    The last axis of `indices` has the index vectors.
    """
    del bad_indices_policy

    def pick(table: jax.Array, where: jax.Array) -> jax.Array:
        return table.at[_places(where, table.shape)].get(mode="fill", fill_value=0)

    for _ in range(batch_dims):
        pick = jax.vmap(pick)
    return pick(as_tensor(params), as_tensor(indices))


def _places(where: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Returns the index vectors in the last axis of `where` as one array per dimension."""
    return tuple(without_wrapping(one, size) for one, size in zip(jnp.moveaxis(where, -1, 0), shape, strict=False))


def _scattered(called: str, method: str) -> Callable[..., jax.Array]:
    def scatter(tensor: Operand, indices: Operand, updates: Operand) -> jax.Array:
        target, where, new = as_tensor(tensor), as_tensor(indices), as_tensor(updates)
        with reported(called, [target, where, new]):
            reference = target.at[_places(where, target.shape)]
            result: jax.Array = getattr(reference, method)(new, mode="drop")
            return result

    scatter.__name__ = scatter.__qualname__ = called.rpartition(".")[2]
    scatter.__doc__ = f"Returns a copy of `tensor` with `updates` applied ({method}) at `indices`."
    return scatter


for _name, _method in {"update": "set", "add": "add", "max": "max", "min": "min"}.items():
    op(f"tensor_scatter_nd_{_name}")(_scattered(f"tf.tensor_scatter_nd_{_name}", _method))
op("tensor_scatter_nd_sub")(_scattered("tf.tensor_scatter_nd_sub", "subtract"))


@op("scatter_nd")
def scatter_nd(indices: Operand, updates: Operand, shape: StaticInts) -> jax.Array:
    """Adds `updates` at multi-dimensional `indices` to a tensor of zeros."""
    new = as_tensor(updates)
    target = jnp.zeros(static_ints(shape, called="tf.scatter_nd", argument="shape"), new.dtype)
    with reported("tf.scatter_nd", [as_tensor(indices), new]):
        return target.at[_places(as_tensor(indices), target.shape)].add(new, mode="drop")


@op("where")
def where(condition: Operand, x: Operand = None, y: Operand = None) -> jax.Array:
    """Returns elements of `x` where a condition is True, and of `y` elsewhere.

    Without `x` and `y`, returns the indices of True elements; only in eager code.
    """
    test = as_tensor(condition)
    if x is None and y is None:
        return jnp.stack(jnp.nonzero(test), axis=-1).astype(array_dtype("int64"))
    if x is None or y is None:
        raise ValueError("x and y must both be non-None or both be None.")
    yes, no = tensors(x, y)
    with reported("tf.where", [test, yes, no]):
        return jnp.where(test.astype(bool), yes, no)


@op("boolean_mask")
def boolean_mask(tensor: Operand, mask: Operand, axis: SupportsIndex | None = None) -> jax.Array:
    """Returns the elements of a tensor where a mask is True; works only in eager code.

    The mask's values determine the shape of the result.
    """
    value, keep = as_tensor(tensor), np.asarray(as_tensor(mask))
    along = 0 if axis is None else static_int(axis, called="tf.boolean_mask", argument="axis")
    flat = value.reshape(value.shape[:along] + (-1,) + value.shape[along + keep.ndim :])
    return jnp.take(flat, np.flatnonzero(keep), axis=along)


@op("slice", on_host=True)
def slice_(input_: Operand, begin: Operand, size: StaticInts) -> jax.Array:
    """Extracts a slice of a tensor that begins at `begin` and has the shape `size` (`tf.slice`).

    A size of -1 means all remaining elements; `begin` may be traced.
    """
    value = as_tensor(input_)
    sizes = static_ints(size, called="tf.slice", argument="size")
    starts = [
        one if isinstance(one, int) else as_tensor(one)
        for one in (begin if isinstance(begin, (list, tuple)) else as_tensor(begin))
    ]
    if -1 in sizes:
        fixed = static_ints(begin, called="tf.slice", argument="begin")
        sizes = tuple(value.shape[i] - fixed[i] if one == -1 else one for i, one in enumerate(sizes))
    with reported("tf.slice", [value]):
        return jax.lax.dynamic_slice(value, starts, sizes)


@op("strided_slice", on_host=True)
def strided_slice(
    input_: Operand,
    begin: StaticInts,
    end: StaticInts,
    strides: StaticInts | None = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: object = None,
) -> jax.Array:
    """Extracts a slice of a tensor from `begin` to `end` in steps of `strides`, like NumPy's indexing.

    Bit masks mark omitted bounds, ellipses, new axes and single indices.
    """
    del var
    first = static_ints(begin, called="tf.strided_slice", argument="begin")
    last = static_ints(end, called="tf.strided_slice", argument="end")
    steps = (
        (1,) * len(first) if strides is None else static_ints(strides, called="tf.strided_slice", argument="strides")
    )
    index: list[Any] = []
    for i in range(len(first)):
        bit = 1 << i
        if ellipsis_mask & bit:
            index.append(...)
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(first[i])
        else:
            index.append(slice(None if begin_mask & bit else first[i], None if end_mask & bit else last[i], steps[i]))
    return as_tensor(input_)[tuple(index)]


class Unique(NamedTuple):
    """The result of `tf.unique`: the distinct elements, and the index of each input element among them."""

    y: jax.Array
    idx: jax.Array


class UniqueWithCounts(NamedTuple):
    """The result of `tf.unique_with_counts`: distinct elements, indices, and numbers of occurrences."""

    y: jax.Array
    idx: jax.Array
    count: jax.Array  # type: ignore[assignment]


@op("unique")
def unique(x: Operand, out_idx: DTypeLike = "int32") -> Unique:
    """Returns a tensor's distinct elements, and the index of each element among them; works only in eager code.

    The elements are in order of appearance.
    """
    y, idx, _ = unique_with_counts(x, out_idx)
    return Unique(y, idx)


@op("unique_with_counts")
def unique_with_counts(x: Operand, out_idx: DTypeLike = "int32") -> UniqueWithCounts:
    """Returns a tensor's distinct elements, the indices and the counts of each; works only in eager code.

    Elements and indices are those of `unique`.
    """
    host = np.asarray(as_tensor(x))
    _, first, inverse, counts = np.unique(host, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    place = np.argsort(order)
    dtype = array_dtype(out_idx)
    return UniqueWithCounts(
        as_tensor(host[first[order]]),
        as_tensor(place[inverse.reshape(-1)].astype(dtype)),
        as_tensor(counts[order].astype(dtype)),
    )


@op("dynamic_partition")
def dynamic_partition(data: Operand, partitions: Operand, num_partitions: int) -> list[jax.Array]:
    """Splits a tensor into `num_partitions` tensors; `partitions` says which of them gets each slice.

    Works only in eager code.
    """
    value, parts = as_tensor(data), np.asarray(as_tensor(partitions))
    flat = value.reshape((-1,) + value.shape[parts.ndim :])
    return [flat[np.flatnonzero(parts == i)] for i in range(num_partitions)]


@op("dynamic_stitch")
def dynamic_stitch(indices: Iterable[Operand], data: Iterable[Operand]) -> jax.Array:
    """Merges several tensors into one, in which the slice ``data[m][i]`` has the index ``indices[m][i]``.

    Later tensors overwrite earlier ones.
    """
    places = [np.asarray(as_tensor(one)) for one in indices]
    pieces = [as_tensor(one) for one in data]
    flat = jnp.concatenate(
        [piece.reshape((-1,) + piece.shape[place.ndim :]) for piece, place in zip(pieces, places, strict=True)]
    )
    order = np.concatenate([place.reshape(-1) for place in places])
    last = np.full(int(order.max()) + 1, -1)
    last[order] = np.arange(order.size)
    return jnp.take(flat, last, axis=0, mode="fill", fill_value=0)


def _segments(
    called: str, reduce: Callable[..., jax.Array], *, sorted_ids: bool, empty: int | None = None
) -> Callable[..., jax.Array]:
    def run(data: Operand, segment_ids: Operand, num_segments: SupportsIndex | None = None) -> jax.Array:
        value, ids = as_tensor(data), as_tensor(segment_ids)
        count = jnp.max(ids, initial=-1) + 1 if num_segments is None else num_segments
        total = static_int(count, called=called, argument="num_segments")
        flat = value.reshape((-1,) + value.shape[ids.ndim :])
        result = reduce(flat, ids.reshape(-1), total, indices_are_sorted=sorted_ids)
        if empty is None:
            return result
        filled = jax.ops.segment_sum(jnp.ones(ids.size, jnp.int32), ids.reshape(-1), total)
        return jnp.where(
            (filled > 0).reshape((-1,) + (1,) * (result.ndim - 1)), result, jnp.asarray(empty, result.dtype)
        )

    run.__name__ = run.__qualname__ = called.rpartition(".")[2]
    run.__doc__ = f"Computes `{called}`: a reduction over the rows of each segment."
    return run


def _segment_mean(data: jax.Array, ids: jax.Array, count: int, indices_are_sorted: bool = False) -> jax.Array:
    total = jax.ops.segment_sum(data, ids, count, indices_are_sorted=indices_are_sorted)
    size = jax.ops.segment_sum(jnp.ones(ids.shape, data.dtype), ids, count)
    return total / jnp.maximum(size, 1).reshape((-1,) + (1,) * (data.ndim - 1))


def _segment_sqrt_n(data: jax.Array, ids: jax.Array, count: int, indices_are_sorted: bool = False) -> jax.Array:
    total = jax.ops.segment_sum(data, ids, count, indices_are_sorted=indices_are_sorted)
    size = jax.ops.segment_sum(jnp.ones(ids.shape, data.dtype), ids, count)
    return total / jnp.sqrt(jnp.maximum(size, 1)).reshape((-1,) + (1,) * (data.ndim - 1))


_REDUCERS: dict[str, tuple[Callable[..., jax.Array], Any]] = {
    "sum": (jax.ops.segment_sum, None),
    "prod": (jax.ops.segment_prod, None),
    "mean": (_segment_mean, None),
    "max": (jax.ops.segment_max, 0),
    "min": (jax.ops.segment_min, 0),
}
for _name, (_reduce, _empty) in _REDUCERS.items():
    op(f"math.segment_{_name}")(_segments(f"tf.math.segment_{_name}", _reduce, sorted_ids=True, empty=_empty))
    op(f"math.unsorted_segment_{_name}")(_segments(f"tf.math.unsorted_segment_{_name}", _reduce, sorted_ids=False))
op("math.unsorted_segment_sqrt_n")(_segments("tf.math.unsorted_segment_sqrt_n", _segment_sqrt_n, sorted_ids=False))
