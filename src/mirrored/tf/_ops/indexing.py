"""Indexing operations: `gather`, `scatter_nd`, `slice`, `where`, `unique`, segment reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from mirrored._jax.traces import Tracer, current_trace, is_eval, trace_below_tapes
from mirrored._typing import DTypeLike, HostArray, Operand
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.real_numbers import refuse_complex
from mirrored.tf._static import known_elements, static_ints
from mirrored.tf._table import Int, Ints, op, reported, tensors
from mirrored.tf._tensors import as_tensor, without_cutting
from mirrored.values.index_checks import outside, values_now
from mirrored.values.sparse_rows import updates_shape, without_wrapping


@op("gather", on_host=True)
def gather(
    params: jax.Array, indices: jax.Array, validate_indices: object = None, axis: Int | None = None, batch_dims: Int = 0
) -> jax.Array:
    """Gathers slices of `params` at `indices` along `axis`.

    In compiled code and on GPUs, an index out of range gives zeros.

    Raises:
        InvalidArgumentError: An index is out of range, in eager code on a CPU.
    """
    batch = batch_dims % max(indices.ndim, 1) if batch_dims < 0 else batch_dims
    along = normalize_axis_index(batch if axis is None else axis, params.ndim)
    if along < batch:
        raise InvalidArgumentError.of(
            "tf.gather",
            found=f"axis={axis} and batch_dims={batch_dims} were passed",
            rule="`axis` must not be one of the batch dimensions, which come first in `params` and `indices`",
            remedy=f"pass axis={batch} or greater, or fewer batch_dims",
        )
    require_indices("tf.gather", indices, params.shape[along])

    def take(table: jax.Array, where: jax.Array) -> jax.Array:
        places = without_wrapping(where, table.shape[along - batch])
        return jnp.take(table, places, axis=along - batch, mode="fill", fill_value=0)

    return _batched(take, batch)(params, indices)


@op("gather_nd")
def gather_nd(
    params: jax.Array, indices: jax.Array, batch_dims: Int = 0, name: str | None = None, bad_indices_policy: str = ""
) -> jax.Array:
    """Gathers slices of `params` at multi-dimensional indices: the vectors along the last axis of `indices`.

    In compiled code, on GPUs and with ``bad_indices_policy="IGNORE"``, an index out of range gives zeros.

    Raises:
        InvalidArgumentError: An index is out of range, in eager code on a CPU.
    """
    if not 0 <= batch_dims < max(indices.ndim, 1):
        raise InvalidArgumentError.of(
            "tf.gather_nd",
            found=f"batch_dims={batch_dims} was passed for indices of shape {indices.shape}",
            rule="`batch_dims` must be 0 or more, and less than the number of axes of `indices`",
            remedy="pass the number of leading axes that `params` and `indices` share",
        )
    _require_depth("tf.gather_nd", indices, params.shape[batch_dims:])
    if bad_indices_policy != "IGNORE":
        require_indices("tf.gather_nd", indices, params.shape[batch_dims:])

    def pick(table: jax.Array, where: jax.Array) -> jax.Array:
        if not where.shape[-1]:  # an empty index vector means the whole table
            return jnp.broadcast_to(table, (*where.shape[:-1], *table.shape))
        return table.at[_places(where, table.shape)].get(mode="fill", fill_value=0)

    return _batched(pick, batch_dims)(params, indices)


def _batched(function: Callable[..., jax.Array], axes: int) -> Callable[..., jax.Array]:
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def _places(where: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Converts index vectors, along the last axis of `where`, to a tuple of one index array per dimension."""
    return tuple(without_wrapping(one, size) for one, size in zip(jnp.moveaxis(where, -1, 0), shape, strict=False))


def require_indices(called: str, indices: jax.Array, limits: int | tuple[int, ...], argument: str = "indices") -> None:
    """Raises an error if an index is out of range; checks only indices whose values the host already knows.

    Args:
        called: The operation.
        indices: Indices, or index vectors along the last axis.
        limits: The size of the indexed axis, or the sizes of several.
        argument: The name of the indices.

    Raises:
        InvalidArgumentError: An index is out of range.
    """
    found = outside(indices, limits, argument)
    if found is not None:
        raise InvalidArgumentError.of(
            called,
            found=found,
            rule="an index must be 0 or more, and less than the size of the axis",
            remedy="correct the indices; negative ones do not count from the end",
        )


