"""Array operations: `zeros`, `reshape`, `concat`, `pad`, `transpose` and similar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import Tracer, is_eager
from mirrored._typing import DTypeLike, Operand, ShapeLike, StaticInts
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._shapes import TensorShape
from mirrored.tf._static import StaticTensor, static_axis, static_int, static_ints, static_tensor
from mirrored.tf._table import hosted, op, reported, tensors
from mirrored.tf._tensors import as_tensor, constant, convert_to_tensor, is_tensor

op("constant")(hosted(constant))
op("convert_to_tensor")(hosted(convert_to_tensor))
op("is_tensor")(is_tensor)


@op("zeros")
def zeros(shape: StaticInts, dtype: DTypeLike = "float32", name: str | None = None, layout: object = None) -> jax.Array:
    """Creates a tensor with all elements set to zero."""
    del name, layout
    return jnp.zeros(static_ints(shape, called="tf.zeros", argument="shape"), array_dtype(dtype))


@op("ones")
def ones(shape: StaticInts, dtype: DTypeLike = "float32", name: str | None = None, layout: object = None) -> jax.Array:
    """Creates a tensor with all elements set to one."""
    del name, layout
    return jnp.ones(static_ints(shape, called="tf.ones", argument="shape"), array_dtype(dtype))


@op("zeros_like")
def zeros_like(
    input: Operand, dtype: DTypeLike | None = None, name: str | None = None, layout: object = None
) -> jax.Array:
    """Creates a tensor of zeros with the shape of the input, and its dtype unless `dtype` is given."""
    del name, layout
    value = as_tensor(input)
    return jnp.zeros_like(value, dtype=value.dtype if dtype is None else array_dtype(dtype))


@op("ones_like")
def ones_like(
    input: Operand, dtype: DTypeLike | None = None, name: str | None = None, layout: object = None
) -> jax.Array:
    """Creates a tensor of ones with the shape of the input, and its dtype unless `dtype` is given."""
    del name, layout
    value = as_tensor(input)
    return jnp.ones_like(value, dtype=value.dtype if dtype is None else array_dtype(dtype))


@op("fill")
def fill(dims: StaticInts, value: Operand, name: str | None = None, layout: object = None) -> jax.Array:
    """Creates a tensor filled with a scalar value."""
    del name, layout
    return jnp.broadcast_to(as_tensor(value), static_ints(dims, called="tf.fill", argument="dims"))


@op("eye linalg.eye")
def eye(
    num_rows: SupportsIndex,
    num_columns: SupportsIndex | None = None,
    batch_shape: StaticInts | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> jax.Array:
    """Constructs an identity matrix or a batch of them."""
    del name
    rows = static_int(num_rows, called="tf.eye", argument="num_rows")
    columns = rows if num_columns is None else static_int(num_columns, called="tf.eye", argument="num_columns")
    batch = () if batch_shape is None else static_ints(batch_shape, called="tf.eye", argument="batch_shape")
    return jnp.broadcast_to(jnp.eye(rows, columns, dtype=array_dtype(dtype)), (*batch, rows, columns))


@op("range")
@hosted
def range_(
    start: Operand, limit: Operand = None, delta: Operand = 1, dtype: DTypeLike | None = None, name: str | None = None
) -> jax.Array:
    """Creates a sequence of numbers from `start` (by default 0) up to, but not including, `limit`.

    Raises:
        InvalidArgumentError: A bound is traced, so that the length is unknown.
    """
    del name
    first, last = (0, start) if limit is None else (start, limit)
    bounds = [np.asarray(_host(one)) for one in (first, last, delta)]
    if dtype is None and any(one.dtype.kind == "f" for one in bounds):
        wanted = np.result_type(*[one.dtype for one in bounds if one.dtype.kind == "f"])
        dtype = "float32" if wanted == np.float64 else wanted
    elif dtype is None:
        given = [one.dtype for one, raw in zip(bounds, (first, last, delta), strict=True) if not isinstance(raw, int)]
        dtype = np.result_type(*given) if given else "int32"
    return as_tensor(np.arange(*[one.item() for one in bounds]).astype(array_dtype(dtype)))


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
def linspace(start: Operand, stop: Operand, num: SupportsIndex, name: str | None = None, axis: int = 0) -> jax.Array:
    """Generates `num` evenly spaced values from `start` to `stop`, both included."""
    del name
    low, high = tensors(start, stop)
    count = static_int(num, called="tf.linspace", argument="num")
    return jnp.linspace(
        low, high, count, axis=axis, dtype=jnp.result_type(low, jnp.float32) if low.dtype.kind in "iu" else None
    )


@op("shape")
def shape(input: Operand, out_type: DTypeLike = "int32", name: str | None = None) -> StaticTensor:
    """Returns the shape of a tensor as an integer tensor, whose value is known also while tracing."""
    del name
    return static_tensor(np.asarray(_shape_of(input), array_dtype(out_type)))


@op("shape_n")
def shape_n(input: Iterable[Operand], out_type: DTypeLike = "int32", name: str | None = None) -> list[StaticTensor]:
    """Returns the shapes of several tensors as integer tensors, whose values are known also while tracing."""
    del name
    return [shape(one, out_type) for one in input]


@op("size")
def size(input: Operand, out_type: DTypeLike = "int32", name: str | None = None) -> StaticTensor:
    """Returns the number of elements of a tensor as an integer tensor, known also while tracing."""
    del name
    return static_tensor(np.asarray(int(np.prod(_shape_of(input), dtype=np.int64)), array_dtype(out_type)))


@op("rank")
def rank(input: Operand, name: str | None = None) -> StaticTensor:
    """Returns the number of dimensions of a tensor as an integer tensor, known also while tracing."""
    del name
    return static_tensor(np.asarray(len(_shape_of(input)), np.int32))


def _shape_of(value: Operand) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else tuple(as_tensor(value).shape)


@op("identity")
@hosted
def identity(input: Operand, name: str | None = None) -> jax.Array:
    """Returns a tensor with the same contents as the input."""
    del name
    return jnp.copy(as_tensor(input))


@op("identity_n")
def identity_n(input: Iterable[Operand], name: str | None = None) -> list[jax.Array]:
    """Returns a list of tensors with the same contents as the given ones."""
    del name
    return [identity(one) for one in input]


@op("ensure_shape")
def ensure_shape(x: Operand, shape: ShapeLike | None, name: str | None = None) -> jax.Array:
    """Returns a tensor unchanged; raises an error if its shape is not compatible with `shape`.

    Raises:
        InvalidArgumentError: The shape is not compatible.
    """
    del name
    value = as_tensor(x)
    if not TensorShape(value.shape).is_compatible_with(shape):
        raise InvalidArgumentError.of(
            "tf.ensure_shape",
            found=f"the tensor has the shape {value.shape}",
            rule=f"the shape must be compatible with {TensorShape(shape)}",
            remedy="reshape the tensor, or pass None for dimensions that may vary",
        )
    return value


@op("reshape manip.reshape")
@hosted
def reshape(tensor: Operand, shape: StaticInts, name: str | None = None) -> jax.Array:
    """Changes the shape of a tensor; one dimension may be -1, which is computed from the others."""
    del name
    value = as_tensor(tensor)
    with reported("tf.reshape", [value]):
        return value.reshape(static_ints(shape, called="tf.reshape", argument="shape"))


@op("transpose")
def transpose(
    a: Operand, perm: StaticInts | None = None, conjugate: bool = False, name: str | None = None
) -> jax.Array:
    """Permutes the dimensions of a tensor by `perm`; reverses their order by default."""
    del name
    value = as_tensor(a)
    value = jnp.conj(value) if conjugate else value
    with reported("tf.transpose", [value]):
        return jnp.transpose(value, None if perm is None else static_ints(perm, called="tf.transpose", argument="perm"))


@op("squeeze")
@hosted
def squeeze(input: Operand, axis: StaticInts | None = None, name: str | None = None) -> jax.Array:
    """Removes dimensions of size 1 from a tensor: those in `axis`, by default all."""
    del name
    value, where = as_tensor(input), static_axis(axis, called="tf.squeeze")
    with reported("tf.squeeze", [value]):
        return jnp.squeeze(value, None if where == () else where)


@op("expand_dims")
@hosted
def expand_dims(input: Operand, axis: SupportsIndex, name: str | None = None) -> jax.Array:
    """Inserts a dimension of size 1 into a tensor, at position `axis`."""
    del name
    value = as_tensor(input)
    with reported("tf.expand_dims", [value]):
        return jnp.expand_dims(value, static_int(axis, called="tf.expand_dims", argument="axis"))


@op("concat")
@hosted
def concat(values: Operand, axis: SupportsIndex, name: str | None = None) -> jax.Array:
    """Concatenates tensors along an existing axis."""
    del name
    parts = tensors(*values) if isinstance(values, (list, tuple)) else [as_tensor(values)]
    with reported("tf.concat", parts):
        return jnp.concatenate(parts, axis=static_int(axis, called="tf.concat", argument="axis"))


@op("stack parallel_stack")
@hosted
def stack(values: Iterable[Operand], axis: SupportsIndex = 0, name: str | None = None) -> jax.Array:
    """Stacks tensors of one shape along a new axis."""
    del name
    parts = tensors(*values)
    with reported("tf.stack", parts):
        return jnp.stack(parts, axis=static_int(axis, called="tf.stack", argument="axis"))


@op("unstack")
@hosted
def unstack(
    value: Operand, num: int | None = None, axis: SupportsIndex = 0, name: str | None = None
) -> list[jax.Array]:
    """Splits a tensor along an axis into a list of slices without that axis."""
    del name
    tensor = as_tensor(value)
    where = static_int(axis, called="tf.unstack", argument="axis")
    if num is not None and tensor.shape[where] != num:
        raise InvalidArgumentError.of(
            "tf.unstack",
            found=f"num={num} was passed for axis {where} of a tensor of shape {tensor.shape}",
            rule="`num` must be the size of the axis",
            remedy="omit `num`",
        )
    return [jax.lax.index_in_dim(tensor, i, where, keepdims=False) for i in range(tensor.shape[where])]


@op("split")
@hosted
def split(
    value: Operand, num_or_size_splits: StaticInts, axis: SupportsIndex = 0, num: object = None, name: str | None = None
) -> list[jax.Array]:
    """Splits a tensor along an axis into equal parts, or into parts of given sizes.

    One of the sizes may be -1, which is computed from the others.
    """
    del num, name
    tensor = as_tensor(value)
    where = static_int(axis, called="tf.split", argument="axis")
    sizes = _split_sizes(tensor, num_or_size_splits, where)
    edges = np.cumsum([0, *sizes])
    return [
        jax.lax.slice_in_dim(tensor, int(low), int(high), axis=where)
        for low, high in zip(edges[:-1], edges[1:], strict=True)
    ]


def _split_sizes(tensor: jax.Array, wanted: Any, where: int) -> list[int]:
    length = tensor.shape[where]
    if np.ndim(wanted) == 0:
        parts = static_int(wanted, called="tf.split", argument="num_or_size_splits")
        sizes = [length // parts] * parts
        rule, remedy = "the number of parts must divide the size of the axis", "pass a list of sizes instead"
    else:
        sizes = list(static_ints(wanted, called="tf.split", argument="num_or_size_splits"))
        sizes = [length - (sum(sizes) + 1) if one == -1 else one for one in sizes]
        rule, remedy = "the sizes must add up to the size of the axis", "pass -1 for one size, to let it take the rest"
    if sum(sizes) != length:
        raise InvalidArgumentError.of(
            "tf.split",
            found=f"num_or_size_splits={wanted} was passed for axis {where}, whose size is {length}",
            rule=rule,
            remedy=remedy,
        )
    return sizes


@op("tile manip.tile")
@hosted
def tile(input: Operand, multiples: StaticInts, name: str | None = None) -> jax.Array:
    """Repeats a whole tensor `multiples[i]` times along dimension i."""
    del name
    return jnp.tile(as_tensor(input), static_ints(multiples, called="tf.tile", argument="multiples"))


@op("repeat")
def repeat(
    input: Operand, repeats: StaticInts, axis: SupportsIndex | None = None, name: str | None = None
) -> jax.Array:
    """Repeats each element of a tensor, or each slice along `axis`, `repeats` times."""
    del name
    counts = static_ints(repeats, called="tf.repeat", argument="repeats")
    how_often: Any = counts[0] if len(counts) == 1 else np.asarray(counts)
    total = None if len(counts) == 1 else sum(counts)
    return jnp.repeat(
        as_tensor(input),
        how_often,
        None if axis is None else static_int(axis, called="tf.repeat", argument="axis"),
        total_repeat_length=total,
    )


@op("pad")
def pad(
    tensor: Operand,
    paddings: Iterable[StaticInts],
    mode: str = "CONSTANT",
    constant_values: Operand = 0,
    name: str | None = None,
) -> jax.Array:
    """Pads a tensor with zeros or reflected elements before and after each dimension.

    Dimension i gets ``paddings[i] = (before, after)`` elements; modes are CONSTANT, REFLECT and SYMMETRIC.
    """
    del name
    value = as_tensor(tensor)
    modes = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": "symmetric"}
    if mode.upper() not in modes:
        raise ValueError(f"Value of argument `mode` expected to be one of {', '.join(modes)}. Received: {mode}")
    widths = [static_ints(one, called="tf.pad", argument="paddings") for one in paddings]
    with reported("tf.pad", [value]):
        if mode.upper() == "CONSTANT":
            return jnp.pad(value, widths, constant_values=constant_values)
        return jnp.pad(value, widths, mode=modes[mode.upper()])


@op("reverse")
@hosted
def reverse(tensor: Operand, axis: StaticInts, name: str | None = None) -> jax.Array:
    """Reverses the order of a tensor's elements along the given axes."""
    del name
    return jnp.flip(as_tensor(tensor), static_axis(axis, called="tf.reverse"))


