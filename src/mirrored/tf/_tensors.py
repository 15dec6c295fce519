"""Creates tensors from numbers, lists and NumPy arrays: `constant`, `convert_to_tensor` and `as_tensor`.

A tensor is a `jax.Array`. Python floats become float32 and ints int32, regardless of JAX's 64-bit mode. NumPy arrays
keep their dtype as far as JAX has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array, fits
from mirrored._jax.boxes import Array
from mirrored._jax.sequences import OPERATORS, beside, common_dtype, has_wide_items, stacked, with_sequences
from mirrored._jax.traces import Tracer, is_eager
from mirrored._typing import DTypeLike, Operand, ShapeLike, StaticInts
from mirrored.patches import is_applied, replace
from mirrored.runtime.ambient import ambient
from mirrored.tf._data.host_arrays import as_bytes_array, is_text, on_host
from mirrored.tf._dtypes import DType, array_dtype, as_dtype, string
from mirrored.tf._errors import InvalidArgumentError, TracedValueError
from mirrored.tf._narrowed import requested_as
from mirrored.tf._shapes import TensorShape
from mirrored.tf._static import StaticTensor, static_ints
from mirrored.values.operators import SEQUENCES
from mirrored.variables.slicing import slice_of

Tensor = jax.Array


def as_tensor(value: Operand, dtype: DTypeLike | None = None) -> jax.Array:
    """Converts a number, list, NumPy array or variable to a tensor (a `jax.Array`).

    Args:
        value: A tensor, variable, NumPy array, Python number, or a list of any of them (lists of tensors are stacked).
        dtype: The dtype for values that are not tensors yet; None keeps or infers it.

    Raises:
        TypeError: The value cannot become an array (strings, objects, per-replica values in cross-replica context).
        ValueError: A nested list has uneven lengths.
    """
    if isinstance(value, jax.Array):
        return value
    if dtype is None and type(value) in _PYTHON_SCALARS and is_eager():
        try:
            return jnp.array(value, _PYTHON_SCALARS[type(value)])  # takes half the time of the path through NumPy
        except OverflowError:  # an integer of more than 32 bits
            pass
    if hasattr(type(value), "__jax_array__"):
        return value.__jax_array__()  # type: ignore[no-any-return]
    if isinstance(value, (list, tuple)) and _has_tensors(value):
        if dtype is None:
            return stacked(value)
        wanted = array_dtype(dtype)
        if wanted.kind in "iub":
            _refuse_floats("a list", common_dtype(value), wanted)
        return stacked(value, wanted)
    return from_host(_host_array(value, dtype))


def from_host(array: np.ndarray[Any, Any]) -> jax.Array:
    """Converts a NumPy array to a tensor whose value is known even while tracing."""
    if is_eager():
        return as_array(array)
    with jax.ensure_compile_time_eval():
        return as_array(array)


def _host_array(value: Operand, dtype: DTypeLike | None) -> np.ndarray[Any, Any]:
    array = np.asarray(None if isinstance(value, str | bytes) else value)
    if array.dtype.kind not in "biufcV" or array.dtype.fields:
        raise TypeError(
            f"Attempt to convert a value ({value!r}) with an unsupported type ({type(value)}) to a Tensor: "
            "tensors are of numbers and booleans (strings and objects stay on the host, as NumPy arrays)"
        )
    if dtype is not None:
        return _checked_cast(array, array_dtype(dtype), from_python=not isinstance(value, (np.ndarray, np.generic)))
    if isinstance(value, (np.ndarray, np.generic)):
        return _cast_checking_range(array, array_dtype(array.dtype))
    return _cast_checking_range(
        array, array_dtype(array.dtype) if has_wide_items(value, array) else _python_dtype(array)
    )


def _python_dtype(array: np.ndarray[Any, Any]) -> np.dtype[Any]:
    """Returns the dtype of a tensor of Python numbers: 32 bits, or 64 for larger integers in JAX's 64-bit mode."""
    dtype = np.dtype(_PYTHON_DTYPES.get(array.dtype.name, array.dtype))
    return dtype if fits(array, dtype) else array_dtype(array.dtype)


