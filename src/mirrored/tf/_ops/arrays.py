"""Array operations: `zeros`, `reshape`, `concat`, `pad`, `transpose` and similar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from mirrored._jax.arrays import fits
from mirrored._jax.traces import Tracer, is_eager
from mirrored._typing import DTypeLike, Operand, ShapeLike, StaticInts
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._narrowed import requested_as
from mirrored.tf._shapes import TensorShape
from mirrored.tf._static import StaticTensor, static_int, static_ints, static_tensor
from mirrored.tf._table import Axes, Common, Int, Ints, hosted, op, register, reported, rows, tensors
from mirrored.tf._tensors import as_tensor, constant, convert_to_tensor, is_tensor, without_cutting
from mirrored.variables.storage import VariableStorage

register(["constant"], hosted(constant))
register(["convert_to_tensor"], hosted(convert_to_tensor))
register(["is_tensor"], is_tensor)
rows(
    {
        "broadcast_to": ("input shape:Ints", jnp.broadcast_to),
        "expand_dims": ("input axis:Int", jnp.expand_dims),
        "reverse": ("tensor axis:Axes", jnp.flip),
    }
)


@op("zeros")
def zeros(shape: Ints, dtype: DTypeLike = "float32", name: str | None = None, layout: object = None) -> jax.Array:
    """Creates a tensor with all elements set to zero."""
    return requested_as(dtype, jnp.zeros(shape, array_dtype(dtype)))


@op("ones")
def ones(shape: Ints, dtype: DTypeLike = "float32", name: str | None = None, layout: object = None) -> jax.Array:
    """Creates a tensor with all elements set to one."""
    return requested_as(dtype, jnp.ones(shape, array_dtype(dtype)))


@op("zeros_like")
def zeros_like(
    input: jax.Array, dtype: DTypeLike | None = None, name: str | None = None, layout: object = None
) -> jax.Array:
    """Creates a tensor of zeros with the shape of the input, and its dtype unless `dtype` is given."""
    return requested_as(dtype, jnp.zeros_like(input, dtype=input.dtype if dtype is None else array_dtype(dtype)))


@op("ones_like")
def ones_like(
    input: jax.Array, dtype: DTypeLike | None = None, name: str | None = None, layout: object = None
) -> jax.Array:
    """Creates a tensor of ones with the shape of the input, and its dtype unless `dtype` is given."""
    return requested_as(dtype, jnp.ones_like(input, dtype=input.dtype if dtype is None else array_dtype(dtype)))


@op("fill")
def fill(dims: Ints, value: jax.Array, name: str | None = None, layout: object = None) -> jax.Array:
    """Creates a tensor filled with a scalar value."""
    if value.ndim:
        raise InvalidArgumentError.of(
            "tf.fill",
            found=f"`value` has the shape {value.shape}",
            rule="`value` must be a scalar",
            remedy="use tf.broadcast_to for a tensor",
        )
    return jnp.broadcast_to(value, dims)


@op("eye linalg.eye")
def eye(
    num_rows: Int, num_columns: Int | None = None, batch_shape: Ints | None = None, dtype: DTypeLike = "float32"
) -> jax.Array:
    """Constructs an identity matrix or a batch of them."""
    matrix = jnp.eye(num_rows, num_columns, dtype=array_dtype(dtype))
    return jnp.broadcast_to(matrix, (*(batch_shape or ()), *matrix.shape))


@op("range", on_host=True)
def range_(start: Operand, limit: Operand = None, delta: Operand = 1, dtype: DTypeLike | None = None) -> jax.Array:
    """Creates a sequence of numbers from `start` (by default 0) up to, but not including, `limit`.

    Raises:
        InvalidArgumentError: A bound is traced, so that the length is unknown; `delta` is 0; or `limit` lies behind
            `start` in the direction of `delta`.
    """
    first, last = (0, start) if limit is None else (start, limit)
    step = np.asarray(_host(delta))
    if not step.all():
        raise InvalidArgumentError.of(
            "tf.range",
            found="delta=0 was passed",
            rule="`delta` must not be 0: the range would have no end",
            remedy="pass a positive or a negative step",
        )
    bounds = [np.asarray(_host(first)), np.asarray(_host(last)), step]
    if bounds[0] > bounds[1] if step > 0 else bounds[0] < bounds[1]:
        raise InvalidArgumentError.of(
            "tf.range",
            found=f"start={bounds[0]}, limit={bounds[1]} and delta={step} were passed",
            rule="`delta` must lead from `start` to `limit`, as on TensorFlow; a range is empty only if they are equal",
            remedy="exchange the bounds, pass another sign of delta, or limit=tf.maximum(start, limit)",
        )
    if dtype is None and any(one.dtype.kind == "f" for one in bounds):
        wanted = np.result_type(*[one.dtype for one in bounds if one.dtype.kind == "f"])
        dtype = "float32" if wanted == np.float64 else wanted
    elif dtype is None:
        given = [one.dtype for one, raw in zip(bounds, (first, last, delta), strict=True) if not isinstance(raw, int)]
        dtype = np.result_type(*given) if given else "int32"
    return as_tensor(_steps(bounds, array_dtype(dtype)))


def _steps(bounds: Sequence[np.ndarray[Any, Any]], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype.kind in "iu":
        _require_whole(bounds, dtype)
        integers = np.arange(*[one.item() for one in bounds])
        return integers.astype(dtype) if fits(integers, dtype) else integers
    # In float32 as in TensorFlow: 3 / float32(0.00375) is 800, in float64 it is more, and the range has 801 elements.
    exact = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    start, stop, step = (one.astype(exact)[()] for one in bounds)
    size = max(0, int(np.ceil((stop - start) / step)))
    values: np.ndarray[Any, Any] = start + np.arange(size).astype(exact) * step
    return values.astype(dtype)


def _require_whole(bounds: Sequence[np.ndarray[Any, Any]], dtype: np.dtype[Any]) -> None:
    """Raises an error if the start, limit or step of a range of integers has a fractional part.

    A range of integers would drop the fraction of each element.
    """
    if all((one % 1 == 0).all() for one in bounds):
        return
    raise InvalidArgumentError.of(
        "tf.range",
        found=f"start, limit and delta are {', '.join(str(one) for one in bounds)}, and the dtype is {dtype}",
        rule="a range of integers must begin and end at integers, and have an integer step",
        remedy="round the numbers, or convert a range of floats with tf.cast",
    )


def _host(value: Operand) -> Any:
    try:
        return np.asarray(as_tensor(value)) if not isinstance(value, (int, float, np.ndarray)) else value
    except jax.errors.TracerArrayConversionError:
        raise InvalidArgumentError.of(
            "tf.range",
            found="a bound is a traced value",
            rule="the length of a range is a shape, which must be known while tracing",
            remedy="compute the bound from x.shape or tf.shape(x), or use tf.while_loop",
        ) from None


@op("linspace lin_space")
def linspace(start: Common, stop: Common, num: Int, name: str | None = None, axis: Int = 0) -> jax.Array:
    """Generates `num` evenly spaced values from `start` to `stop`, both included."""
    dtype = jnp.result_type(start, jnp.float32) if start.dtype.kind in "iu" else None
    return jnp.linspace(start, stop, num, axis=axis, dtype=dtype)


@op("shape")
def shape(input: Operand, out_type: DTypeLike = "int32") -> StaticTensor:
    """Returns the shape of a tensor as an integer tensor, whose value is known even while tracing."""
    return static_tensor(np.asarray(_shape_of(input), array_dtype(out_type)))


@op("shape_n")
def shape_n(input: Iterable[Operand], out_type: DTypeLike = "int32") -> list[StaticTensor]:
    """Returns the shapes of several tensors as integer tensors, whose values are known even while tracing."""
    return [shape(one, out_type) for one in input]


@op("size")
def size(input: Operand, out_type: DTypeLike = "int32") -> StaticTensor:
    """Returns the number of elements of a tensor as an integer tensor, known even while tracing."""
    return static_tensor(np.asarray(int(np.prod(_shape_of(input), dtype=np.int64)), array_dtype(out_type)))


@op("rank")
def rank(input: Operand) -> StaticTensor:
    """Returns the number of dimensions of a tensor as an integer tensor, known even while tracing."""
    return static_tensor(np.asarray(len(_shape_of(input)), np.int32))


def _shape_of(value: Operand) -> tuple[int, ...]:
    if isinstance(value, VariableStorage):
        return value.component_shape  # the shape of a variable may have unknown dimensions
    return tuple(value.shape) if hasattr(value, "shape") else tuple(as_tensor(value).shape)


@op("identity", on_host=True)
def identity(input: jax.Array) -> jax.Array:
    """Returns a tensor with the same contents as the input."""
    return jnp.copy(input)


@op("identity_n")
def identity_n(input: Iterable[Operand]) -> list[jax.Array]:
    """Returns a list of tensors with the same contents as the given tensors."""
    return [identity(one) for one in input]


@op("ensure_shape")
def ensure_shape(x: jax.Array, shape: ShapeLike | None) -> jax.Array:
    """Returns a tensor unchanged; raises an error if its shape is not compatible with `shape`.

    Raises:
        InvalidArgumentError: The shape is not compatible.
    """
    if not TensorShape(x.shape).is_compatible_with(shape):
        raise InvalidArgumentError.of(
            "tf.ensure_shape",
            found=f"the tensor has the shape {x.shape}",
            rule=f"the shape must be compatible with {TensorShape(shape)}",
            remedy="reshape the tensor, or pass None for dimensions that may vary",
        )
    return x


@op("reshape manip.reshape", on_host=True)
def reshape(tensor: jax.Array, shape: Ints) -> jax.Array:
    """Changes the shape of a tensor; one dimension may be -1, which is computed from the others.

    In a tensor without elements it is computed from the dimensions other than 0, as in TensorFlow.
    """
    if 0 in shape and -1 in shape and 0 in tensor.shape:
        shape = _with_missing(tensor.shape, shape)
    return tensor.reshape(shape)


def _with_missing(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Replaces -1 in the new shape of an empty tensor: reshaping ``(0, 2, 3)`` to ``(0, -1)`` gives ``(0, 6)``."""
    given = math.prod(size for size in new if size > 0)
    return tuple(math.prod(filter(None, old)) // given if size == -1 else size for size in new)


@op("transpose")
def transpose(a: jax.Array, perm: Ints | None = None, conjugate: bool = False) -> jax.Array:
    """Permutes the dimensions of a tensor by `perm`; reverses their order by default."""
    return jnp.transpose(jnp.conj(a) if conjugate else a, perm)


@op("squeeze", on_host=True)
def squeeze(input: jax.Array, axis: Axes = None) -> jax.Array:
    """Removes dimensions of size 1 from a tensor: all of them, or only those in `axis`."""
    return jnp.squeeze(input, None if axis == () else axis)


@op("concat", on_host=True)
def concat(values: Operand, axis: Int) -> jax.Array:
    """Concatenates tensors along an existing axis."""
    parts = tensors(*values) if isinstance(values, (list, tuple)) else [as_tensor(values)]
    with reported("tf.concat", parts):
        return jnp.concatenate(parts, axis=axis)


@op("stack parallel_stack", on_host=True)
def stack(values: Iterable[Operand], axis: Int = 0) -> jax.Array:
    """Stacks tensors of one shape along a new axis."""
    parts = tensors(*values)
    with reported("tf.stack", parts):
        return jnp.stack(parts, axis=axis)


@op("unstack", on_host=True)
def unstack(value: jax.Array, num: int | None = None, axis: Int = 0) -> list[jax.Array]:
    """Splits a tensor along an axis into a list of slices without that axis."""
    axis = normalize_axis_index(axis, value.ndim)
    if num is not None and value.shape[axis] != num:
        raise InvalidArgumentError.of(
            "tf.unstack",
            found=f"num={num} was passed for axis {axis} of a tensor of shape {value.shape}",
            rule="`num` must be the size of the axis",
            remedy="omit `num`",
        )
    return list(jnp.unstack(value, axis=axis))


@op("split", on_host=True)
def split(value: jax.Array, num_or_size_splits: StaticInts, axis: Int = 0, num: object = None) -> list[jax.Array]:
    """Splits a tensor along an axis into equal parts, or into parts of given sizes.

    One of the sizes may be -1, which is computed from the others.
    """
    where = normalize_axis_index(axis, value.ndim)
    return list(jax.lax.split(value, _split_sizes(value, num_or_size_splits, where), axis=where))


def _split_sizes(tensor: jax.Array, wanted: Any, where: int) -> list[int]:
    length = tensor.shape[where]
    if np.ndim(wanted) == 0:
        parts = static_int(wanted, called="tf.split", argument="num_or_size_splits")
        sizes = [length // parts] * parts if parts > 0 else []
        rule, remedy = (
            "the number of parts must be a divisor of the size of the axis",
            "pass a list of sizes instead",
        )
    else:
        sizes = list(static_ints(wanted, called="tf.split", argument="num_or_size_splits"))
        sizes = [length - (sum(sizes) + 1) if one == -1 else one for one in sizes]
        rule, remedy = "the sizes must add up to the size of the axis", "pass -1 for one size, to let it take the rest"
    if sum(sizes) != length or not sizes:
        raise InvalidArgumentError.of(
            "tf.split",
            found=f"num_or_size_splits={wanted} was passed for axis {where}, whose size is {length}",
            rule=rule,
            remedy=remedy,
        )
    return sizes


@op("tile manip.tile")
def tile(input: jax.Array, multiples: Ints) -> jax.Array:
    """Repeats a tensor ``multiples[i]`` times along each axis i."""
    if len(multiples) != input.ndim:
        raise InvalidArgumentError.of(
            "tf.tile",
            found=f"`multiples` is {multiples}, the tensor has the shape {input.shape}",
            rule="`multiples` must have one number for each axis of the tensor",
            remedy="pass 1 for an axis that is not repeated",
        )
    return jnp.tile(input, multiples)


@op("repeat")
def repeat(input: jax.Array, repeats: Ints, axis: Int | None = None) -> jax.Array:
    """Repeats each element of a tensor, or each slice along `axis`, `repeats` times."""
    if min(repeats, default=0) < 0:
        raise InvalidArgumentError.of(
            "tf.repeat",
            found=f"`repeats` is {list(repeats)}",
            rule="`repeats` must be 0 or more",
            remedy="correct the numbers",
        )
    if len(repeats) == 1:
        return jnp.repeat(input, repeats[0], axis)
    return jnp.repeat(input, np.asarray(repeats), axis, total_repeat_length=sum(repeats))


@op("pad")
def pad(
    tensor: jax.Array, paddings: Iterable[StaticInts], mode: str = "CONSTANT", constant_values: Operand = 0
) -> jax.Array:
    """Pads a tensor with a constant or with reflected elements before and after each dimension.

    Dimension i gets ``paddings[i] = (before, after)`` elements; modes are CONSTANT, REFLECT and SYMMETRIC.

    Raises:
        InvalidArgumentError: The mode is unknown.
    """
    modes = ("CONSTANT", "REFLECT", "SYMMETRIC")
    if mode.upper() not in modes:
        raise InvalidArgumentError.of(
            "tf.pad",
            found=f"`mode` is {mode!r}",
            rule=f"`mode` must be one of {', '.join(modes)}",
            remedy="pass one of them",
        )
    widths = [static_ints(one, called="tf.pad", argument="paddings") for one in paddings]
    _check_paddings(tensor.shape, widths, mode.upper())
    options = {"constant_values": _filling(constant_values, tensor)} if mode.upper() == "CONSTANT" else {}
    return jnp.pad(tensor, widths, mode=mode.lower(), **options)


def _filling(value: Operand, tensor: jax.Array) -> Any:
    """Returns the padding value for `tf.pad`; raises an error if the tensor's dtype cannot represent the value."""
    if isinstance(value, (int, float)) and value == 0:
        return value
    return without_cutting("tf.pad", "constant_values", value, tensor.dtype)


def _check_paddings(shape: tuple[int, ...], widths: Sequence[tuple[int, ...]], mode: str) -> None:
    """Raises an error unless each axis has a pair of paddings, and enough elements for padding by reflection.

    JAX would apply one pair to all axes, and repeat the reflection.
    """
    most = {"CONSTANT": 2**62, "REFLECT": -1, "SYMMETRIC": 0}[mode]
    paired = len(widths) == len(shape) and all(len(pair) == 2 for pair in widths)
    if not paired or any(max(pair) > size + most for pair, size in zip(widths, shape, strict=True)):
        raise InvalidArgumentError.of(
            "tf.pad",
            found=f"`paddings` is {[list(pair) for pair in widths]} for a tensor of shape {shape}",
            rule="each axis must have a pair (before, after); both numbers must be less than the size of the axis "
            "in mode REFLECT, and at most the size in mode SYMMETRIC",
            remedy="pass [0, 0] for an axis that is not padded",
        )


@op("roll")
def roll(input: jax.Array, shift: Operand, axis: Axes) -> jax.Array:
    """Shifts a tensor's elements along axes; elements shifted past the end return at the beginning."""
    by = shift if isinstance(shift, (int, tuple)) else tuple(shift) if isinstance(shift, list) else as_tensor(shift)
    return jnp.roll(input, by, axis)


@op("meshgrid")
def meshgrid(*args: Operand, indexing: str = "xy", name: str | None = None) -> list[jax.Array]:
    """Returns the coordinate tensors of a grid, given the coordinates along each axis."""
    return list(jnp.meshgrid(*[as_tensor(one) for one in args], indexing=indexing))


@op("broadcast_static_shape", named=False)
def broadcast_static_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> TensorShape:
    """Returns the `TensorShape` to which tensors of two given shapes broadcast."""
    return TensorShape(np.broadcast_shapes(tuple(TensorShape(shape_x)), tuple(TensorShape(shape_y))))  # type: ignore[arg-type]


@op("broadcast_dynamic_shape", named=False)
def broadcast_dynamic_shape(shape_x: StaticInts, shape_y: StaticInts) -> StaticTensor:
    """Returns the shape to which tensors of two given shapes broadcast, as an integer tensor."""
    shapes = shape_x, shape_y
    sides = [static_ints(one, called="tf.broadcast_dynamic_shape", argument="shape") for one in shapes]
    dtype = np.result_type(np.int32, *(one.dtype for one in shapes if hasattr(one, "dtype")))
    return static_tensor(np.asarray(np.broadcast_shapes(*sides), dtype))


@op("no_op")
def no_op() -> None:
    """Does nothing, and returns None (`tf.no_op`)."""


@op("group")
def group(*inputs: object, name: str | None = None) -> None:
    """Does nothing (`tf.group`): operations already run in program order."""


@op("tuple")
def tuple_(tensors: Sequence[Any], control_inputs: object = None) -> list[jax.Array]:
    """Returns tensors as a list (`tf.tuple`)."""
    return [as_tensor(one) for one in tensors]


@op("executing_eagerly", named=False)
def executing_eagerly() -> bool:
    """Returns whether operations run immediately; False while `tf.function` or a JAX transform traces."""
    if is_eager():
        return True
    return not isinstance(jnp.add(np.int32(0), np.int32(0)), Tracer)