@op("roll")
def roll(input: Operand, shift: Operand, axis: StaticInts, name: str | None = None) -> jax.Array:
    """Shifts a tensor's elements along axes; elements shifted past the end return at the beginning."""
    del name
    by = shift if isinstance(shift, (int, tuple)) else tuple(shift) if isinstance(shift, list) else as_tensor(shift)
    return jnp.roll(as_tensor(input), by, static_axis(axis, called="tf.roll"))


@op("meshgrid")
def meshgrid(*args: Operand, indexing: str = "xy", name: str | None = None) -> list[jax.Array]:
    """Returns the coordinate tensors of a grid, given the coordinates along each axis."""
    del name
    return list(jnp.meshgrid(*[as_tensor(one) for one in args], indexing=indexing))


@op("broadcast_to")
@hosted
def broadcast_to(input: Operand, shape: StaticInts, name: str | None = None) -> jax.Array:
    """Broadcasts a tensor to a given shape."""
    del name
    value = as_tensor(input)
    with reported("tf.broadcast_to", [value]):
        return jnp.broadcast_to(value, static_ints(shape, called="tf.broadcast_to", argument="shape"))


@op("broadcast_static_shape")
def broadcast_static_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> TensorShape:
    """Returns the `TensorShape` to which tensors of two given shapes broadcast."""
    return TensorShape(np.broadcast_shapes(tuple(TensorShape(shape_x)), tuple(TensorShape(shape_y))))  # type: ignore[arg-type]


@op("broadcast_dynamic_shape")
def broadcast_dynamic_shape(shape_x: StaticInts, shape_y: StaticInts) -> StaticTensor:
    """Returns the shape to which tensors of two given shapes broadcast, as an integer tensor."""
    sides = [static_ints(one, called="tf.broadcast_dynamic_shape", argument="shape") for one in (shape_x, shape_y)]
    return static_tensor(np.broadcast_shapes(*sides))


@op("no_op")
def no_op(name: str | None = None) -> None:
    """Does nothing, and returns None (`tf.no_op`)."""
    del name


@op("group")
def group(*inputs: object, name: str | None = None) -> None:
    """Does nothing (`tf.group`): operations already run in program order."""
    del inputs, name


@op("tuple")
def tuple_(tensors: Sequence[Any], control_inputs: object = None, name: str | None = None) -> list[jax.Array]:
    """Returns tensors as a list (`tf.tuple`)."""
    del control_inputs, name
    return [as_tensor(one) for one in tensors]


@op("executing_eagerly")
def executing_eagerly() -> bool:
    """Returns whether operations run immediately; False while `tf.function` or a JAX transform traces."""
    if is_eager():
        return True
    return not isinstance(jnp.add(np.int32(0), np.int32(0)), Tracer)