_PYTHON_SCALARS = {float: np.float32, int: np.int32, bool: np.bool_}
_PYTHON_DTYPES = {"float64": np.float32, "int64": np.int32, "complex128": np.complex64}


def _checked_cast(array: np.ndarray[Any, Any], dtype: np.dtype[Any], *, from_python: bool) -> np.ndarray[Any, Any]:
    integral = dtype.kind in "iub"
    if from_python and array.size and integral and array.dtype.kind in "fc":
        raise TypeError(f"Cannot convert {array.tolist()!r} to EagerTensor of dtype {as_dtype(dtype).name}")
    return _cast_checking_range(array, dtype)


def _refuse_floats(described: str, found: DTypeLike, wanted: np.dtype[Any]) -> None:
    if wanted.kind in "iub" and jnp.issubdtype(found, jnp.inexact):
        raise TypeError(
            f"Cannot convert {described} of dtype {np.dtype(found).name} to a Tensor of dtype {as_dtype(wanted).name}, "
            "which would cut off fractions: use tf.cast"
        )


def _cast_checking_range(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Converts an array to the dtype of a tensor; raises an error if 64-bit integers do not fit into 32 bits."""
    if not fits(array, dtype):
        raise InvalidArgumentError.of(
            "tf.convert_to_tensor",
            found=f"the values {np.array2string(array, threshold=5)} of dtype {array.dtype} do not fit into {dtype}",
            rule="integers of tensors have 32 bits, unless JAX's 64-bit mode is on",
            remedy="set the environment variable JAX_ENABLE_X64=1, or reduce the numbers (x % 2**31) with NumPy",
        )
    return array.astype(dtype, copy=False)


def _has_tensors(value: Sequence[Any]) -> bool:
    return any(
        isinstance(one, jax.Array)
        or hasattr(type(one), "__jax_array__")
        or (isinstance(one, (list, tuple)) and _has_tensors(one))
        for one in value
    )


def _is_number(value: object) -> TypeGuard[bool | int | float | complex]:
    return type(value) in (bool, int, float, complex)


def operands(values: Sequence[Any]) -> list[Any]:
    """Converts operands to tensors, but leaves Python numbers unchanged if other operands are tensors.

    The numbers then take the dtype of the tensors, and so do lists and tuples.
    """
    given = [_is_number(one) or type(one) in SEQUENCES for one in values]
    if all(given) or not any(given):
        return [as_tensor(one) for one in values]
    found = [one if python else as_tensor(one) for one, python in zip(values, given, strict=True)]
    dtype = jnp.result_type(*(one for one, python in zip(found, given, strict=True) if not python))
    return [_converted(beside(one, dtype)) if type(one) in SEQUENCES else one for one in found]


def without_cutting(called: str, argument: str, value: Operand, dtype: DTypeLike) -> jax.Array:
    """Converts a value to insert into a tensor of `dtype`; raises an error for floats if `dtype` is an integer dtype.

    JAX would truncate the floats. Python numbers and lists get `dtype`; tensors keep their own. A NumPy scalar without
    a fraction counts as an integer.
    """
    exact = not jnp.issubdtype(dtype, jnp.inexact)
    if exact and isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind == "f" and value.shape == ():
        value = int(value) if float(value).is_integer() else np.asarray(value)  # np.float64 is a Python float, too
    found = as_tensor(value, dtype if isinstance(value, (int, float, list, tuple)) else None)
    if not exact or not jnp.issubdtype(found.dtype, jnp.inexact):
        return found
    raise InvalidArgumentError.of(
        called,
        found=f"`{argument}` has the dtype {found.dtype}, the tensor {np.dtype(dtype).name}",
        rule=f"`{argument}` of a tensor of integers must be integers",
        remedy="round it, and convert it with tf.cast; or convert the tensor",
    )


def _converted(value: jax.Array | np.ndarray[Any, Any]) -> jax.Array:
    return value if isinstance(value, jax.Array) else from_host(value)


def is_host(value: object) -> bool:
    """Returns whether a value consists only of Python numbers, strings, dtypes and results of `tf.shape`."""
    if isinstance(value, (list, tuple)):
        return all(is_host(one) for one in value)
    return value is None or isinstance(value, (StaticTensor, np.integer, str, DType)) or _is_number(value)


def has_static(value: object) -> bool:
    """Returns whether a value is a `StaticTensor`, or a list or tuple that contains one."""
    if isinstance(value, (list, tuple)):
        return any(has_static(one) for one in value)
    return isinstance(value, StaticTensor)


def constant(
    value: Operand, dtype: DTypeLike | None = None, shape: StaticInts | None = None, name: str | None = None
) -> jax.Array:
    """Creates a tensor from a number, list or NumPy array.

    Strings become bytes on the host, with the methods of a tensor.

    Context: any; the value of the result is known also while tracing.

    Args:
        value: A number, list or NumPy array.
        dtype: Default: float32 for Python floats, int32 for ints, the array's own dtype for NumPy arrays.
        shape: The shape to which the value is reshaped; a single value fills it.
        name: Accepted and ignored.

    Raises:
        TypeError: The value is not a number, or is a float for an integer type.
        InvalidArgumentError: The number of elements does not match `shape`.
    """
    del name
    if is_text(value) and (dtype is None or as_dtype(dtype) is string):
        return _texts(value, shape)  # type: ignore[no-any-return]
    tensor = _in_replica(as_tensor(value, dtype))
    if dtype is not None and tensor.dtype != array_dtype(dtype):
        _refuse_floats("a Tensor", tensor.dtype, array_dtype(dtype))
        tensor = tensor.astype(array_dtype(dtype))
    if shape is None:
        return requested_as(dtype, tensor, value)
    wanted = static_ints(shape, called="tf.constant", argument="shape")
    if tensor.size != 1 and tensor.size != int(np.prod(wanted)):
        raise InvalidArgumentError.of(
            "tf.constant",
            found=f"{tensor.size} values were passed for the shape {wanted}",
            rule="a constant must have as many values as its shape has elements, or a single value",
            remedy="omit `shape`, or pass as many values as it has elements",
        )
    made = jnp.broadcast_to(tensor.reshape(()), wanted) if tensor.size == 1 else tensor.reshape(wanted)
    return requested_as(dtype, made, value)


def _texts(value: Any, shape: StaticInts | None = None) -> Any:
    """Converts one or more strings to a string tensor, which stays on the host."""
    array = as_bytes_array(value)
    if shape is not None:
        wanted = static_ints(shape, called="tf.constant", argument="shape")
        array = np.broadcast_to(array.reshape(()), wanted).copy() if array.size == 1 else array.reshape(wanted)
    return on_host(array if array.ndim else array[()])


def _in_replica(tensor: jax.Array) -> jax.Array:
    """Copies a constant in compiled replica code, so that `strategy.run` returns a separate value per replica."""
    if isinstance(tensor, Tracer) or ambient().replica is None or is_eager():
        return tensor
    return jnp.copy(tensor)


def convert_to_tensor(
    value: Operand, dtype: DTypeLike | None = None, dtype_hint: DTypeLike | None = None, name: str | None = None
) -> jax.Array:
    """Converts a number, list, NumPy array or variable to a tensor (`tf.convert_to_tensor`), as `tf.constant` does.

    Args:
        value: A tensor, variable, NumPy array, Python number, or a (nested) list of any of them.
        dtype: The required dtype; a tensor of another dtype raises an error, as in TensorFlow.
        dtype_hint: The preferred dtype for values that are not tensors; ignored if it does not fit.
        name: Accepted and ignored.

    Raises:
        InvalidArgumentError: The value is a tensor of another dtype.
        TypeError: The value cannot become an array.
    """
    del name
    if is_text(value) and (dtype is None or as_dtype(dtype) is string):
        return _texts(value)  # type: ignore[no-any-return]
    if dtype is None and dtype_hint is not None:
        try:
            return as_tensor(value, dtype_hint)
        except TypeError:
            return as_tensor(value)
    tensor = as_tensor(value, dtype)
    if dtype is not None and tensor.dtype != array_dtype(dtype):
        raise InvalidArgumentError.of(
            "tf.convert_to_tensor",
            found=f"Tensor conversion requested dtype {as_dtype(dtype).name} for Tensor with dtype {tensor.dtype}",
            rule="a conversion cannot change the dtype of a tensor",
            remedy="use tf.cast(value, dtype)",
        )
    return requested_as(dtype, tensor, value)


def is_tensor(x: object) -> bool:
    """Returns whether a value is a tensor: a JAX array, a result of `tf.shape`, or a variable."""
    return isinstance(x, (jax.Array, StaticTensor)) or hasattr(type(x), "__jax_array__")


def _array_numpy(self: jax.Array) -> Any:
    """Copies the array's value to a NumPy array; a scalar becomes a NumPy scalar."""
    return np.array(self)[()]


def _tracer_numpy(self: Any) -> Any:
    """Returns a tracer's value as a NumPy array under an eager gradient tape; raises an error in compiled code."""
    try:
        return np.array(np.asarray(self))[()]
    except jax.errors.TracerArrayConversionError:
        raise TracedValueError(
            "numpy()",
            found=f"the value of type {self.aval.str_short()} is traced: it has no elements yet",
            rule="numpy() can only be called when code runs eagerly",
            remedy="call numpy() on the result outside tf.function, print with tf.print, or switch compilation off "
            "with tf.config.run_functions_eagerly(True)",
        ) from None


def _get_shape(self: jax.Array) -> TensorShape:
    """Returns the shape as a TensorFlow `TensorShape`."""
    return TensorShape(self.shape)


def _set_shape(self: jax.Array, shape: ShapeLike | None) -> None:
    """Raises an error unless the array's shape is compatible with the given shape.

    Raises:
        ValueError: The shape differs.
    """
    if not TensorShape(shape).is_compatible_with(self.shape):
        raise ValueError(f"Tensor's shape {self.shape} is not compatible with supplied shape {shape}.")


def _assign(self: jax.Array) -> Callable[..., Any]:
    """The method that assigns a slice of a variable: ``variable[1:].assign(value)``.

    Raises:
        AttributeError: The array is not a slice of a variable.
    """
    part = slice_of(self)
    if part is None:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'assign'")
    assign = part.assign

    def assign_slice(value: object, name: str | None = None) -> Any:
        """Replaces this slice of the variable, and returns the variable's new value."""
        return assign(value)

    return assign_slice


def add_methods() -> None:
    """Adds the methods `numpy`, `get_shape` and `set_shape` to arrays, and `assign` to slices of variables.

    The operators of arrays then accept lists, tuples and shapes, which JAX refuses, as the other operand.
    """
    if is_applied("jax"):
        return
    for kind, to_numpy in ((jax.Array, _array_numpy), (Tracer, _tracer_numpy)):
        replace("jax", kind, "numpy", to_numpy)
        replace("jax", kind, "get_shape", _get_shape)
        replace("jax", kind, "set_shape", _set_shape)
        replace("jax", kind, "assign", property(_assign))
    owners: tuple[type, ...] = (Array, Tracer)
    for owner, name in itertools.product(owners, OPERATORS):
        replace("jax", owner, name, with_sequences(getattr(owner, name), SEQUENCES))