def _require_depth(called: str, indices: jax.Array, shape: tuple[int, ...]) -> None:
    """Raises an error if index vectors, the last axis of `indices`, have more entries than the tensor has axes."""
    if indices.ndim and indices.shape[-1] <= len(shape):
        return
    raise InvalidArgumentError.of(
        called,
        found=f"`indices` has the shape {indices.shape}, the tensor {shape}",
        rule="the last axis of `indices` contains index vectors, with at most one entry per axis of the tensor",
        remedy="pass one index for each axis to be indexed",
    )


def require_prefix(called: str, argument: str, indices: jax.Array | HostArray, data: str, value: jax.Array) -> None:
    """Raises an error unless the shape of `indices` is equal to the leading dimensions of the shape of `value`.

    Raises:
        InvalidArgumentError: It is not; JAX would drop, repeat or exchange rows.
    """
    if value.shape[: indices.ndim] == indices.shape:
        return
    raise InvalidArgumentError.of(
        called,
        found=f"`{argument}` has the shape {indices.shape}, `{data}` {value.shape}",
        rule=f"`{argument}` must have the shape of the first axes of `{data}`: one entry for each row",
        remedy="pass as many entries as rows",
    )


def _check_updates(called: str, indices: jax.Array, updates: jax.Array, shape: tuple[int, ...]) -> None:
    """Raises an error unless there is one update for each index vector: JAX would broadcast other shapes silently."""
    _require_depth(called, indices, shape)
    wanted = updates_shape(indices.shape, shape)
    if updates.shape != wanted:
        raise InvalidArgumentError.of(
            called,
            found=f"`updates` has the shape {updates.shape}, `indices` {indices.shape}, the tensor {shape}",
            rule=f"`updates` must have one slice of the tensor for each index vector: here the shape {wanted}",
            remedy="broadcast the updates with tf.broadcast_to, or correct the indices",
        )
    require_indices(called, indices, shape)


def _scattered(method: str, called: str) -> Callable[..., jax.Array]:
    def scatter(tensor: jax.Array, indices: jax.Array, updates: Operand) -> jax.Array:
        if method in ("max", "min"):
            refuse_complex(tensor)
        rows = without_cutting(called, "updates", updates, tensor.dtype)
        _check_updates(called, indices, rows, tensor.shape)
        result: jax.Array = getattr(tensor.at[_places(indices, tensor.shape)], method)(rows, mode="drop")
        return result

    return scatter


for _name, _method in {"update": "set", "add": "add", "sub": "subtract", "max": "max", "min": "min"}.items():
    _scatter = _scattered(_method, f"tf.tensor_scatter_nd_{_name}")
    _scatter.__name__ = _scatter.__qualname__ = f"tensor_scatter_nd_{_name}"
    _scatter.__doc__ = (
        f"Returns a copy of `tensor` with `updates` applied ({_method}) at `indices`, as in `scatter_nd`."
    )
    op(f"tensor_scatter_nd_{_name}")(_scatter)


@op("scatter_nd")
def scatter_nd(indices: jax.Array, updates: jax.Array, shape: Ints) -> jax.Array:
    """Adds `updates` at multi-dimensional `indices` to a tensor of zeros.

    The sum of booleans is their disjunction. In compiled code and on GPUs, an update at an index out of range is
    ignored.

    Raises:
        InvalidArgumentError: `updates` has a wrong shape, or an index is out of range, in eager code on a CPU.
    """
    _check_updates("tf.scatter_nd", indices, updates, shape)
    places = jnp.zeros(shape, updates.dtype).at[_places(indices, shape)]
    return places.max(updates, mode="drop") if updates.dtype.kind == "b" else places.add(updates, mode="drop")


@op("where")
def where(condition: jax.Array, x: Operand = None, y: Operand = None) -> jax.Array:
    """Returns elements of `x` where a condition is True, and of `y` elsewhere.

    Without `x` and `y`, returns the indices of True elements; only in eager code.

    Raises:
        UnimplementedError: Without `x` and `y`, the condition is computed in compiled code.
    """
    if x is None and y is None:
        elements = known_elements(condition, "tf.where", "tf.where(condition, x, tf.zeros_like(x)), of the shape of x")
        return as_tensor(np.argwhere(elements).astype(array_dtype("int64")))
    if x is None or y is None:
        raise InvalidArgumentError.of(
            "tf.where",
            found=f"`{'y' if x is None else 'x'}` was passed without `{'x' if x is None else 'y'}`",
            rule="`x` and `y` must both be tensors, or both be None",
            remedy="pass both, or neither to get the indices of the True elements",
        )
    yes, no = tensors(x, y)
    with reported("tf.where", [condition, yes, no]):
        return jnp.where(condition.astype(bool), yes, no)


