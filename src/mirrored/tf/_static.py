"""Integer tensors, such as the result of `tf.shape`, whose values are known even while tracing.

In TensorFlow, ``tf.shape(x)`` is a tensor like any other. In JAX, a shape is static to the trace: under `jit`, an array
derived from operations is traced and cannot become a shape. So `tf.shape`, `tf.size` and `tf.rank` return NumPy
arrays, which stay NumPy arrays through indexing and arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from mirrored._jax.arrays import fits
from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import NotConstant, Tracer, evaluate
from mirrored._typing import HostArray
from mirrored.tf._errors import InvalidArgumentError, UnimplementedError
from mirrored.tf._rebinding import Rebinding
from mirrored.tf._shapes import TensorShape


class StaticTensor(Rebinding, np.ndarray[Any, np.dtype[Any]]):
    """An integer NumPy array that counts as a tensor, with a value that is known even while tracing.

    `tf.shape`, `tf.size` and `tf.rank` return it.

    Context: any, also inside `tf.function`, where it is valid as a shape, an axis or a Python index.
    """

    def __array_wrap__(self, array: HostArray, context: object = None, return_scalar: bool = False) -> Any:
        """Converts the result of a NumPy function to a `StaticTensor` if it contains integers or booleans."""
        return static_tensor(array) if array.dtype.kind in "iub" else array

    def __getitem__(self, key: Any) -> Any:
        """Returns a static tensor, even for a single element."""
        return static_tensor(np.asarray(super().__getitem__(key)))

    def numpy(self) -> Any:
        """Returns the value as a plain NumPy array or scalar."""
        return np.array(self)[()]


def static_tensor(value: ArrayLike) -> StaticTensor:
    """Converts integers to a `StaticTensor`, with 32 bits in place of 64 unless JAX's 64-bit mode is on.

    Functions of input pipelines run in this mode. Integers that do not fit into 32 bits keep 64, so that an operation
    that makes a tensor of them refuses them.
    """
    array = np.asarray(value)
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    return (array.astype(dtype, copy=False) if fits(array, dtype) else array).view(StaticTensor)


def static_int(value: object, *, called: str, argument: str) -> int:
    """Converts an integer or a tensor to a Python int; raises an error if its value depends on traced arguments.

    Raises:
        InvalidArgumentError: The value is traced, so that it has no value yet, or is not an integer.
    """
    try:
        return operator.index(known(value))
    except (jax.errors.ConcretizationTypeError, NotConstant):
        raise _traced_error(called, argument) from None
    except TypeError:
        raise InvalidArgumentError.of(
            called,
            found=f"`{argument}` is {value!r}",
            rule=f"`{argument}` must be an integer",
            remedy="pass an int or an integer tensor",
        ) from None


def known(value: object) -> Any:
    """Evaluates a traced value that does not depend on traced arguments; returns any other value unchanged.

    Raises:
        NotConstant: The value is traced and not known yet.
    """
    if not isinstance(value, Tracer):
        return value
    value = payload_of(value)
    return evaluate(value) if isinstance(value, Tracer) else value


def known_elements(
    value: jax.Array, called: str, instead: str, reduce: Callable[[jax.Array], jax.Array] = lambda value: value
) -> HostArray:
    """Returns a tensor's elements as a NumPy array; raises an error if compiled code computes the tensor.

    The elements determine the shape of a result, which compiled code fixes. Constants are known while tracing, too.

    Args:
        value: The tensor.
        called: The operation, as messages name it.
        instead: What to write in compiled code.
        reduce: Computes from the tensor what is returned, such as its largest element.

    Raises:
        UnimplementedError: Compiled code computes the tensor.
    """
    try:
        return np.asarray(known(reduce(value)))
    except (NotConstant, jax.errors.TracerArrayConversionError):
        raise UnimplementedError.of(
            called,
            found=f"a tensor of shape {value.shape} that is computed in compiled code (tf.function, a compiled run, "
            "tf.map_fn)",
            rule="its values determine the shape of the result, and compiled code has fixed shapes",
            remedy=f"write {instead}; or call it outside of compiled code, such as in Dataset.map",
        ) from None


def static_ints(value: object, *, called: str, argument: str) -> tuple[int, ...]:
    """Converts an integer, a sequence of integers or a vector to a tuple of Python ints."""
    if isinstance(value, TensorShape):
        return tuple(value.as_list())
    if isinstance(value, jax.Array) and isinstance(value, Tracer):
        try:
            value = np.asarray(known(value))
        except (jax.errors.TracerArrayConversionError, NotConstant):
            raise _traced_error(called, argument) from None
    if isinstance(value, (jax.Array, np.ndarray)):
        value = np.asarray(value).tolist()
    if isinstance(value, Sequence):
        return tuple(static_int(one, called=called, argument=argument) for one in value)
    return (static_int(value, called=called, argument=argument),)


def static_axis(value: object, *, called: str, argument: str = "axis") -> int | tuple[int, ...] | None:
    """Converts an `axis` argument to None, a Python int, or a tuple of ints."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, (list, tuple)) or np.ndim(value):
        return static_ints(value, called=called, argument=argument)
    return static_int(value, called=called, argument=argument)


def _traced_error(called: str, argument: str) -> InvalidArgumentError:
    return InvalidArgumentError.of(
        called,
        found=f"`{argument}` depends on a traced value",
        rule="shapes and axes in compiled code must be known while tracing",
        remedy="compute the value from x.shape or tf.shape(x), or pass it as a Python number",
    )