@op("boolean_mask")
def boolean_mask(tensor: jax.Array, mask: jax.Array, axis: Int | None = None) -> jax.Array:
    """Returns the elements of a tensor where a mask is True; works only in eager code.

    The mask's values determine the shape of the result.

    Raises:
        UnimplementedError: The mask is computed in compiled code.
    """
    instead = "tf.where(mask, tensor, 0), of the shape of the tensor; a mean is its sum, divided by the number of True"
    along, keep = axis or 0, known_elements(mask, "tf.boolean_mask", instead)
    along += tensor.ndim if along < 0 else 0
    if not keep.ndim or along < 0 or tensor.shape[along : along + keep.ndim] != keep.shape:
        raise InvalidArgumentError.of(
            "tf.boolean_mask",
            found=f"the mask has the shape {keep.shape}, the tensor {tensor.shape}, and `axis` is {along}",
            rule="the mask must have one or more dimensions, which are those of the tensor from `axis` on",
            remedy="pass a mask of the shape of these dimensions",
        )
    flat = tensor.reshape(tensor.shape[:along] + (keep.size,) + tensor.shape[along + keep.ndim :])
    return jnp.take(flat, np.flatnonzero(keep), axis=along)


@op("slice", on_host=True)
def slice_(input_: jax.Array, begin: Operand, size: Ints) -> jax.Array:
    """Extracts a slice of a tensor that begins at `begin` and has the shape `size` (`tf.slice`).

    A size of -1 means all remaining elements. `begin` may be traced: a slice that leaves the tensor is then moved
    inside, as in XLA.
    """
    if isinstance(begin, jax.Array) and not isinstance(begin, Tracer) and not _runs_now():
        begin = np.asarray(begin)  # whose numbers are known while tracing; those of an array would be traced
    each = begin if isinstance(begin, (list, tuple, np.ndarray)) else as_tensor(begin)
    starts = [_start(one) for one in each]
    fixed_starts = _known_starts(starts)
    if fixed_starts is not None:
        _check_slice(input_.shape, fixed_starts, size)
    if -1 in size:
        fixed = static_ints(begin, called="tf.slice", argument="begin")
        size = tuple(input_.shape[i] - fixed[i] if one == -1 else one for i, one in enumerate(size))
    return jax.lax.dynamic_slice(input_, starts, size)


def _start(value: Operand) -> Any:
    """Converts the start index of a slice to an int if its value is on the host, otherwise to a tensor."""
    if isinstance(value, (np.integer, np.ndarray)) and value.shape == () and value.dtype.kind in "iu":
        return int(value)
    return value if isinstance(value, int) else as_tensor(value)


def _known_starts(starts: Sequence[Any]) -> list[int] | None:
    """Returns the start indices of a slice as ints; None if they are traced, or if the host would wait for a device."""
    if all(isinstance(one, int) or values_now(one) is not None for one in starts):
        return [int(one) for one in starts]
    if _runs_now() or any(isinstance(one, Tracer) for one in starts):
        return None
    return [int(one) for one in starts]


def _runs_now() -> bool:
    """Returns whether operations execute immediately; True also while a gradient tape records."""
    return is_eval(trace_below_tapes(current_trace()))


def _check_slice(shape: tuple[int, ...], begin: Sequence[int], size: Sequence[int]) -> None:
    """Raises an error if a slice reaches outside of the tensor, where JAX would clamp its start index."""
    inside = len(begin) == len(size) == len(shape) and all(
        0 <= start <= whole and -1 <= count <= whole - start
        for start, count, whole in zip(begin, size, shape, strict=True)
    )
    if not inside:
        raise InvalidArgumentError.of(
            "tf.slice",
            found=f"`begin` is {list(begin)} and `size` {list(size)}; the tensor has the shape {shape}",
            rule="a slice must lie within the tensor, and both must have one number for each axis",
            remedy="pass a size of -1 for all remaining elements",
        )


@op("strided_slice", on_host=True)
def strided_slice(
    input_: jax.Array,
    begin: Ints,
    end: Ints,
    strides: Ints | None = None,
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
    index: list[Any] = []
    for i, (first, last, step) in enumerate(zip(begin, end, strides or (1,) * len(begin), strict=False)):
        bit = 1 << i
        if ellipsis_mask & bit:
            index.append(...)
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            if not ellipsis_mask and not new_axis_mask and not -input_.shape[i] <= first < input_.shape[i]:
                raise InvalidArgumentError.of(
                    "tf.strided_slice",
                    found=f"the index {first} of dimension {i}, whose size is {input_.shape[i]}",
                    rule="a single index must be within the dimension",
                    remedy="correct the index, or pass a range",
                )
            index.append(first)
        else:
            index.append(slice(None if begin_mask & bit else first, None if end_mask & bit else last, step))
    return input_[tuple(index)]


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
def unique(x: jax.Array, out_idx: DTypeLike = "int32") -> Unique:
    """Returns a tensor's distinct elements, and each input element's index among them; works only in eager code.

    The elements are in order of appearance.

    Raises:
        UnimplementedError: The tensor is computed in compiled code.
    """
    y, idx, _ = unique_with_counts(x, out_idx)
    return Unique(y, idx)


@op("unique_with_counts")
def unique_with_counts(x: jax.Array, out_idx: DTypeLike = "int32") -> UniqueWithCounts:
    """Returns the results of `unique`, and how often each distinct element occurs; works only in eager code.

    Elements and indices are those of `unique`.

    Raises:
        UnimplementedError: The tensor is computed in compiled code.
    """
    instead = "jnp.unique(x, size=n, fill_value=...), a vector of n elements"
    host, dtype = known_elements(x, "tf.unique", instead), array_dtype(out_idx)
    if host.ndim != 1:
        raise InvalidArgumentError.of(
            "tf.unique",
            found=f"a tensor of shape {host.shape}",
            rule="the tensor must be a vector",
            remedy="flatten it with tf.reshape(x, [-1])",
        )
    _, first, inverse, counts = np.unique(
        host, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    order = np.argsort(first, kind="stable")
    index = np.argsort(order)[inverse.reshape(-1)]
    found = (host[first[order]], index.astype(dtype), counts[order].astype(dtype))
    return UniqueWithCounts(*map(as_tensor, found))


@op("dynamic_partition")
def dynamic_partition(data: jax.Array, partitions: jax.Array, num_partitions: Int) -> list[jax.Array]:
    """Splits a tensor into `num_partitions` tensors; `partitions` gives for each slice the index of its new tensor.

    Works only in eager code.

    Raises:
        UnimplementedError: The partitions are computed in compiled code.
    """
    require_indices("tf.dynamic_partition", partitions, num_partitions, "partitions")
    instead = "tf.where(partitions == i, data, 0) for each part"
    parts = known_elements(partitions, "tf.dynamic_partition", instead)
    require_prefix("tf.dynamic_partition", "partitions", parts, "data", data)
    flat = data.reshape((parts.size,) + data.shape[parts.ndim :])
    return [flat[np.flatnonzero(parts == i)] for i in range(num_partitions)]


@op("dynamic_stitch")
def dynamic_stitch(indices: Iterable[Operand], data: Iterable[Operand]) -> jax.Array:
    """Merges several tensors into one, in which the slice ``data[m][i]`` has the index ``indices[m][i]``.

    Later tensors overwrite earlier ones; slices at missing indices are 0.
    """
    instead = "tf.tensor_scatter_nd_update(tensor, indices, updates)"
    places = [known_elements(as_tensor(one), "tf.dynamic_stitch", instead) for one in indices]
    for one in places:
        if one.size and one.min() < 0:
            raise InvalidArgumentError.of(
                "tf.dynamic_stitch",
                found=f"the indices {one.tolist()}",
                rule="indices must be 0 or more",
                remedy="correct the indices; negative ones do not count from the end",
            )
    pieces = [as_tensor(one) for one in data]
    for number, (place, piece) in enumerate(zip(places, pieces, strict=True)):
        require_prefix("tf.dynamic_stitch", f"indices[{number}]", place, f"data[{number}]", piece)
    flat = jnp.concatenate(
        [piece.reshape((place.size,) + piece.shape[place.ndim :]) for piece, place in zip(pieces, places, strict=True)]
    )
    order = np.concatenate([place.reshape(-1) for place in places])
    last = np.full(int(order.max(initial=-1)) + 1, order.size)  # out of range, where no slice is given
    last[order] = np.arange(order.size)
    return jnp.take(flat, last, axis=0, mode="fill", fill_value=0)
